"""The page of a validation, `README.md`: how accurate, by which figures, and why not more."""

import platform
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from textwrap import fill

import numpy as np

from simulator import __version__
from simulator.compare.figures import Figure
from simulator.compare.limits import LIMITS, METRICS, SMALL_S, STEP_LIMITS, STEP_P95, within
from simulator.compare.steps import SMALL_STEP, errors_of_kind
from simulator.compare.validated_run import PARTS, GapShares, ValidatedRun
from simulator.compare.validation_tables import figures
from simulator.named_tables import table_names
from simulator.report.wording import duration, significant

WIDTH = 116
NEAR = 2.0
"""Percentiles on either side between which the page tells how steep a distribution is, and what is near an edge."""
HEADINGS = ("tokens/s", *(f"{name.split('_')[0].upper()} {name.split('_')[1]}" for name in METRICS[1:-1]), "duration")
ENDERS = ("steps of decodes alone", f"mixed steps of up to {SMALL_STEP} tokens", "larger steps")
NOISE = (
    "Two runs of vLLM 0.23 on an H200, repeated on another machine, differed by up to 4 % in mean, median and E2E"
    " figures and by up to 8.5 % in ITL p90 and p99. Errors below that are not errors. For throughput and TTFT p90"
    " and p99 it is not known."
)
STEPS = (
    "Each logged step against the price of its batch with the engine's host, so without errors of scheduling:"
    " median and 95th percentile of the errors without sign, per cent, of the steps that were fitted to, of those"
    f" held out, and of all. Limits are {' and '.join(f'{limit:g} ({kind})' for kind, limit in STEP_LIMITS.items())}"
    f" in the median and {STEP_P95:g} at p95. `steps.csv` has the signed median, and steps by how they run (CUDA"
    " graph, piecewise, eager)."
)
PARTS_OF_ERROR = (
    "On the logged batches, weighted by decodes, prices of steps and the host between them are compared with what"
    " was measured. What is left of the error comes from batches that the real engine did not run. Per cent of the"
    " measured mean ITL."
)
TABLES = "`errors.csv`, `steps.csv` and `parts.csv` hold the tables. `compare-runs` tells more of a single pair."


def page(runs: Sequence[ValidatedRun], drawn: Sequence[str], command: str) -> str:
    """The text; `drawn` are the stems of the plots beside it."""
    return "\n".join(_lines(runs, drawn, command)) + "\n"


def _lines(runs: Sequence[ValidatedRun], drawn: Sequence[str], command: str) -> Iterator[str]:
    yield from ("# How accurate is it?", "")
    yield _wrapped(
        f"{_counted(len(runs), 'run')} of vLLM, measured, and simulated with the same requests, settings and number of"
        " KV blocks; of the measurement the simulation sees nothing else. An error is (simulated - measured) /"
        " measured, in per cent. **Bold** is over its limit, in the first row; an error of less than"
        f" {1e3 * SMALL_S:g} ms is within it whatever its percentage (\\*)."
    )
    yield from ("", *_errors(runs), "", _verdict(runs), "")
    yield from ("![Error of each figure of each run, with noise and limits](overview.png)", "")
    yield from ("## Noise", "", _wrapped(NOISE), "")
    yield from ("## What was fitted", "", *_fits(runs), "")
    yield from ("## Step times", "", _wrapped(STEPS), "", *_steps(runs), "")
    yield from ("## Where the error of the mean ITL comes from", "", _wrapped(PARTS_OF_ERROR), "", *_parts(runs), "")
    yield from _over(runs, drawn)
    yield from ("## Plots and tables", "", *_plots(runs, drawn), "", TABLES, "")
    yield from ("## Made by", "", *_made_by(runs, command))


def _errors(runs: Sequence[ValidatedRun]) -> Iterator[str]:
    yield "| run | " + " | ".join(HEADINGS) + " |"
    yield "| --- |" + " ---: |" * len(METRICS)
    yield "| limit | " + " | ".join(f"{LIMITS[name]:g}" if name in LIMITS else "" for name in METRICS) + " |"
    for run in runs:
        cells = {figure.name: _cell(figure) for figure in figures(run)}
        yield f"| {run.name} | " + " | ".join(cells.get(name, "") for name in METRICS) + " |"


