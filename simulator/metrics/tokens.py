"""Token times out of a run's log, exactly and without one value a token.

Inside a stay in the decode cohort the gaps between a request's tokens are the gaps between consecutive ticks, and all
members of the cohort share them: one weighted value a tick holds what may be hundreds of millions of latencies.
"""

from functools import cached_property

import numpy as np

from simulator.results import TokenGaps
from simulator.runlog import LoggedRun, narrowed
from simulator.trace import Floats, Ints

NS_PER_S = 1e9  # divided by, not multiplied with its inverse: 8000000 ns are 0.008 s to the last bit


class Ticks:
    """The ticks of the decode clocks, one clock's after the other's: `iteration[k]` of tick k, `gap_ns[k]` to tick
    k + 1, and `sharing[k]` requests that were in the cohort without a break from tick k to k + 1: none where the next
    clock begins. `first` is the first tick of each stay."""

    def __init__(self, run: LoggedRun) -> None:
        decodes = run.iterations["num_decodes"]
        ticks = np.flatnonzero(decodes)
        self.first = run.stays["first_tick"]
        if run.streams is not None:
            streams = run.streams[ticks]
            ticks = ticks[np.argsort(streams, kind="stable")]
            begins = np.append(0, np.cumsum(np.bincount(streams)))
            self.first = self.first + begins[run.stays["stream"]]
        self.iteration = narrowed(ticks)
        sharing = decodes[self.iteration]
        np.subtract.at(sharing, self.first, 1)
        self.sharing: Ints = sharing[1:]
        self.gap_ns: Ints = np.diff(run.iterations["end_ns"][self.iteration])
        if run.streams is not None:
            self.gap_ns[self.sharing == 0] = 0


def single_gaps(run: LoggedRun, ticks: Ticks) -> tuple[Ints, Ints]:
    """Iterations (of the token before, of the token) of each gap that one request has for itself: from whatever token
    came before to the first of a stay, or to the one that completes a prompt again after a preemption."""
    entered, again = run.stays["previous"] >= 0, run.emissions["previous"] >= 0
    earlier = np.concatenate([run.stays["previous"][entered], run.emissions["previous"][again]])
    first = ticks.iteration[ticks.first[entered]]
    return earlier, np.concatenate([first, run.emissions["iteration"][again]])


def gap_sample(run: LoggedRun, ticks: Ticks) -> tuple[Floats, Ints]:
    """Every gap between consecutive tokens of one request: values in seconds, and how often each occurs."""
    earlier, later = single_gaps(run, ticks)
    ends = run.iterations["end_ns"]
    gaps = np.empty(len(ticks.gap_ns) + len(later))
    np.divide(ticks.gap_ns, NS_PER_S, out=gaps[: len(ticks.gap_ns)])
    np.divide(ends[later] - ends[earlier], NS_PER_S, out=gaps[len(ticks.gap_ns) :])
    return gaps, np.append(ticks.sharing, np.ones(len(later), ticks.sharing.dtype))


def token_gaps(run: LoggedRun) -> TokenGaps:
    """Every gap between consecutive tokens of one request, weighted by the requests that saw it; in order of time."""
    ticks = Ticks(run)
    gap_s, count = gap_sample(run, ticks)
    later_ns = run.iterations["end_ns"][np.concatenate([ticks.iteration[1:], single_gaps(run, ticks)[1]])]
    order = np.argsort(later_ns, kind="stable")
    order = order[count[order] > 0]
    return TokenGaps(later_ns[order] / NS_PER_S, gap_s[order], count[order])


class LoggedGaps:
    """The gaps of a run, worked out when they are first asked for."""

    def __init__(self, run: LoggedRun) -> None:
        self._run = run

    @cached_property
    def _gaps(self) -> TokenGaps:
        return token_gaps(self._run)

    @property
    def end_s(self) -> Floats:
        """See `Gaps`."""
        return self._gaps.end_s

    @property
    def gap_s(self) -> Floats:
        """See `Gaps`."""
        return self._gaps.gap_s

    @property
    def count(self) -> Ints:
        """See `Gaps`."""
        return self._gaps.count


def longest_gaps(run: LoggedRun, ticks: Ticks, requests: int) -> Ints:
    """Longest gap between two tokens of each request, nanoseconds; 0 where it has fewer than two tokens."""
    longest = np.zeros(requests, np.int64)
    order = np.argsort(ticks.first, kind="stable")
    request, start, count = run.stays["request"][order], ticks.first[order], run.stays["ticks"][order]
    inner = count > 1
    if inner.any():
        between = np.append(ticks.gap_ns, 0)  # a last element, so that every slice end is an index
        bounds = np.stack([start[inner], start[inner] + count[inner] - 1], axis=1).ravel()
        np.maximum.at(longest, request[inner], np.maximum.reduceat(between, bounds)[::2])
    earlier, later = single_gaps(run, ticks)
    entered, again = run.stays["previous"] >= 0, run.emissions["previous"] >= 0
    whose = np.concatenate([run.stays["request"][entered], run.emissions["request"][again]])
    ends = run.iterations["end_ns"]
    np.maximum.at(longest, whose, ends[later] - ends[earlier])
    return longest


def token_times_ns(run: LoggedRun, requests: int) -> list[list[int]]:
    """The time of every token of every request; O(tokens), for tests and for looking at single requests."""
    ends = run.iterations["end_ns"].tolist()
    ticks = Ticks(run)
    iterations = ticks.iteration.tolist()
    times: list[list[int]] = [[] for _ in range(requests)]
    for index, first, count in zip(
        run.stays["request"].tolist(), ticks.first.tolist(), run.stays["ticks"].tolist(), strict=True
    ):
        times[index] += [ends[tick] for tick in iterations[first : first + count]]
    for index, iteration in zip(run.emissions["request"].tolist(), run.emissions["iteration"].tolist(), strict=True):
        times[index].append(ends[iteration])
    return [sorted(token_times) for token_times in times]
