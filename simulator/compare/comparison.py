"""Everything that a comparison of two runs says, computed once; table, page, plots and files are made of it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from simulator.compare.attribution import Part, parts
from simulator.compare.drift import composition_drift, composition_of
from simulator.compare.figures import Figure, figures_of, not_comparable
from simulator.compare.prices import PriceSource
from simulator.compare.run import Run
from simulator.compare.steps import PricedSteps, priced_steps
from simulator.compare.workload import Matched, matched, workload_warnings
from simulator.errors import InputError
from simulator.step_log_file import LoggedSteps, read_step_log


@dataclass(frozen=True)
class Comparison:
    """Two runs, the first being the reference; what could not be compared is empty or None, and `notes` say why."""

    reference: Run
    other: Run
    figures: list[Figure]
    not_comparable: list[str]
    warnings: list[str]
    matched: Matched | None
    steps: PricedSteps | None
    price: str
    drift: list[Figure]
    parts: list[Part]
    notes: list[str]

    @property
    def has_errors(self) -> bool:
        """Whether any figure is there on both sides."""
        return any(math.isfinite(figure.error_percent) for figure in self.figures)


def compare(reference: Run, other: Run, source: PriceSource | None) -> Comparison:
    """Compare two runs; steps of the reference's log are priced by `source`. O(n log n) in requests and steps.

    Raises InputError where they have nothing in common that could be compared.
    """
    logs = [None if run.step_log is None else read_step_log(run.step_log) for run in (reference, other)]
    steps = _priced(reference, logs[0], source)
    compositions = [composition_of(run, log) for run, log in zip((reference, other), logs, strict=True)]
    ours, theirs = compositions
    comparison = Comparison(
        reference=reference,
        other=other,
        figures=figures_of(reference, other),
        not_comparable=not_comparable(reference, other),
        warnings=workload_warnings(reference, other),
        matched=matched(reference, other),
        steps=steps,
        price="" if source is None else source.description,
        parts=_parts(steps, figures_of(reference, other)),
        drift=[] if ours is None or theirs is None else composition_drift(ours, theirs),
        notes=[*_notes(reference, other), *_step_notes(reference, other, logs[0], source, steps)],
    )
    if not (comparison.has_errors or comparison.steps or comparison.drift):
        reasons = "; ".join([*comparison.not_comparable, *comparison.notes])
        raise InputError(f"{reference.name} and {other.name} have nothing in common to compare: {reasons}")
    return comparison


def _priced(run: Run, log: LoggedSteps | None, source: PriceSource | None) -> PricedSteps | None:
    if log is None or source is None or _pipeline_stages(run) > 1:
        return None
    limit = run.facts.get("max_num_seqs", "")
    steps = priced_steps(log, source.prices, int(limit) if limit.isdigit() else None)
    return steps if len(steps.rows) else None


def _parts(steps: PricedSteps | None, figures: list[Figure]) -> list[Part]:
    """Parts of the error of the mean ITL, where it and the engine's host are known."""
    means = [figure for figure in figures if figure.name == "itl_mean_s" and math.isfinite(figure.error_percent)]
    if steps is None or not steps.profiled or not means:
        return []
    return parts(steps.blame, means[0].reference, means[0].other)


def _pipeline_stages(run: Run) -> int:
    stages = run.facts.get("pipeline", "1")
    return int(stages) if stages.isdigit() else 1


def _other_shard(run: Run, source: PriceSource) -> Iterator[str]:
    degree = run.facts.get("tensor", str(source.tensor))
    if degree != str(source.tensor):
        yield f"{run.name} ran on {degree} tensor-parallel GPUs, its steps are priced as of one of {source.tensor}"


def _notes(*runs: Run) -> Iterator[str]:
    for run in runs:
        for note in run.notes:
            yield f"{run.name}: {note}"


def _step_notes(
    run: Run, other: Run, log: LoggedSteps | None, source: PriceSource | None, steps: PricedSteps | None
) -> Iterator[str]:
    if log is None:
        if other.step_log is not None:
            yield f"{other.name} has a step log; put it first for its step times"
        return
    yield from (f"{run.name}: {note}" for note in log.notes)
    if _pipeline_stages(run) > 1:
        yield f"{run.name}: steps of {_pipeline_stages(run)} pipeline stages overlap; no step times are priced"
    elif source is None:
        yield f"{run.name} has a step log; --costs TABLE prices its steps"
    else:
        yield from _other_shard(run, source)
    if source is not None and steps is None and _pipeline_stages(run) == 1:
        yield f"{run.name}: no step of the log has a time that could be compared with a price"
