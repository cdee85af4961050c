"""`compare.md`: a comparison as one short page with its tables and plots."""

from collections.abc import Iterator, Sequence

from simulator.compare.comparison import Comparison
from simulator.compare.figures import DEFINITIONS
from simulator.compare.run import Run
from simulator.compare.wording import (
    TextTable,
    drift_table,
    error_table,
    kind_table,
    parts_table,
    request_table,
    worst_table,
)

PLOTS = {
    "quantiles": "Percentiles of TTFT, ITL and end-to-end latency of one run over those of the other",
    "requests": "End-to-end latency of each request in both runs, and the distribution of the errors",
    "steps": "Error of the price of each logged step over its tokens",
}
MOST_FACTS = 24
OUTPUT_TO_OUTPUT = (
    "from the output of the step before to its own (steps overlap in this log: only decode-only steps between"
    " decode-only steps are looked at)"
)
GPU_TO_OUTPUT = (
    "from where the GPU was done with the step before to its own output (steps overlap in this log; outputs that waited"
    " for the launch of the next step are left out)"
)
PARTS = (
    "Prices of steps and the host between them are compared on the logged batches, weighted by decodes; what is left of"
    " the error comes from batches that the real engine did not run."
)


def page(comparison: Comparison, drawn: Sequence[str], number_worst: int, made_by: str) -> str:
    """The text of the page; `drawn` are the stems of the plots beside it."""
    return "\n".join(_lines(comparison, drawn, number_worst, made_by)) + "\n"


def _lines(comparison: Comparison, drawn: Sequence[str], number_worst: int, made_by: str) -> Iterator[str]:
    reference, other = comparison.reference, comparison.other
    yield from (f"# {_text(other.name)} against {_text(reference.name)}", "")
    yield from (*_run("Reference", reference), *_run("Other", other), "")
    for warning in comparison.warnings:
        yield from (f"**Warning: {_text(warning)}**", "")
    yield from ("An error is (other - reference) / reference.", "")
    if comparison.has_errors:
        yield from _table(error_table(comparison))
    yield from _list([*comparison.not_comparable, *comparison.notes])
    yield from _plot("quantiles", drawn)
    if comparison.matched is not None:
        yield from ("## Each request", "", "The two runs have the same requests, pair by pair in order of arrival.", "")
        yield from (*_table(request_table(comparison)), *_plot("requests", drawn))
    yield from _steps(comparison, drawn, number_worst)
    if comparison.parts:
        yield from ("## Where the error of the mean ITL comes from", "", PARTS, "", *_table(parts_table(comparison)))
    if comparison.drift:
        yield from ("## Composition drift", "", "What the steps held that ran something, not how long they took.", "")
        yield from _table(drift_table(comparison))
    yield from ("## Definitions", "", "Percentiles are linear-interpolated over all values, numpy's default.", "")
    yield from _list([f"`{name}`: {meaning}" for name, meaning in DEFINITIONS.items()], plain=False)
    yield f"Made by {made_by}"


def _run(role: str, run: Run) -> Iterator[str]:
    facts = ", ".join(f"{key} {value}" for key, value in list(run.facts.items())[:MOST_FACTS])
    yield f"- {role}: **{_text(run.name)}**, {run.format}" + (f": {_text(facts)}" if facts else "")


def _steps(comparison: Comparison, drawn: Sequence[str], number_worst: int) -> Iterator[str]:
    steps = comparison.steps
    if steps is None:
        return
    overlapping = GPU_TO_OUTPUT if steps.profiled else OUTPUT_TO_OUTPUT
    rule = overlapping if steps.asynchronous else "from the end of `schedule()` to its output"
    yield from ("## Step times", "")
    yield f"Prices by {_text(comparison.price)}. A step was measured {rule}."
    yield from ("An error is (priced - measured) / measured; the last column compares the sums.", "")
    yield from (*_table(kind_table(steps)), *_plot("steps", drawn))
    if number_worst:
        yield from ("The steps whose price is off by most seconds (chunks are context before + tokens):", "")
        yield from _table(worst_table(steps, number_worst))


def _table(content: TextTable) -> Iterator[str]:
    yield "| " + " | ".join(_text(heading) for heading in content.headings) + " |"
    yield "| --- |" + " ---: |" * (len(content.headings) - 1)
    for row in content.rows:
        yield "| " + " | ".join(_text(cell) for cell in row) + " |"
    yield ""


def _list(items: Sequence[str], plain: bool = True) -> Iterator[str]:
    for item in items:
        yield f"- {_text(item) if plain else item}"
    if items:
        yield ""


def _plot(stem: str, drawn: Sequence[str]) -> Iterator[str]:
    if stem in drawn:
        yield from (f"![{PLOTS[stem]}]({stem}.png)", "")


def _text(text: str) -> str:
    """A text on one line in which Markdown and HTML mean nothing."""
    line = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    for mark in "\\`*_[]|":
        line = line.replace(mark, f"\\{mark}")
    return line
