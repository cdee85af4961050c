"""Logged steps against what they should have cost: measured and priced time of each, by kind of batch.

In a synchronous engine a step takes from the end of `schedule()` until its output is there. An asynchronous one
schedules a step while the last still runs, so that span holds most of two steps, and the launch of a slow step delays
the collection of the one before. There a step takes from the output before to its own, and only decode-only steps
between decode-only steps are looked at, scheduled before the output before was there (else the engine had been idle).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.costs import StepCosts
from simulator.step_log_file import LoggedSteps
from simulator.trace import Floats, Ints

SMALL_STEP = 512
"""Tokens up to which vLLM 0.23 captured CUDA graphs where it was measured; larger steps are launched piecewise."""
KINDS = ("decode only", f"mixed, up to {SMALL_STEP} tokens", f"mixed, above {SMALL_STEP} tokens", "prefill only")


@dataclass(frozen=True)
class Step:
    """What a price may depend on: decodes with the sum and the largest of their contexts after the step, and chunks
    (context before, tokens)."""

    decodes: int
    decode_context: int
    longest: int
    chunks: tuple[tuple[int, int], ...]


Price = Callable[[Step], float]
"""Seconds that a step takes."""


def table_price(costs: StepCosts) -> Price:
    """The GPU's time alone, as a cost table or formula has it."""
    return lambda step: costs.step_ns(step.decodes, step.decode_context, step.longest, step.chunks) / 1e9


@dataclass(frozen=True)
class PricedSteps:
    """Those steps of a log that have a measured time: `rows` are their places in it, `kind` indexes KINDS, times are
    seconds. `asynchronous` says by which rule they were measured."""

    log: LoggedSteps
    asynchronous: bool
    rows: Ints
    kind: Ints
    measured_s: Floats
    priced_s: Floats

    @property
    def errors_percent(self) -> Floats:
        """(priced - measured) / measured."""
        return 100 * (self.priced_s - self.measured_s) / self.measured_s


def priced_steps(log: LoggedSteps, price: Price) -> PricedSteps:
    """Every step whose time the log shows, with its price."""
    kind = _kinds(log)
    asynchronous = bool(log.pipelined.any())
    measured = _between_outputs(log, kind) if asynchronous else log.output_ready_s - log.schedule_end_s
    rows = np.flatnonzero((kind >= 0) & (measured > 0))
    prices = [price(_step(log, int(row))) for row in rows]
    return PricedSteps(log, asynchronous, rows, kind[rows], measured[rows], np.array(prices, dtype=np.float64))


def _step(log: LoggedSteps, row: int) -> Step:
    chunks = tuple((before, tokens) for _, before, tokens in log.chunks[row])
    return Step(int(log.decodes[row]), int(log.decode_context[row]), int(log.longest[row]), chunks)


def _kinds(log: LoggedSteps) -> Ints:
    """Index into KINDS, -1 for a step that runs nothing."""
    chunks, decodes = log.num_chunks > 0, log.decodes > 0
    choices = [~chunks & ~decodes, ~chunks, ~decodes, log.tokens <= SMALL_STEP]
    return np.select(choices, [-1, 0, 3, 1], default=2)


def _between_outputs(log: LoggedSteps, kind: Ints) -> Floats:
    """From the output before to its own, of the steps that the module's docstring allows; NaN of others."""
    measured = np.full(len(log), np.nan)
    measured[1:] = np.diff(log.output_ready_s)
    decoding: NDArray[np.bool_] = kind == 0
    alone = decoding.copy()
    alone[1:] &= decoding[:-1] & (log.step[1:] == log.step[:-1] + 1)
    alone[1:] &= log.schedule_end_s[1:] < log.output_ready_s[:-1]
    alone[:-1] &= decoding[1:]
    alone[[0, -1]] = False
    return np.where(alone, measured, np.nan)


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
    found = [_errors(name, steps, steps.kind == index) for index, name in enumerate(KINDS)]
    rows = [row for row in found if row.count]
    return rows if len(rows) < 2 else [*rows, _errors("all", steps, np.ones(len(steps.rows), np.bool_))]


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
