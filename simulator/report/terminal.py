"""The comparison as a table for the terminal: 100 columns, best values marked with and without colour."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from simulator.report.comparable import remarks
from simulator.report.headline import notes
from simulator.report.measures import (
    BUBBLES,
    E2E_P50,
    KV_PEAK,
    PREEMPTIONS,
    TERMINAL,
    TTFT_P50,
    Measure,
    column,
    finished,
    page_measures,
    with_gpus_first,
    with_pipeline,
)
from simulator.report.wording import shorten
from simulator.results import PolicyResult

__all__ = ["notes", "remarks", "summary_table"]

MARK = "*"
LABEL_WIDTH = 40
GIVEN_UP = (KV_PEAK, PREEMPTIONS, E2E_P50, TTFT_P50)  # in this order, where the labels need the room


def summary_table(results: Sequence[PolicyResult], width: int = 100) -> Table:
    """A row a policy that fits `width` characters; a single policy is turned into a row a measure.

    The best of a column is bold green with a star behind it. Columns that do not fit are left out and named
    in the caption; labels beyond LABEL_WIDTH lose their middle.
    """
    if len(results) == 1:
        return _transposed(results[0])
    labels = [shorten(result.label, LABEL_WIDTH) for result in results]
    done = ["{:,}/{:,}".format(*finished(result)) for result in results]
    measures = with_gpus_first(with_pipeline(TERMINAL, results, BUBBLES), results)
    columns = [(measure, *_cells(measure, results)) for measure in measures]
    dropped = _too_wide(columns, _width("policy", labels) + _width("finished", done), width)
    table = _empty(f"{MARK} best of its column" + _named(dropped))
    table.add_column("Policy", no_wrap=True)
    table.add_column("Finished", justify="right", no_wrap=True)
    kept = [(heading, cells) for measure, heading, cells in columns if measure not in dropped]
    for heading, _ in kept:
        table.add_column(heading, justify="right", no_wrap=True)
    for row, (label, count) in enumerate(zip(labels, done, strict=True)):
        table.add_row(Text(label), Text(count), *(cells[row] for _, cells in kept))
    return table


def _cells(measure: Measure, results: Sequence[PolicyResult]) -> tuple[str, list[Text]]:
    """A column's heading, on up to three lines, and its cells."""
    unit, texts, best = column(measure, results)
    heading = "\n".join(part for part in (measure.group, measure.statistic, unit) if part)
    return heading, [
        Text(f"{text}{MARK}", style="bold green") if won else Text(f"{text} ")
        for text, won in zip(texts, best, strict=True)
    ]


def _too_wide(columns: Sequence[tuple[Measure, str, list[Text]]], names: int, width: int) -> list[Measure]:
    """The measures to leave out, the least missed first, until the rest fits."""
    widths = {measure: _width(heading, [cell.plain for cell in cells]) for measure, heading, cells in columns}
    dropped: list[Measure] = []
    for measure in GIVEN_UP:
        if names + sum(widths.values()) <= width:
            break
        dropped.append(measure)
        del widths[measure]
    return dropped


def _width(heading: str, cells: Sequence[str]) -> int:
    """A column's width in characters, its padding included."""
    return max(len(line) for text in (heading, *cells) for line in text.split("\n")) + 2


def _named(dropped: Sequence[Measure]) -> str:
    names = ", ".join(measure.title for measure in dropped)
    return f"; left out for width, see summary.csv: {names}" if names else ""


def _transposed(result: PolicyResult) -> Table:
    table = _empty("")
    table.add_column("Measure", no_wrap=True)
    table.add_column(Text(shorten(result.label, LABEL_WIDTH)), justify="right", no_wrap=True)
    table.add_row("Finished", "{:,}/{:,}".format(*finished(result)))
    for measure in page_measures([result]):
        name = measure.group if measure.kind == "rate" else measure.title
        table.add_row(name, Text(measure.text(measure.of(result))))
    return table


def _empty(caption: str) -> Table:
    return Table(box=None, pad_edge=False, header_style="dim", caption=Text(caption), caption_justify="left")
