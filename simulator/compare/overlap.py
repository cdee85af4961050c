"""How far the stages of a pipeline overlap: when its steps were scheduled and had outputs, measured and simulated.

Of a step the log shows when it was scheduled and when its output was there: its *latency*. Several are under way at
a time, so what a step adds is the *interval* from the output before to its own. Idling is no interval: the step was
scheduled after the output before. How long the stages worked on a step is not logged; that of the logged steps is
what the clock of the simulation says of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.compare.steps import SMALL_STEP
from simulator.engines.profile import Mode
from simulator.pipeline.hosted import HostedPipelineTimes
from simulator.pipeline.replay import Replayed, replay
from simulator.results import PolicyResult
from simulator.step_log_file import LoggedSteps
from simulator.trace import Floats, Ints

KINDS = ("decodes alone", f"with prefills, up to {SMALL_STEP} tokens", "larger")
ALL = "all"
STATISTICS: dict[str, Callable[[Floats], Any]] = {
    "mean": np.mean,
    "p50": lambda values: np.percentile(values, 50),
    "p90": lambda values: np.percentile(values, 90),
}


@dataclass(frozen=True)
class Spans:
    """The steps of a run that ran something, in order: index into KINDS, seconds when they were scheduled and had their
    output, and for how long the stages together were at work on each."""

    kind: Ints
    scheduled_s: Floats
    output_s: Floats
    working_s: Floats

    @property
    def latency_s(self) -> Floats:
        """From a step's scheduling to its output."""
        return self.output_s - self.scheduled_s

    @cached_property
    def interval_s(self) -> Floats:
        """From the output before to the step's own; NaN after idling and of the first."""
        intervals = np.full(len(self.output_s), np.nan)
        intervals[1:] = np.diff(self.output_s)
        intervals[1:][self.scheduled_s[1:] >= self.output_s[:-1]] = np.nan
        return intervals

    @property
    def busy_s(self) -> float:
        """For how long anything was under way."""
        idle = np.maximum(self.scheduled_s[1:] - np.maximum.accumulate(self.output_s)[:-1], 0.0)
        return float(self.output_s.max() - self.scheduled_s[0] - idle.sum())

    @property
    def steps_under_way(self) -> float:
        """Mean number of steps under way while any is."""
        return float(self.latency_s.sum()) / self.busy_s

    @property
    def stages_at_work(self) -> float:
        """Mean number of stages at work while any step is under way."""
        return float(self.working_s.sum()) / self.busy_s


@dataclass(frozen=True)
class Overlap:
    """A pipeline's steps, measured and simulated. `late_s`: by how much outputs of the logged steps are predicted too
    late, given when they were scheduled and the outputs before."""

    measured: Spans
    simulated: Spans
    late_s: Floats

    def figures(self) -> Iterator[tuple[str, str, float, float]]:
        """(name, kind of step, measured, simulated): counts, seconds, and means over the time that anything was under
        way; of errors of single outputs only the simulated side is there."""
        nan = float("nan")
        for place, kind in enumerate((*KINDS, ALL)):
            ours, theirs = (_of_kind(side, place) for side in (self.measured, self.simulated))
            yield "steps", kind, float(ours.sum()), float(theirs.sum())
            for name in ("latency", "interval"):
                pair = [
                    getattr(side, f"{name}_s")[rows] for side, rows in ((self.measured, ours), (self.simulated, theirs))
                ]
                for statistic, of_values in STATISTICS.items():
                    yield f"{name}_{statistic}_s", kind, _told(of_values, pair[0]), _told(of_values, pair[1])
            for statistic in ("mean", "p50"):
                late = _told(STATISTICS[statistic], self.late_s[ours])
                yield f"output_error_{statistic}_s", kind, nan, late
        yield "steps_under_way", ALL, self.measured.steps_under_way, self.simulated.steps_under_way
        yield "stages_at_work", ALL, self.measured.stages_at_work, self.simulated.stages_at_work


def overlap_of(
    log: LoggedSteps, times: HostedPipelineTimes, result: PolicyResult, mode: Mode, *, in_flight: bool
) -> Overlap | None:
    """The overlap of a logged pipeline and its simulation under `mode`, `times` being a fresh clock of the simulated
    one; None where either has no step. `in_flight` is of `simulator.pipeline.replay`."""
    simulated = _simulated(result, mode)
    if not log.tokens.any() or not len(simulated.kind):
        return None
    logged = replay(log, times, in_flight=in_flight)
    return Overlap(_measured(log, logged), simulated, logged.late_s)


def _measured(log: LoggedSteps, logged: Replayed) -> Spans:
    rows = logged.rows
    return Spans(
        _kinds(log.num_chunks[rows], log.tokens[rows]),
        log.schedule_end_s[rows],
        log.output_ready_s[rows],
        logged.working_s.sum(axis=1),
    )


def _simulated(result: PolicyResult, mode: Mode) -> Spans:
    stages, rows = result.stages, result.iterations
    assert stages is not None, "a pipeline's run has the times of its stages"
    chunks, decodes = rows["num_prefills"], rows["num_decodes"]
    tokens = decodes + rows["prefill_tokens"]
    schedule_ns = np.array([mode.schedule.ns(count) for count in (decodes + chunks).tolist()], dtype=np.int64)
    ran = tokens > 0
    return Spans(
        _kinds(chunks, tokens)[ran],
        1e-9 * (stages.planned_ns + schedule_ns)[ran],
        np.asarray(rows["end_s"], dtype=np.float64)[ran],
        1e-9 * (stages.end_ns - stages.start_ns).sum(axis=1)[ran],
    )


def _kinds(chunks: Ints, tokens: Ints) -> Ints:
    return np.asarray(np.select([chunks == 0, tokens <= SMALL_STEP], [0, 1], default=2))


def _of_kind(side: Spans, place: int) -> NDArray[np.bool_]:
    """Which steps are of one of KINDS, by its place; all beyond the last."""
    return np.asarray((side.kind == place) | (place == len(KINDS)))


def _told(statistic: Callable[[Floats], Any], values: Floats) -> float:
    """Of the values that are known; NaN where there are none."""
    known = values[~np.isnan(values)]
    return float(statistic(known)) if len(known) else float("nan")
