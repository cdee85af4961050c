"""The bubbles of each stage as the page's table has them."""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.report.causes import seen_causes
from simulator.report.wording import duration
from simulator.results import PolicyResult, floats
from simulator.trace import Floats


@dataclass(frozen=True)
class BubbleTable:
    """`policies` has (label, rows), a row a stage: its number and a text for each of `headings`."""

    headings: list[str]
    policies: list[tuple[str, list[list[str]]]]


def bubble_table(results: Sequence[PolicyResult]) -> BubbleTable | None:
    """Shares of each stage's span, without the causes that no run has; None without a pipeline."""
    staged = [result for result in results if result.stages is not None]
    if not staged:
        return None
    causes = seen_causes(staged)
    columns = {"busy": "busy_s", "bubbles": "bubble_s"} | {cause.name: f"{cause.key}_s" for cause in causes}
    if any(floats(result.bubbles, "idle_s").any() for result in staged):
        columns["no request"] = "idle_s"
    rows = [(result.label, _rows(result, list(columns.values()))) for result in staged]
    return BubbleTable(["span", *columns], rows)


def _rows(result: PolicyResult, columns: Sequence[str]) -> list[list[str]]:
    spans = floats(result.bubbles, "span_s")
    shares = [_shares(floats(result.bubbles, column), spans) for column in columns]
    stages = [f"{stage}" for stage in result.bubbles["stage"]]
    lengths = [duration(span) for span in spans.tolist()]
    return [list(row) for row in zip(stages, lengths, *shares, strict=True)]


def _shares(times: Floats, spans: Floats) -> list[str]:
    """Per cent; a dash of nothing."""
    pairs = zip(times.tolist(), spans.tolist(), strict=True)
    return [f"{100 * time / span:.1f}%" if span else "-" for time, span in pairs]
