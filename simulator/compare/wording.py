"""Values and errors of a comparison as people read them, alike on the terminal and on the page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill

import numpy as np

from simulator.compare.comparison import Comparison
from simulator.compare.figures import Figure
from simulator.compare.steps import PricedSteps, errors_by_kind, worst
from simulator.report.wording import duration, significant

__all__ = [
    "TextTable",
    "drift_table",
    "error_table",
    "kind_table",
    "parts_table",
    "percent",
    "request_table",
    "worst_table",
    "wrapped",
]

WIDTH = 116
"""Characters of a line of a page."""
REQUEST_QUANTILES = (1, 5, 25, 50, 75, 95, 99)


@dataclass(frozen=True)
class TextTable:
    """A heading a column, and the cells as texts; the first column names the row."""

    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def percent(value: float) -> str:
    """An error with its sign: +3.2 %."""
    return f"{value:+.1f} %" if math.isfinite(value) else "-"


def error_table(comparison: Comparison) -> TextTable:
    """The figures of both runs."""
    rows = [
        (figure.title, _value(figure, figure.reference), _value(figure, figure.other), percent(figure.error_percent))
        for figure in comparison.figures
    ]
    return TextTable(("Figure", "Reference", "Other", "Error"), rows)


def drift_table(comparison: Comparison) -> TextTable:
    """How alike the batches are."""
    rows = [
        (row.name, _number(row.reference), _number(row.other), percent(row.error_percent)) for row in comparison.drift
    ]
    return TextTable(("Batches", "Reference", "Other", "Difference"), rows)


def kind_table(steps: PricedSteps) -> TextTable:
    """How far prices are off, by kind of batch."""
    rows = [
        (
            row.kind, f"{row.count:,}", percent(row.median_percent), f"{row.median_absolute_percent:.1f} %",
            f"{row.p95_absolute_percent:.1f} %", percent(row.sum_percent),
        )
        for row in errors_by_kind(steps)
    ]  # fmt: skip
    return TextTable(("Steps", "Count", "Median", "Median |error|", "p95 |error|", "In sum"), rows)


def parts_table(comparison: Comparison) -> TextTable:
    """Where the error of the mean time between tokens comes from."""
    rows = [(part.name, f"{1e3 * part.seconds:+.2f} ms", percent(part.percent)) for part in comparison.parts]
    return TextTable(("Error of mean ITL", "Time", "Of measured"), rows)


def worst_table(steps: PricedSteps, number: int) -> TextTable:
    """The steps whose price is off by most seconds."""
    log, rows = steps.log, []
    for place in worst(steps, number):
        row = int(steps.rows[place])
        rows.append(
            (
                f"{log.step[row]}", f"{log.line[row]}", f"{log.schedule_end_s[row]:.6f}", f"{log.decodes[row]}",
                shown_chunks(steps, row), duration(float(steps.measured_s[place])),
                duration(float(steps.priced_s[place])), percent(float(steps.errors_percent[place])),
            )
        )  # fmt: skip
    return TextTable(("Step", "Line", "Time (s)", "Decodes", "Chunks", "Measured", "Priced", "Error"), rows)


def shown_chunks(steps: PricedSteps, row: int, most: int = 4) -> str:
    """The prompt chunks of a logged step as context+tokens, the first few."""
    chunks = [f"{before}+{tokens}" for _, before, tokens in steps.log.chunks[row]]
    return " ".join(chunks[:most]) + (f" and {len(chunks) - most} more" if len(chunks) > most else "") or "-"


def request_table(comparison: Comparison) -> TextTable:
    """Percentiles of the errors of single requests."""
    assert comparison.matched is not None
    rows = []
    for latency in ("e2e", "ttft", "tpot"):
        errors = comparison.matched.errors_percent(latency)
        errors = errors[np.isfinite(errors)]
        if len(errors):
            found = np.percentile(errors, REQUEST_QUANTILES)
            rows.append((latency.upper(), *(percent(float(value)) for value in found)))
    return TextTable(("Error of a request", *(f"p{p}" for p in REQUEST_QUANTILES)), rows)


def _value(figure: Figure, value: float) -> str:
    return duration(value) if figure.in_seconds else significant(value)


def _number(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) and value == round(value) else significant(value)


def wrapped(text: str, indent: str = "") -> str:
    """Lines of a page; no line begins with the sign of a percentage."""
    together = text.replace(" %", "\0%")
    lines = fill(together, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\0", " ")
