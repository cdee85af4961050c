"""Logged steps against what they should have cost: measured and priced time of each, by kind of batch.

In a synchronous engine a step takes from the end of `schedule()` until its output is there. An asynchronous one
schedules a step while the last still runs, so that span holds most of two steps, and the launch of a slow step delays
the collection of the one before. There a step takes from where the GPU was done with the one before to its own output:
see `simulator.engines.logged.Predicted`. Without an engine profile nothing is known of launches: then only decode-only
steps between decode-only steps are looked at, scheduled before the output before was there (else the engine had been
idle), from output to output.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.compare.attribution import token_gap_errors
from simulator.costs import StepCosts
from simulator.engines.logged import predict, price_log
from simulator.engines.profile import EngineProfile, Mode
from simulator.power_limit import Heat
from simulator.step_log_file import LoggedSteps
from simulator.trace import Floats, Ints

SMALL_STEP = 512
"""Tokens up to which vLLM 0.23 captured CUDA graphs where it was measured; larger steps are launched piecewise."""
KINDS = ("decode only", f"mixed, up to {SMALL_STEP} tokens", f"mixed, above {SMALL_STEP} tokens", "prefill only")


@dataclass(frozen=True)
class StepPrices:
    """What steps should take: costs of the GPU, its heat if it has a power limit, and the engine of a model of so many
    layers, None for the GPU's time alone. `workers`: whether the GPUs are several, with a process each."""

    costs: StepCosts
    heat: Heat | None = None
    profile: EngineProfile | None = None
    layers: int = 0
    workers: bool = False


@dataclass(frozen=True)
class PricedSteps:
    """Those steps of a log that have a measured time: `rows` are their places in it, `kind` indexes KINDS, times are
    seconds. `asynchronous` and `profiled` say by which rule they were measured. `blame` is for
    `simulator.compare.attribution`."""

    log: LoggedSteps
    asynchronous: bool
    profiled: bool
    rows: Ints
    kind: Ints
    measured_s: Floats
    priced_s: Floats
    blame: tuple[float, float]

    @property
    def errors_percent(self) -> Floats:
        """(priced - measured) / measured."""
        return 100 * (self.priced_s - self.measured_s) / self.measured_s


def priced_steps(log: LoggedSteps, prices: StepPrices, max_num_seqs: int | None = None) -> PricedSteps:
    """Every step whose time the log shows, with its price; `max_num_seqs` is the engine's."""
    profile = prices.profile
    captured = [] if profile is None else profile.cuda_graphs.captured(max_num_seqs)
    priced = price_log(log, prices.costs, captured, prices.heat, workers=prices.workers)
    mode = Mode() if profile is None else profile.mode(2 if priced.pipelined else 1)
    predicted = predict(priced, mode, prices.layers)
    kind = kinds(log.decodes, log.num_chunks, log.tokens)
    told = np.isfinite(predicted.measured_s) & (predicted.measured_s > 0)
    if profile is None and priced.pipelined:
        told &= _among_decodes(log, kind)
    rows = np.flatnonzero((kind >= 0) & told)
    return PricedSteps(
        log=log,
        asynchronous=priced.pipelined,
        profiled=profile is not None,
        rows=rows,
        kind=kind[rows],
        measured_s=predicted.measured_s[rows],
        priced_s=predicted.predicted_s[rows],
        blame=token_gap_errors(priced, predicted, mode),
    )


def kinds(decodes: Ints, chunks: Ints, tokens: Ints) -> Ints:
    """Index into KINDS of steps of so many decodes, prompt chunks and tokens, -1 for a step that runs nothing."""
    none, alone = chunks == 0, decodes == 0
    return np.select([none & alone, none, alone, tokens <= SMALL_STEP], [-1, 0, 3, 1], default=2)


def _among_decodes(log: LoggedSteps, kind: Ints) -> NDArray[np.bool_]:
    """Of each step, whether it is of decodes alone between such, in an engine that was at work."""
    decoding: NDArray[np.bool_] = kind == 0
    alone = decoding.copy()
    alone[1:] &= decoding[:-1] & (log.step[1:] == log.step[:-1] + 1)
    alone[1:] &= log.schedule_end_s[1:] < log.output_ready_s[:-1]
    alone[:-1] &= decoding[1:]
    alone[[0, -1]] = False
    return alone


@dataclass(frozen=True)
class KindErrors:
    """How far prices of one kind of step are off: per cent of the measured time, and times in sum."""

    kind: str
    count: int
    median_percent: float
    median_absolute_percent: float
    p95_absolute_percent: float
    measured_s: float
    priced_s: float

    @property
    def sum_percent(self) -> float:
        """Of all these steps together."""
        return 100 * (self.priced_s - self.measured_s) / self.measured_s


def errors_by_kind(steps: PricedSteps) -> list[KindErrors]:
    """A row a kind that occurs, and one of all steps if several do."""
    found = [errors_of_kind(steps, kind) for kind in range(len(KINDS))]
    rows = [row for row in found if row.count]
    return rows if len(rows) < 2 else [*rows, _errors("all", steps, np.ones(len(steps.rows), np.bool_))]


def errors_of_kind(steps: PricedSteps, kind: int) -> KindErrors:
    """Those of one of KINDS, by its place; NaN where it does not occur."""
    return _errors(KINDS[kind], steps, steps.kind == kind)


def _errors(name: str, steps: PricedSteps, chosen: NDArray[np.bool_]) -> KindErrors:
    errors = steps.errors_percent[chosen]
    if not len(errors):
        return KindErrors(name, 0, np.nan, np.nan, np.nan, 0.0, 0.0)
    return KindErrors(
        name,
        len(errors),
        float(np.median(errors)),
        float(np.median(np.abs(errors))),
        float(np.percentile(np.abs(errors), 95)),
        float(steps.measured_s[chosen].sum()),
        float(steps.priced_s[chosen].sum()),
    )


def worst(steps: PricedSteps, number: int) -> Ints:
    """Places in `steps` of those whose price is off by most seconds, the worst first."""
    return np.argsort(-np.abs(steps.priced_s - steps.measured_s), kind="stable")[:number]
