"""The page of a validation, `README.md`: how accurate, by which figures, and why not more."""

import platform
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import numpy as np

from simulator import __version__
from simulator.compare.figures import Figure
from simulator.compare.limits import METRICS, SMALL_S, STEP_LIMITS, STEP_P95, WIDER, limit_of, within
from simulator.compare.overlap_page import overlap_section
from simulator.compare.validated_run import PARTS, ValidatedRun
from simulator.compare.validation_fits import fits
from simulator.compare.validation_over import over_section
from simulator.compare.validation_tables import figures
from simulator.compare.wording import wrapped
from simulator.named_tables import table_names

HEADINGS = ("tokens/s", *(f"{name.split('_')[0].upper()} {name.split('_')[1]}" for name in METRICS[1:-1]), "duration")
NOISE = (
    "Two runs of vLLM 0.23 on an H200, repeated on another machine, differed by up to 4 % in mean, median and E2E"
    " figures and by up to 8.5 % in ITL p90 and p99. Errors below that cannot be told from noise. For throughput and"
    " TTFT p90 and p99 it is not known."
)
STEPS = (
    "Each logged step against the price of its batch with the engine's host, so without errors of scheduling:"
    " median and 95th percentile of the errors without sign, per cent, of the steps that were fitted to, of those"
    f" held out, and of all. Limits are {' and '.join(f'{limit:g} ({kind})' for kind, limit in STEP_LIMITS.items())}"
    f" in the median and {STEP_P95:g} at p95, on any number of GPUs. `steps.csv` has the signed median,"
    " and steps by how they run (CUDA"
    " graph, piecewise, eager)."
)
DIFFERENCES = (
    "Runs of one trace, model and mode that differ in max_num_batched_tokens alone: the change of each figure in per"
    " cent, measured, and simulated in parentheses. The two were measured on different machines, which alone makes 4 %."
)
PARTS_OF_ERROR = (
    "On the logged batches, weighted by decodes, prices of steps and the host between them are compared with what"
    " was measured. What is left of the error comes from batches that the real engine did not run. Per cent of the"
    " measured mean ITL."
)
TABLES = (
    "`errors.csv`, `held_out.csv`, `steps.csv`, `parts.csv` and `overlap.csv` hold the tables. `compare-runs` tells"
    " more of a single pair."
)


HELD_OUT = (
    "The runs above had a share in the host times of their own simulation. Here each is simulated with host times"
    " fitted to the other runs of its mode and of as many GPUs alone, as of a server that was logged at other settings;"
    " a run that is alone in these cannot be held out. Fit to logs on both sides of the budgets that you compare."
)


def page(
    runs: Sequence[ValidatedRun], drawn: Sequence[str], command: str, held_out: Sequence[ValidatedRun] = ()
) -> str:
    """The text; `held_out` are runs with a profile fitted to others, `drawn` the stems of the plots beside it."""
    return "\n".join(_lines(runs, held_out, drawn, command)) + "\n"


def _lines(
    runs: Sequence[ValidatedRun], held_out: Sequence[ValidatedRun], drawn: Sequence[str], command: str
) -> Iterator[str]:
    yield from ("# How accurate is it?", "")
    yield wrapped(
        f"{_counted(len(runs), 'run')} of vLLM, measured, and simulated with the same requests, settings and number of"
        " KV blocks; of the measurement the simulation sees nothing else. An error is (simulated - measured) /"
        " measured, in per cent. **Bold** is over its limit, in the first row"
        f"{_wider(runs)}; an error of less than {1e3 * SMALL_S:g} ms is within it whatever its percentage (\\*)."
    )
    yield from ("", *_errors(runs), "", _verdict(runs), "")
    yield from ("![Error of each figure of each run, with noise and limits](overview.png)", "")
    yield from ("## Noise", "", wrapped(NOISE), "")
    yield from ("## What was fitted", "", *fits(runs), "")
    if held_out:
        yield from ("## Runs held out", "", wrapped(HELD_OUT), "", *_errors(held_out), "", _verdict(held_out), "")
    yield from _differences(runs)
    yield from ("## Step times", "", wrapped(STEPS), "", *_steps(runs), "")
    yield from overlap_section(runs, drawn)
    yield from ("## Where the error of the mean ITL comes from", "", wrapped(PARTS_OF_ERROR), "", *_parts(runs), "")
    yield from over_section(runs, drawn)
    yield from ("## Plots and tables", "", *_plots(runs, drawn), "", wrapped(TABLES), "")
    yield from ("## Made by", "", *_made_by(runs, command))


