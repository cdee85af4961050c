"""A comparison on the terminal: the figures, the steps by kind, the batches, and what has to be known beside them."""

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from simulator.compare.comparison import Comparison
from simulator.compare.wording import TextTable, drift_table, error_table, kind_table, parts_table, request_table

LARGE, CLOSE = 10.0, 5.0
"""Errors in per cent from which a figure is shown red, and below which green."""


def tables(comparison: Comparison) -> Iterator[Table]:
    """Those that have rows."""
    if comparison.has_errors:
        yield _table(error_table(comparison))
    if comparison.matched is not None:
        yield _table(request_table(comparison))
    if comparison.steps is not None:
        yield _table(kind_table(comparison.steps))
    if comparison.parts:
        yield _table(parts_table(comparison))
    if comparison.drift:
        yield _table(drift_table(comparison))


def lines(comparison: Comparison) -> Iterator[str]:
    """What has to be known beside the tables."""
    for run, role in ((comparison.reference, "reference"), (comparison.other, "other")):
        yield f"{role}: {run.name} ({run.format})"
    if comparison.steps is not None:
        yield f"steps priced by {comparison.price}"
    yield from comparison.not_comparable
    yield from comparison.notes


def _table(content: TextTable) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, heading in enumerate(content.headings):
        table.add_column(heading, justify="right" if place else "left", no_wrap=True)
    for row in content.rows:
        table.add_row(*(Text(cell, style=_style(cell)) for cell in row))
    return table


def _style(cell: str) -> str:
    """Green to red by the size of an error with its sign."""
    if not (cell.endswith(" %") and cell[0] in "+-"):
        return ""
    error = abs(float(cell.removesuffix(" %")))
    return "green" if error < CLOSE else "bold red" if error >= LARGE else "yellow"
