"""The section on pipelines of a validation's page."""

from collections.abc import Iterator, Sequence
from math import isnan

from simulator.compare.overlap import ALL, KINDS, STATISTICS, Overlap
from simulator.compare.validated_run import ValidatedRun
from simulator.compare.wording import wrapped

TITLE = "## Pipeline: how far the stages overlap"
ABOUT = (
    "Steps of pipeline stages overlap, so none has a time of its own. Compared are the latency of each step, from the"
    " end of its scheduling to its output, and the interval from the output before to its own, where the engine did not"
    " idle: milliseconds measured, and in parentheses simulated. The last two columns are errors of outputs: predicted"
    " less logged, given the logged batches, when each was scheduled and when the outputs before it came."
)
HEADINGS = (
    *("run", "steps", "number"),
    *(f"{name} {statistic}" for name in ("latency", "interval") for statistic in STATISTICS),
    *("output error mean", "p50"),
)


def overlap_section(runs: Sequence[ValidatedRun], drawn: Sequence[str]) -> Iterator[str]:
    """Nothing without a pipeline among `runs`; `drawn` are the stems of the plots beside the page."""
    found = [(run.name, run.overlap) for run in runs if run.overlap is not None]
    if not found:
        return
    yield from (TITLE, "", wrapped(ABOUT), "")
    yield "| " + " | ".join(HEADINGS) + " |"
    yield "| --- | --- |" + " ---: |" * (len(HEADINGS) - 2)
    for name, overlap in found:
        yield from _rows(name, overlap)
    yield ""
    for name, overlap in found:
        yield from (wrapped(_means(name, overlap)), "")
        if f"overlap-{name}" in drawn:
            caption = "Distributions of intervals and latencies of steps, measured and simulated"
            yield from (f"![{caption}, {name}](overlap-{name}.png)", "")


def _rows(name: str, overlap: Overlap) -> Iterator[str]:
    figures = {(figure, kind): pair for figure, kind, *pair in overlap.figures()}
    for kind in (*KINDS, ALL):
        counts = [round(count) for count in figures["steps", kind]]
        if not any(counts):
            continue
        cells = [f"{counts[0]:,} ({counts[1]:,})"]
        for times in ("latency", "interval"):
            for statistic in STATISTICS:
                measured, simulated = figures[f"{times}_{statistic}_s", kind]
                cells.append(f"{_ms(measured)} ({_ms(simulated)})")
        cells += [f"{1e3 * figures[f'output_error_{statistic}_s', kind][1]:+.2f}" for statistic in ("mean", "p50")]
        yield f"| {name} | {kind} | " + " | ".join(cells) + " |"


def _ms(seconds: float) -> str:
    return "-" if isnan(seconds) else f"{1e3 * seconds:#.3g}"


def _means(name: str, overlap: Overlap) -> str:
    ours, theirs = overlap.measured, overlap.simulated
    return (
        f"{name}: while anything was under way, that was {ours.steps_under_way:.2f} steps in the mean"
        f" ({theirs.steps_under_way:.2f} simulated), and {ours.stages_at_work:.2f} stages were at work"
        f" ({theirs.stages_at_work:.2f}). How long a stage works on a logged step is not in the log: it is what the"
        " prices say, so this compares batches and the time that they took."
    )