def _cell(figure: Figure) -> str:
    if np.isnan(figure.error_percent):
        return ""
    text = f"{figure.error_percent:+.1f}"
    if within(figure) is False:
        return f"**{text}**"
    return f"{text}\\*" if abs(figure.error_percent) > LIMITS.get(figure.name, np.inf) else text


def _verdict(runs: Sequence[ValidatedRun]) -> str:
    judged = [(run, figure, within(figure)) for run in runs for figure in figures(run) if within(figure) is not None]
    over = [f"{figure.title} of {run.name} ({figure.error_percent:+.1f} %)" for run, figure, good in judged if not good]
    inside = f"{len(judged) - len(over)} of {len(judged)} figures are within their limits."
    return _wrapped(inside + (f" Over: {', '.join(over)}." if over else ""))


def _fits(runs: Sequence[ValidatedRun]) -> Iterator[str]:
    engines = ", ".join(dict.fromkeys(f"`{run.experiment.engine}`" for run in runs))
    yield _wrapped(
        "GPU times come from cost tables of single operators; nothing of these runs is in them. Host times come from"
        f" {engines}, one profile a mode for all runs, though hosts differ:"
    )
    yield ""
    for mode, fit in dict.fromkeys((run.mode, " ".join(run.fit.split())) for run in runs):
        yield _wrapped(f"- {mode}: {fit or 'the profile does not say'}", "  ")
    yield ""
    fitted = [any(row.part == PARTS[0] for row in run.steps) for run in runs]
    others = [run.name for run, was in zip(runs, fitted, strict=True) if not was]
    if all(fitted):
        said = (
            "So host times were fitted to part of the steps of these very runs, and the times of arrival and"
            " delivery to all of their requests. No figure of the table above was itself fitted to."
        )
    elif any(fitted):
        said = f"Nothing was fitted to {', '.join(others)}."
    else:
        said = "None of the runs above is among them."
    yield _wrapped(said)


def _steps(runs: Sequence[ValidatedRun]) -> Iterator[str]:
    yield "| run | kind | steps | fitted: median | p95 | held out: median | p95 | all: median | p95 |"
    yield "| --- | --- |" + " ---: |" * 7
    for run in runs:
        for kind, limit in STEP_LIMITS.items():
            rows = {row.part: row.errors for row in run.steps if row.errors.kind == kind}
            cells: list[str] = []
            for part in PARTS:
                found = rows.get(part)
                cells += ["", ""] if found is None else [_bold(found.median, limit), _bold(found.p95, STEP_P95)]
            if rows:
                yield f"| {run.name} | {kind} | {rows['all'].steps:,} | " + " | ".join(cells) + " |"
    for run in runs:
        if not run.steps:
            yield from ("", f"{run.name}: {'; '.join(run.comparison.notes) or 'no step log'}")


def _bold(value: float, limit: float) -> str:
    """Bold if over the limit, with as many digits as it takes to see that."""
    if value <= limit:
        return f"{value:.1f}"
    return f"**{value:.1f}**" if round(value, 1) > limit else f"**{value:.2f}**"


def _parts(runs: Sequence[ValidatedRun]) -> Iterator[str]:
    names = next(([part.name for part in run.comparison.parts] for run in runs if run.comparison.parts), [])
    yield "| run | " + " | ".join(names) + " |"
    yield "| --- |" + " ---: |" * len(names)
    for run in runs:
        if run.comparison.parts:
            yield f"| {run.name} | " + " | ".join(f"{part.percent:+.1f}" for part in run.comparison.parts) + " |"


def _over(runs: Sequence[ValidatedRun], drawn: Sequence[str]) -> Iterator[str]:
    """Each figure over its limit: what is known of the reason."""
    found = [(run, figure) for run in runs for figure in figures(run) if within(figure) is False]
    if found:
        yield from ("## Figures over their limits", "")
    for run, figure in found:
        pair = f"measured {_value(figure, figure.reference)}, simulated {_value(figure, figure.other)}"
        sentences = [f"**{figure.title} of {run.name}**: {pair} ({figure.error_percent:+.1f} %)."]
        if figure.group == "itl" and figure.title[-2:].isdigit() and run.measured.itl is not None:
            sentences += _percentile(run, int(figure.title[-2:]), figure.other)
        yield from (_wrapped(" ".join(sentences)), "")
    captions = {"itl": "Distribution of the time between tokens", "quantiles": "Measured and simulated percentiles"}
    for name in dict.fromkeys(run.name for run, _ in found):
        for kind, caption in captions.items():
            if f"{kind}-{name}" in drawn:
                yield from (f"![{caption}, {name}]({kind}-{name}.png)", "")


