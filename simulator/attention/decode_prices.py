"""The price of decodes alone: their replay over stand-in contexts, by pieces straight in the sum of contexts."""

from bisect import bisect_right
from collections.abc import Callable

from simulator.attention.classes import MEANS, SPREAD_ENDS, SPREADS, count_class, spread_until
from simulator.attention.correction import Correction
from simulator.attention.decodes import replay_decodes
from simulator.attention.kernel_times import KernelTimes
from simulator.attention.kernels import Kernel

Piece = tuple[float, float, float]
"""(constant, slope, until): constant + slope x sum of contexts, for sums below `until`."""


_EXACT_SPLIT = 48  # where the whole batch is split or not, each number of decodes counts


class DecodePrices:
    """Prices in units of 1 / `scale` microseconds, plus `fixed(decodes)`; each is made when first needed."""

    def __init__(
        self,
        kernel: Kernel,
        times: KernelTimes,
        correction: Correction,
        scale: float = 1.0,
        fixed: Callable[[int], float] = lambda _: 0.0,
    ) -> None:
        self._kernel, self._times, self._correction = kernel, times, correction
        self._scale, self._fixed = scale, fixed
        self._exact = _EXACT_SPLIT if kernel.alone.uniform_splits else 16
        self._replayed: dict[tuple[int, int, int], float] = {}
        self._lines: dict[tuple[int, int], tuple[list[int], list[Piece | None]]] = {}

    def piece(self, decodes: int, context: int, longest: int) -> Piece:
        """Of `decodes` decodes whose contexts sum to `context`, and as they all grow alike."""
        spread = bisect_right(SPREAD_ENDS, longest * decodes * 100 // context)
        line = self._lines.get((decodes, spread))
        if line is None:
            count = count_class(decodes, self._exact)
            line = self._lines[decodes, spread] = [count * mean for mean in MEANS], [None] * (len(MEANS) + 1)
        bounds, pieces = line
        place = bisect_right(bounds, context)
        piece = pieces[place]
        if piece is None:
            piece = pieces[place] = self._make_piece(decodes, spread, place)
        if not spread:
            return piece
        until = spread_until(spread, decodes, context, longest)
        return piece if until >= piece[2] else (piece[0], piece[1], until)

    def _make_piece(self, decodes: int, spread: int, place: int) -> Piece:
        count, low = count_class(decodes, self._exact), min(max(place - 1, 0), len(MEANS) - 2)
        first, second = (self._at(count, spread, end) for end in (low, low + 1))
        slope = max((second - first) / (count * (MEANS[low + 1] - MEANS[low])), 0.0)
        constant = first - slope * count * MEANS[low]
        until = count * MEANS[place] if place < len(MEANS) else float("inf")
        return self._fixed(decodes) + self._scale * constant, self._scale * slope, until

    def _at(self, count: int, spread: int, place: int) -> float:
        """Microseconds of decodes of the mean `MEANS[place]`."""
        key = (count, spread, place)
        price = self._replayed.get(key)
        if price is None:
            mean = MEANS[place]
            replayed = replay_decodes(self._kernel, self._times, count, mean, mean * SPREADS[spread])
            price = self._replayed[key] = replayed * self._correction.at(count, mean)
        return price