def _wider(runs: Sequence[ValidatedRun]) -> str:
    if all(run.gpus == 1 for run in runs):
        return ""
    return f" (runs on more than one GPU: {WIDER:g} times as much, in the second)"


def _errors(runs: Sequence[ValidatedRun]) -> Iterator[str]:
    yield "| run | " + " | ".join(HEADINGS) + " |"
    yield "| --- |" + " ---: |" * len(METRICS)
    names = {1: "limit", max(run.gpus for run in runs): "limit, several GPUs"} | {1: "limit"}
    for gpus, name in names.items():
        limits = (limit_of(metric, gpus) for metric in METRICS)
        yield f"| {name} | " + " | ".join("" if limit is None else f"{limit:g}" for limit in limits) + " |"
    for run in runs:
        cells = {figure.name: _cell(figure, run.gpus) for figure in figures(run)}
        yield f"| {run.name} | " + " | ".join(cells.get(name, "") for name in METRICS) + " |"


def _differences(runs: Sequence[ValidatedRun]) -> Iterator[str]:
    """What another budget changes, for pairs of runs that differ in nothing else."""
    rows = []
    for place, one in enumerate(runs):
        for other in runs[:place]:
            facts = [{**run.measured.facts, "budget": "", "steps": "", "lpt": ""} for run in (one, other)]
            if facts[0] == facts[1]:
                rows.append(_difference(one, other))
    if not rows:
        return
    yield from ("## What another budget changes", "", wrapped(DIFFERENCES), "")
    yield "| from, to | " + " | ".join(HEADINGS) + " |"
    yield "| --- |" + " ---: |" * len(METRICS)
    yield from (*rows, "")


def _difference(one: ValidatedRun, other: ValidatedRun) -> str:
    first, last = sorted((one, other), key=lambda run: -int(run.measured.facts.get("budget", "0")))
    pairs = [{figure.name: figure for figure in figures(run)} for run in (first, last)]
    cells = []
    for name in METRICS:
        if not all(name in pair for pair in pairs):
            cells.append("")
            continue
        before, after = (pair[name] for pair in pairs)
        measured, simulated = after.reference / before.reference - 1, after.other / before.other - 1
        cells.append(f"{100 * measured:+.0f} ({100 * simulated:+.0f})")
    budgets = [run.measured.facts.get("budget", "?") for run in (first, last)]
    return f"| {budgets[0]}, {budgets[1]} tokens, {first.mode} | " + " | ".join(cells) + " |"


def _cell(figure: Figure, gpus: int) -> str:
    if np.isnan(figure.error_percent):
        return ""
    text = f"{figure.error_percent:+.1f}"
    if within(figure, gpus) is False:
        return f"**{text}**"
    limit = limit_of(figure.name, gpus)
    return text if limit is None or abs(figure.error_percent) <= limit else f"{text}\\*"


def _verdict(runs: Sequence[ValidatedRun]) -> str:
    verdicts = [(run, figure, within(figure, run.gpus)) for run in runs for figure in figures(run)]
    judged = [verdict for verdict in verdicts if verdict[2] is not None]
    over = [f"{figure.title} of {run.name} ({figure.error_percent:+.1f} %)" for run, figure, good in judged if not good]
    inside = f"{len(judged) - len(over)} of {len(judged)} figures are within their limits."
    return wrapped(inside + (f" Over: {', '.join(over)}." if over else ""))


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
            yield from ("", wrapped(_no_steps(run)))


def _no_steps(run: ValidatedRun) -> str:
    notes = [note.removeprefix(f"{run.name}: ") for note in run.comparison.notes]
    return f"{run.name}: {'; '.join(notes) or 'no step log'}"


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


def _plots(runs: Sequence[ValidatedRun], drawn: Sequence[str]) -> Iterator[str]:
    kinds = {"quantiles": "percentiles", "steps": "step times", "itl": "time between tokens", "overlap": "overlap"}
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


def _counted(number: int, noun: str) -> str:
    words = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
    word = words[number] if number < len(words) else str(number)
    return f"{word} {noun}" + ("" if number == 1 else "s")