def _percentile(run: ValidatedRun, percent: int, simulated_s: float) -> Iterator[str]:
    """How steep the distribution is there, and which steps end the gaps there."""
    assert run.measured.itl is not None
    shares = np.linspace(0.0, 1.0, 2001)
    place = 100 * float(np.interp(simulated_s, run.measured.itl.at(shares), shares))
    around = (percent - NEAR, min(percent + NEAR, 100.0))
    low, high = (duration(float(value)) for value in run.measured.itl.at(np.array(around) / 100))
    yield f"The simulated value is the measured percentile {place:.1f}: from p{around[0]:g} to p{around[1]:g} the"
    yield f"measured gaps grow from {low} to {high}, so a few gaps move this percentile far."
    if run.gaps is not None:
        yield from _ended_by(run, run.gaps, percent)


def _ended_by(run: ValidatedRun, gaps: GapShares, percent: int) -> Iterator[str]:
    """Steps of later kinds take longer, so the kinds follow each other along the distribution."""
    shares = list(zip(gaps.measured, gaps.simulated, strict=True))
    first = f"{shares[0][0]:.1f} % of the measured gaps ({shares[0][1]:.1f} % of the simulated) end with {ENDERS[0]}"
    others = [
        f"{ours:.1f} % ({theirs:.1f} %) with {steps}"
        for steps, (ours, theirs) in zip(ENDERS[1:], shares[1:], strict=True)
    ]
    yield f"{first}, {' and '.join(others)}."
    ends = np.cumsum(gaps.measured)
    kind = min(int(np.searchsorted(ends, percent)), len(ENDERS) - 1)
    near = [f"{edge:.1f} %" for edge in ends[:-1] if abs(edge - percent) <= NEAR]
    at_edge = f", near the edge at {' and at '.join(near)}" if near else ""
    yield f"So percentile {percent} is of gaps that end with {ENDERS[kind]}{at_edge}."
    if run.comparison.steps is not None:
        bias = errors_of_kind(run.comparison.steps, kind).median_percent
        yield f"In this run the prices of such steps are off by {bias:+.1f} % in the median."


def _value(figure: Figure, value: float) -> str:
    return duration(value) if figure.in_seconds else significant(value)


def _plots(runs: Sequence[ValidatedRun], drawn: Sequence[str]) -> Iterator[str]:
    kinds = {"quantiles": "percentiles", "steps": "step times", "itl": "time between tokens"}
    for run in runs:
        links = [f"[{text}]({kind}-{run.name}.png)" for kind, text in kinds.items() if f"{kind}-{run.name}" in drawn]
        yield f"- {run.name}: {', '.join(links)}"


def _made_by(runs: Sequence[ValidatedRun], command: str) -> Iterator[str]:
    yield from ("```sh", command, "```", "")
    yield f"- date: {datetime.now(UTC):%Y-%m-%d}"
    yield f"- chunkwise {__version__}, Python {platform.python_version()}, numpy {np.__version__}"
    for name, digest in dict.fromkeys((str(run.experiment.costs), run.experiment.costs_sha256) for run in runs):
        sidecar = table_names().get(name, Path(name)).with_suffix(".yaml").read_bytes()
        yield f"- cost table {name}: SHA-256 of its CSV {digest}, of its YAML {sha256(sidecar).hexdigest()}"


def _wrapped(text: str, indent: str = "") -> str:
    together = text.replace(" %", "\0%")
    lines = fill(together, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\0", " ")


def _counted(number: int, noun: str) -> str:
    words = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
    word = words[number] if number < len(words) else str(number)
    return f"{word} {noun}" + ("" if number == 1 else "s")
