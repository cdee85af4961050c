"""Means and linear-interpolated percentiles (numpy's default), also of weighted samples without unrolling them."""

import numpy as np

from simulator.trace import Floats, Ints


def percentiles(values: Floats, wanted: tuple[float, ...]) -> list[float]:
    """Percentiles of a sample; NaN if it is empty."""
    if not len(values):
        return [float("nan")] * len(wanted)
    return [float(value) for value in np.percentile(values, wanted)]


def weighted_quantiles(values: Floats, counts: Ints, probabilities: Floats) -> Floats:
    """Linear-interpolated quantiles of `values`, each taken `counts` times, as numpy has of repeated ones.

    NaN where there are none. O(n log n), O(n) where `values` ascend.
    """
    total = int(counts.sum())
    if not total:
        return np.full(len(probabilities), np.nan)
    order = np.argsort(values, kind="stable")
    ordered, ends = values[order], np.cumsum(counts[order])
    position = probabilities * (total - 1)
    rank = np.floor(position).astype(np.int64)
    below = ordered[np.searchsorted(ends, rank, side="right")]
    above = ordered[np.searchsorted(ends, np.minimum(rank + 1, total - 1), side="right")]
    return np.asarray(below + (above - below) * (position - rank), dtype=np.float64)


def weighted_percentiles(values: Floats, counts: Ints, wanted: tuple[float, ...]) -> list[float]:
    """Percentiles of the sample in which `values[i]` occurs `counts[i]` times; NaN if it is empty."""
    return [float(value) for value in weighted_quantiles(values, counts, np.array(wanted) / 100)]


def weighted_mean(values: Floats, counts: Ints) -> float:
    """Mean of the sample in which `values[i]` occurs `counts[i]` times; NaN if it is empty."""
    return float(np.dot(values, counts) / counts.sum()) if len(values) else float("nan")
