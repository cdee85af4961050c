"""Means and linear-interpolated percentiles (numpy's default), also of weighted samples without unrolling them."""

import numpy as np

from simulator.trace import Floats, Ints


def percentiles(values: Floats, wanted: tuple[float, ...]) -> list[float]:
    """Percentiles of a sample; NaN if it is empty."""
    if not len(values):
        return [float("nan")] * len(wanted)
    return [float(value) for value in np.percentile(values, wanted)]


def weighted_percentiles(values: Floats, counts: Ints, wanted: tuple[float, ...]) -> list[float]:
    """Percentiles of the sample in which `values[i]` occurs `counts[i]` times; NaN if it is empty."""
    if not len(values):
        return [float("nan")] * len(wanted)
    order = np.argsort(values, kind="stable")
    ordered, upto = values[order], np.cumsum(counts[order])
    results = []
    for percent in wanted:
        place = percent / 100 * (int(upto[-1]) - 1)
        below = int(place)
        low = ordered[np.searchsorted(upto, below, side="right")]
        high = ordered[np.searchsorted(upto, min(below + 1, int(upto[-1]) - 1), side="right")]
        results.append(float(low + (high - low) * (place - below)))
    return results


def weighted_mean(values: Floats, counts: Ints) -> float:
    """Mean of the sample in which `values[i]` occurs `counts[i]` times; NaN if it is empty."""
    return float(np.dot(values, counts) / counts.sum()) if len(values) else float("nan")
