"""By how much measured calls exceed their replay."""

from bisect import bisect_right
from collections.abc import Callable
from math import log


class Correction:
    """By how much measured calls of equal decodes exceed their replay: factors over (decodes, mean context).

    Straight between measured points on logarithmic axes, constant outside. Each point is replayed when first needed.
    """

    def __init__(self, measured: dict[int, dict[int, float]], replay: Callable[[int, int], float]) -> None:
        """`measured` microseconds by number of decodes, then by context; empty: no correction. `replay`: the same."""
        self._counts = sorted(measured)
        self._rows = [(count, sorted(measured[count]), measured[count]) for count in self._counts]
        self._replay = replay
        self._factors: dict[tuple[int, int], float] = {}

    def at(self, decodes: int, mean: float) -> float:
        """The factor for `decodes` decodes of `mean` context."""
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
            factor = self._factors[count, context] = measured[context] / self._replay(count, context)
        return factor


NO_CORRECTION = Correction({}, lambda *_: 1.0)


def _share(at: float, low: float, high: float) -> float:
    """Where `at` lies between `low` and `high` on a logarithmic axis, from 0 to 1."""
    return 0.0 if high <= low else min(max(log(at / low) / log(high / low), 0.0), 1.0)
