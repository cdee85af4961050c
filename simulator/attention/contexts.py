"""Stand-ins for the contexts of a decode batch of which only count, mean and longest are known.

A kernel's time depends on every context. Of the summaries that a scheduler can keep up in O(1), the count, the sum
and the longest serve best (docs/decisions/0009). The stand-ins are the quantiles of a lognormal distribution, the usual
shape of context lengths, with the given mean and longest. A kernel serves requests in order, and a long one that starts
late costs time, so long ones should be neither early nor late on the whole: the order is van der Corput's, turned so
that the longest comes three quarters through, which replays random orders without bias.
"""

from functools import lru_cache
from math import log
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Lengths = NDArray[np.float64]
_WIDEST = 6.0  # sigma of the logarithms


def spread_contexts(decodes: int, mean: float, longest: float) -> Lengths:
    """`decodes` context lengths of the given mean, the longest being `longest`, or as near as the shape allows.

    float64 (decodes). Equal ones for `longest` up to the mean; where `longest` is above the sum, the others are 1.
    """
    if decodes > 1 and longest >= decodes * mean:
        contexts = np.ones(decodes)
        contexts[3 * decodes // 4 - 1] = longest
        return contexts
    weights = relative_contexts(decodes, round(longest / mean, 3))
    contexts = np.maximum(weights * mean, 1.0)
    if longest > mean and decodes > 1:
        contexts[contexts.argmax()] = longest  # to the token: a block more can change how keys are split
    return np.asarray(contexts)


@lru_cache(maxsize=4096)
def relative_contexts(decodes: int, ratio: float) -> Lengths:
    """Context lengths as multiples of their mean, the longest being `ratio`."""
    if decodes == 1 or ratio <= 1.0:
        return np.ones(decodes)
    below = _below_largest(decodes)
    sigma, weights = 0.0, np.ones(decodes)
    for _ in range(40):  # Newton: log of the mean weight is convex in sigma, so each step stays short of the root
        mean = weights.mean()
        over = log(mean * ratio)
        if over < 1e-9 or sigma >= _WIDEST:
            break
        sigma = min(sigma - over * mean / (below * weights).mean(), _WIDEST)
        weights = np.exp(sigma * below)
    return np.asarray((weights / weights.mean())[_order(decodes)])


@lru_cache(maxsize=2048)
def _below_largest(count: int) -> Lengths:
    """By how much each of `count` quantiles of the normal distribution is below the largest; negative or 0."""
    normal = NormalDist()
    quantiles = np.array([normal.inv_cdf((place + 0.5) / count) for place in range(count)])
    return np.asarray(quantiles - quantiles.max())


@lru_cache(maxsize=2048)
def _order(count: int) -> NDArray[np.intp]:
    """The places 0..count-1 in the order of their bits read backwards, the last ones moved to three quarters."""
    places = np.arange(count)
    reversed_bits = np.zeros(count)
    scale = 0.5
    while (places > 0).any():
        reversed_bits += scale * (places & 1)
        places = places >> 1
        scale /= 2
    return np.roll(np.argsort(reversed_bits, kind="stable"), 3 * count // 4)
