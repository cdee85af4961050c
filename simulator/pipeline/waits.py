"""What the bubbles of a pipeline are worked out from: why nothing was planned at any time, and the oldest
micro-batch then."""

import numpy as np

from simulator.pipeline.log import ARRIVALS, DEPENDENCY, DRAIN, FULL, HOST, NOT_READY, StageTimes
from simulator.trace import Ints

_STATES = (FULL, DEPENDENCY, DRAIN, NOT_READY, ARRIVALS, HOST)


class States:
    """Why nothing was planned, as a function of time: nanoseconds of each state up to any time."""

    def __init__(self, from_ns: Ints, state: Ints) -> None:
        self._from_ns, self._state = from_ns, state
        lasted = np.diff(from_ns)
        self._up_to = {which: np.append(0, np.cumsum(np.where(state[:-1] == which, lasted, 0))) for which in _STATES}

    def time_ns(self, which: int, begin_ns: Ints, end_ns: Ints) -> Ints:
        """How long it was `which` in each interval; 0 where that ends before it begins."""
        inside = self._until(which, np.maximum(begin_ns, end_ns)) - self._until(which, begin_ns)
        return np.asarray(inside)

    def before(self, at_ns: Ints) -> Ints:
        """The state just before each time, or before the host's work that ended then."""
        place = np.searchsorted(self._from_ns, at_ns, side="left") - 1
        place -= self._state[np.maximum(place, 0)] == HOST
        return np.asarray(np.where(place >= 0, self._state[np.maximum(place, 0)], ARRIVALS))

    def _until(self, which: int, at_ns: Ints) -> Ints:
        place = np.maximum(np.searchsorted(self._from_ns, at_ns, side="right") - 1, 0)
        beyond = np.where(self._state[place] == which, np.maximum(at_ns - self._from_ns[place], 0), 0)
        return np.asarray(self._up_to[which][place] + beyond)


class Holding:
    """How micro-batches hold up those behind them while as many as may be are under way.

    Of each micro-batch: `sends_ns`, how long it is sent in all; how long the first stage waits for it so, before it is
    planned (`planned_ns`) and for tokens from then on (`fed_ns`), and both together over a round (`round_ns`).
    """

    def __init__(self, times: StageTimes, states: States) -> None:
        self._times, self._complete_ns = times, times.end_ns[:, -1]
        self._longest = (times.end_ns - times.start_ns).max(axis=1)
        self.sends_ns: Ints = (times.sent_ns - times.end_ns).sum(axis=1)
        starts, planned = times.start_ns[:, 0], times.planned_ns
        begin = np.append(starts[:1], times.end_ns[:-1, 0])
        self.planned_ns = states.time_ns(FULL, begin, planned)
        fed = np.clip(times.depends_ns, planned, starts)
        self.fed_ns = np.where(times.followed, overlap(begin, planned, fed), 0)
        up_to = np.append(np.zeros(times.stages, np.int64), np.cumsum(self.planned_ns + self.fed_ns))
        self.round_ns = up_to[times.stages :] - up_to[: -times.stages]

    def oldest(self, at_ns: Ints) -> Ints:
        """The oldest micro-batch that is not complete at each time, or the last of all."""
        place = np.searchsorted(self._complete_ns, at_ns, side="right")
        return np.minimum(place, len(self._complete_ns) - 1)

    def longer(self, oldest: Ints, stage: int) -> Ints:
        """How much longer than `stage` another one takes over it."""
        took = self._times.end_ns[oldest, stage] - self._times.start_ns[oldest, stage]
        return np.asarray(self._longest[oldest] - took)


def overlap(from_ns: Ints, begin_ns: Ints, end_ns: Ints) -> Ints:
    """How much of each interval lies behind `from_ns`."""
    return np.asarray(np.maximum(end_ns - np.maximum(begin_ns, from_ns), 0))


def scaled(values: Ints, part: Ints, whole: Ints) -> Ints:
    """`values` x `part` / `whole`, rounded down; 0 of nothing. Exact up to products of 2^53."""
    return np.asarray((values.astype(np.float64) * part / np.maximum(whole, 1)).astype(np.int64))
