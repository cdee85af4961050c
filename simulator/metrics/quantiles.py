"""Means and linear-interpolated percentiles (numpy's default), also of weighted samples without unrolling them."""

import numpy as np

from simulator.trace import Floats, Ints

_SORTED_AT_ONCE = 2**16
_BINS = 2**14


def percentiles(values: Floats, wanted: tuple[float, ...]) -> list[float]:
    """Percentiles of a sample; NaN if it is empty."""
    if not len(values):
        return [float("nan")] * len(wanted)
    return [float(value) for value in np.percentile(values, wanted)]


def weighted_quantiles(values: Floats, counts: Ints, probabilities: Floats) -> Floats:
    """Linear-interpolated quantiles of `values`, each taken `counts` times, as numpy has of repeated ones.

    NaN where there are none. O(n) on average.
    """
    total = int(counts.sum())
    if not total:
        return np.full(len(probabilities), np.nan)
    position = probabilities * (total - 1)
    rank = np.floor(position).astype(np.int64)
    below, above = np.split(_ranked(values, counts, np.append(rank, np.minimum(rank + 1, total - 1))), 2)
    return np.asarray(below + (above - below) * (position - rank), dtype=np.float64)


def _ranked(values: Floats, counts: Ints, ranks: Ints) -> Floats:
    """The values at places `ranks` (from 0) of the ascending sample.

    Long samples are first counted in equal bins, and only the bins that hold a wanted place are sorted, in parts.
    """
    low, high = values.min(), values.max()
    if len(values) <= _SORTED_AT_ONCE or not high > low:
        return _ranked_by_sorting(values, counts, ranks)
    bins = np.empty(len(values), np.int16)
    held, entries = np.zeros(_BINS), np.zeros(_BINS, np.int64)
    for start in range(0, len(values), _SORTED_AT_ONCE):  # in parts, for the sake of memory
        part = slice(start, start + _SORTED_AT_ONCE)
        bins[part] = np.minimum((values[part] - low) * (_BINS / (high - low)), _BINS - 1)
        held += np.bincount(bins[part], weights=counts[part], minlength=_BINS)
        entries += np.bincount(bins[part], minlength=_BINS)
    found = np.empty(len(ranks))
    home = np.searchsorted(np.cumsum(held).astype(np.int64), ranks, side="right")
    wanted = np.unique(home)
    number = np.cumsum(entries[wanted]) // (8 * _SORTED_AT_ONCE)
    for group in np.unique(number):
        sorted_here = np.zeros(_BINS, np.bool_)
        sorted_here[wanted[number == group]] = True
        left_out = np.cumsum(np.where(sorted_here, 0, held)).astype(np.int64)
        inside, here = sorted_here[bins], sorted_here[home]
        found[here] = _ranked_by_sorting(values[inside], counts[inside], ranks[here] - left_out[home[here]])
    return found


def _ranked_by_sorting(values: Floats, counts: Ints, ranks: Ints) -> Floats:
    order = np.argsort(values, kind="stable")
    places = np.searchsorted(np.cumsum(counts[order]), ranks, side="right")
    return np.asarray(values[order][places], dtype=np.float64)


def weighted_percentiles(values: Floats, counts: Ints, wanted: tuple[float, ...]) -> list[float]:
    """Percentiles of the sample in which `values[i]` occurs `counts[i]` times; NaN if it is empty."""
    return [float(value) for value in weighted_quantiles(values, counts, np.array(wanted) / 100)]


def weighted_mean(values: Floats, counts: Ints) -> float:
    """Mean of the sample in which `values[i]` occurs `counts[i]` times; NaN if it is empty."""
    return float(np.dot(values, counts) / counts.sum()) if counts.any() else float("nan")
