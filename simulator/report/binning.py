"""Runs of any length in a few hundred numbers: weighted quantiles and means over time bins, in numpy."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.metrics.quantiles import weighted_quantiles
from simulator.results import Gaps
from simulator.trace import Floats, Ints

IDLE = 1e-6  # the share of a bin below which it ran nothing; sums of 10^7 steps are not exact


def gap_bands(gaps: Gaps, edges: Floats, probabilities: Floats) -> Floats:
    """ITL quantiles in seconds of the gaps that end in each bin: (bins, probabilities), NaN where none does.

    A bin holds its first edge; the last one holds both. O(n log n).
    """
    cuts = np.searchsorted(gaps.end_s, edges)
    cuts[-1] = np.searchsorted(gaps.end_s, edges[-1], side="right")
    bands = np.full((len(edges) - 1, len(probabilities)), np.nan)
    for row, (first, last) in enumerate(pairwise(cuts)):
        if first < last:
            bands[row] = weighted_quantiles(gaps.gap_s[first:last], gaps.count[first:last], probabilities)
    return bands


def alone(values: Floats) -> NDArray[np.bool_]:
    """Which bins have a value while the bins beside them have none: a line from bin to bin does not show those."""
    known = np.concatenate(([False], np.isfinite(values), [False]))
    return np.asarray(known[1:-1] & ~known[:-2] & ~known[2:])


def step_means(start_s: Floats, end_s: Floats, columns: Sequence[Floats], edges: Floats) -> list[Floats]:
    """Each column's mean over the steps under way in a bin, weighted by the time that each ran in it.

    One value a bin: 0 where nothing ran, NaN after the last step. Steps may overlap (pipeline stages,
    replicas) and span bins. O(n) for steps in order, else O(n log n).
    """
    seen = (end_s > edges[0]) & (start_s < edges[-1])
    starts, ends, origin = start_s[seen] - edges[0], end_s[seen] - edges[0], edges - edges[0]
    by_start, by_end = _order(starts), _order(ends)
    busy = _integrals(starts, ends, np.ones_like(starts), by_start, by_end, origin)
    idle = busy <= IDLE * np.diff(edges)
    over = edges[:-1] >= (end_s.max() if len(end_s) else -np.inf)
    means = []
    for values in columns:
        area = _integrals(starts, ends, values[seen], by_start, by_end, origin)
        mean = np.where(idle, 0.0, area / np.where(idle, 1.0, busy))
        means.append(np.where(over, np.nan, mean))
    return means


def _order(times: Floats) -> Ints | slice:
    return slice(None) if bool(np.all(np.diff(times) >= 0)) else np.argsort(times, kind="stable")


def _integrals(
    starts: Floats, ends: Floats, values: Floats, by_start: Ints | slice, by_end: Ints | slice, edges: Floats
) -> Floats:
    """The integral over each bin of the sum of the values of the steps under way."""
    begun = _ramp(starts[by_start], values[by_start], edges)
    return np.diff(begun - _ramp(ends[by_end], values[by_end], edges))


def _ramp(times: Floats, values: Floats, at: Floats) -> Floats:
    """The sum over `times` before t of value x (t - time), for each t of `at`; `times` ascend."""
    passed = np.searchsorted(times, at)
    heights = np.concatenate(([0.0], np.cumsum(values)))[passed]
    moments = np.concatenate(([0.0], np.cumsum(values * times)))[passed]
    return np.asarray(heights * at - moments, dtype=np.float64)


def busiest_window(arrival_s: Floats, tokens: Floats, length_s: float) -> float:
    """The start in seconds of the window of `length_s` in which most tokens arrive; NaN without arrivals."""
    if not len(arrival_s):
        return float("nan")
    order = np.argsort(arrival_s, kind="stable")
    arrivals, sums = arrival_s[order], np.concatenate(([0.0], np.cumsum(tokens[order])))
    inside = sums[np.searchsorted(arrivals, arrivals + length_s)] - sums[:-1]
    return float(arrivals[int(np.argmax(inside))])
