"""Token times out of a run's log, exactly and without one value a token.

Inside a stay in the decode cohort the gaps between a request's tokens are the gaps between consecutive ticks, and all
members of the cohort share them: one weighted value a tick holds what may be hundreds of millions of latencies.
"""

import numpy as np

from simulator.results import TokenGaps
from simulator.runlog import LoggedRun
from simulator.trace import Ints

NS_PER_S = 1e9  # divided by, not multiplied with its inverse: 8000000 ns are 0.008 s to the last bit


def tick_iterations(run: LoggedRun) -> Ints:
    """The iteration of each tick of the decode clock."""
    return np.flatnonzero(run.iterations["num_decodes"])


def token_gaps(run: LoggedRun) -> TokenGaps:
    """Every gap between consecutive tokens of one request, weighted by the requests that saw it; in order of time."""
    ends = run.iterations["end_ns"]
    ticks = tick_iterations(run)
    shared = _shared_gap_counts(run, ticks)
    first = run.stays["previous"] >= 0
    entry_ticks = ticks[run.stays["first_tick"][first]]
    again = run.emissions["previous"] >= 0
    later = np.concatenate([ticks[1:], entry_ticks, run.emissions["iteration"][again]])
    earlier = np.concatenate([ticks[:-1], run.stays["previous"][first], run.emissions["previous"][again]])
    single = np.ones(len(later) - len(shared), np.int64)
    counts = np.concatenate([shared, single])
    seen = counts > 0
    later, earlier, counts = later[seen], earlier[seen], counts[seen]
    order = np.argsort(later, kind="stable")
    later, earlier = later[order], earlier[order]
    return TokenGaps(ends[later] / NS_PER_S, (ends[later] - ends[earlier]) / NS_PER_S, counts[order])


def _shared_gap_counts(run: LoggedRun, ticks: Ints) -> Ints:
    """For each tick but the first: cohort members that were in the same stay at the tick before."""
    members = run.iterations["num_decodes"][ticks]
    joined = np.bincount(run.stays["first_tick"], minlength=len(ticks))[: len(ticks)]
    return (members - joined)[1:]


def longest_gaps(run: LoggedRun, requests: int) -> Ints:
    """Longest gap between two tokens of each request, nanoseconds; 0 where it has fewer than two tokens."""
    ends, ticks = run.iterations["end_ns"], tick_iterations(run)
    longest = np.zeros(requests, np.int64)
    stays = run.stays
    order = np.argsort(stays["first_tick"], kind="stable")
    request, start, count = (stays[name][order] for name in ("request", "first_tick", "ticks"))
    previous = stays["previous"][order]
    inner = count > 1
    if inner.any():
        between = np.append(np.diff(ends[ticks]), 0)  # a last element, so that every slice end is an index
        bounds = np.stack([start[inner], start[inner] + count[inner] - 1], axis=1).ravel()
        np.maximum.at(longest, request[inner], np.maximum.reduceat(between, bounds)[::2])
    entered = previous >= 0
    np.maximum.at(longest, request[entered], ends[ticks[start[entered]]] - ends[previous[entered]])
    again = run.emissions["previous"] >= 0
    gaps = ends[run.emissions["iteration"][again]] - ends[run.emissions["previous"][again]]
    np.maximum.at(longest, run.emissions["request"][again], gaps)
    return longest


def token_times_ns(run: LoggedRun, requests: int) -> list[list[int]]:
    """The time of every token of every request; O(tokens), for tests and for looking at single requests."""
    ends = run.iterations["end_ns"].tolist()
    ticks = tick_iterations(run).tolist()
    times: list[list[int]] = [[] for _ in range(requests)]
    for index, first, count in zip(
        *(run.stays[name].tolist() for name in ("request", "first_tick", "ticks")), strict=True
    ):
        times[index] += [ends[tick] for tick in ticks[first : first + count]]
    for index, iteration in zip(run.emissions["request"].tolist(), run.emissions["iteration"].tolist(), strict=True):
        times[index].append(ends[iteration])
    return [sorted(token_times) for token_times in times]
