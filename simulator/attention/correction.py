"""By how much measured calls exceed their replay."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from math import log
from statistics import median

from simulator.attention.calls import MeasuredCall

_UNLIKE = 2.5
"""Longest over mean from which contexts count as wholly unlike."""


class Correction:
    """By how much measured calls of decodes alone exceed their replay.

    Of equal decodes: factors over (decodes, mean context), straight between measured points on logarithmic axes,
    constant outside. Of unlike decodes: one factor for each number of them, the median of its calls; numbers that the
    kernel treats otherwise (`form`) do not serve each other. Each call is replayed when first needed.
    """

    def __init__(
        self,
        calls: Sequence[MeasuredCall],
        replay: Callable[[int, float, float], float],
        form: Callable[[int], int] = lambda _: 0,
    ) -> None:
        """`replay`: microseconds of (decodes, mean, longest); `form`: which of its ways the kernel takes for them."""
        self._replay, self._form = replay, form
        measured: dict[int, dict[int, float]] = {}
        self._unlike: dict[int, list[MeasuredCall]] = {}
        for call in calls:
            if call.longest * call.decodes == call.context:
                measured.setdefault(call.decodes, {})[call.longest] = call.time_us
            elif call.longest * call.decodes >= _UNLIKE * call.context:
                self._unlike.setdefault(call.decodes, []).append(call)
        self._counts = sorted(measured)
        self._rows = [(count, sorted(measured[count]), measured[count]) for count in self._counts]
        self._factors: dict[tuple[int, int], float] = {}
        self._unlike_factors: dict[int, float] = {}

    def at(self, decodes: int, mean: float, longest: float) -> float:
        """The factor for `decodes` decodes of these contexts."""
        equal = self._of_equal(decodes, mean)
        share = min((longest / mean - 1) / (_UNLIKE - 1), 1.0)
        if share <= 0:
            return equal
        return (1 - share) * equal + share * self._of_unlike(decodes)

    def _of_unlike(self, decodes: int) -> float:
        form = self._form(decodes)
        counts = sorted(count for count in self._unlike if self._form(count) == form)
        if not counts:
            return 1.0
        above = min(max(bisect_right(counts, decodes), 1), len(counts) - 1)
        low, high = counts[max(above - 1, 0)], counts[above]
        share = _share(decodes, low, high)
        return (1 - share) * self._unlike_factor(low) + share * self._unlike_factor(high)

    def _unlike_factor(self, count: int) -> float:
        factor = self._unlike_factors.get(count)
        if factor is None:
            factor = self._unlike_factors[count] = median(
                call.time_us / self._replay(count, call.context / count, call.longest) for call in self._unlike[count]
            )
        return factor

    def _of_equal(self, decodes: int, mean: float) -> float:
        if not self._counts:
            return 1.0
        above = min(max(bisect_right(self._counts, decodes), 1), len(self._counts) - 1)
        low, high = max(above - 1, 0), above
        share = _share(decodes, self._counts[low], self._counts[high])
        return (1 - share) * self._row(low, mean) + share * self._row(high, mean)

    def _row(self, place: int, mean: float) -> float:
        count, contexts, measured = self._rows[place]
        above = min(max(bisect_right(contexts, mean), 1), len(contexts) - 1)
        low, high = contexts[max(above - 1, 0)], contexts[above]
        share = _share(mean, low, high)
        return (1 - share) * self._factor(count, low, measured) + share * self._factor(count, high, measured)

    def _factor(self, count: int, context: int, measured: dict[int, float]) -> float:
        factor = self._factors.get((count, context))
        if factor is None:
            factor = self._factors[count, context] = measured[context] / self._replay(count, context, context)
        return factor


NO_CORRECTION = Correction((), lambda *_: 1.0)


def _share(at: float, low: float, high: float) -> float:
    """Where `at` lies between `low` and `high` on a logarithmic axis, from 0 to 1."""
    return 0.0 if high <= low else min(max(log(at / low) / log(high / low), 0.0), 1.0)
