"""By how much measured calls exceed their replay."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from math import log
from statistics import median
from typing import TypeVar

from simulator.attention.calls import MeasuredCall

Place = TypeVar("Place", int, float)
_UNLIKE = 2.5
"""Longest over mean from which contexts count as wholly unlike."""


class Correction:
    """By how much measured calls of decodes alone exceed their replay.

    Factors over (decodes, mean context), straight between measured points on logarithmic axes, constant outside; one
    set for equal decodes, one for unlike decodes. Of unlike ones a point is the median over their longest contexts,
    and numbers that the kernel treats otherwise (`form`) do not serve each other. Each call is replayed when first
    needed.
    """

    def __init__(
        self,
        calls: Sequence[MeasuredCall],
        replay: Callable[[int, float, float], float],
        form: Callable[[int], int] = lambda _: 0,
    ) -> None:
        """`replay`: microseconds of (decodes, mean, longest); `form`: which of its ways the kernel takes for them."""
        self._replay, self._form = replay, form
        self._equal: dict[int, dict[int, float]] = {}
        self._unlike: dict[int, dict[float, list[MeasuredCall]]] = {}
        for call in calls:
            if call.longest * call.decodes == call.context:
                self._equal.setdefault(call.decodes, {})[call.longest] = call.time_us
            elif call.longest * call.decodes >= _UNLIKE * call.context:
                of_count = self._unlike.setdefault(call.decodes, {})
                of_count.setdefault(call.context / call.decodes, []).append(call)
        self._counts = sorted(self._equal)
        self._contexts = {count: sorted(row) for count, row in self._equal.items()}
        self._factors: dict[tuple[int, int], float] = {}
        self._unlike_factors: dict[tuple[int, float], float] = {}

    def at(self, decodes: int, mean: float, longest: float) -> float:
        """The factor for `decodes` decodes of these contexts."""
        equal = self._of_equal(decodes, mean)
        share = min((longest / mean - 1) / (_UNLIKE - 1), 1.0)
        if share <= 0:
            return equal
        return (1 - share) * equal + share * self._of_unlike(decodes, mean)

    def _of_unlike(self, decodes: int, mean: float) -> float:
        form = self._form(decodes)
        counts = sorted(count for count in self._unlike if self._form(count) == form)
        if not counts:
            return 1.0
        low, high, share = _between(counts, decodes)
        return (1 - share) * self._unlike_row(low, mean) + share * self._unlike_row(high, mean)

    def _unlike_row(self, count: int, mean: float) -> float:
        means = self._unlike[count]
        low, high, share = _between(sorted(means), mean)
        return (1 - share) * self._unlike_factor(count, low) + share * self._unlike_factor(count, high)

    def _unlike_factor(self, count: int, mean: float) -> float:
        factor = self._unlike_factors.get((count, mean))
        if factor is None:
            factor = self._unlike_factors[count, mean] = median(
                call.time_us / self._replay(count, mean, call.longest) for call in self._unlike[count][mean]
            )
        return factor

    def _of_equal(self, decodes: int, mean: float) -> float:
        if not self._equal:
            return 1.0
        low, high, share = _between(self._counts, decodes)
        return (1 - share) * self._row(low, mean) + share * self._row(high, mean)

    def _row(self, count: int, mean: float) -> float:
        low, high, share = _between(self._contexts[count], mean)
        return (1 - share) * self._factor(count, low) + share * self._factor(count, high)

    def _factor(self, count: int, context: int) -> float:
        factor = self._factors.get((count, context))
        if factor is None:
            measured_us = self._equal[count][context]
            factor = self._factors[count, context] = measured_us / self._replay(count, context, context)
        return factor


NO_CORRECTION = Correction((), lambda *_: 1.0)


def _between(places: Sequence[Place], at: float) -> tuple[Place, Place, float]:
    """The ascending `places` below and above `at`, and where it lies between them on a logarithmic axis: 0 to 1."""
    above = min(max(bisect_right(places, at), 1), len(places) - 1)
    low, high = places[max(above - 1, 0)], places[above]
    return low, high, 0.0 if high <= low else min(max(log(at / low) / log(high / low), 0.0), 1.0)
