"""The price of decodes alone: their replay over stand-in contexts, by pieces straight in the sum of contexts.

While a batch grows, every context by one token a step, its number and the excess of its longest context over the mean
stay. So prices are replayed for each number, for some excesses and for some means, and are straight between these.
"""

from bisect import bisect_right
from collections.abc import Callable

from simulator.attention.classes import EXCESSES, MEANS, count_class
from simulator.attention.correction import Correction
from simulator.attention.decodes import replay_decodes
from simulator.attention.kernel_times import KernelTimes
from simulator.attention.kernels import Kernel

Piece = tuple[float, float, float]
"""(constant, slope, until): constant + slope x sum of contexts, for sums below `until`."""


_EXACT_SPLIT = 48  # where the whole batch is split or not, each number of decodes counts
_WAVES = 5  # later ones are small beside what went before
_LAST = len(EXCESSES) - 2
_EQUAL = -1
_FARTHEST = EXCESSES[-1] - EXCESSES[-2]

_Fan = tuple[float, float, float, float, float, int]
"""A piece, how its constant and slope grow with the excess, and the excess from which on they do."""


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
        self._bounds: dict[int, list[int]] = {}
        self._fans: dict[tuple[int, int, int], _Fan] = {}

    def piece(self, decodes: int, context: int, longest: int) -> Piece:
        """Of `decodes` decodes whose contexts sum to `context`, and as they all grow alike."""
        bounds = self._bounds.get(decodes)
        if bounds is None:
            count = self._class_of(decodes)
            bounds = self._bounds[decodes] = [count * mean for mean in MEANS]
        place = bisect_right(bounds, context)
        excess = longest * decodes - context  # of all: an integer, so that it stays exactly the same
        low = min(bisect_right(EXCESSES, excess // decodes) - 1, _LAST) if excess > 0 else _EQUAL
        fan = self._fans.get((decodes, place, low))
        if fan is None:
            fan = self._fans[decodes, place, low] = self._fan(decodes, place, low)
        constant, slope, until, of_constant, of_slope, start = fan
        above = min(excess / decodes - start, _FARTHEST)
        return constant + above * of_constant, slope + above * of_slope, until

    def _fan(self, decodes: int, place: int, low: int) -> _Fan:
        constant, slope, until = self._piece(decodes, max(low, 0), place)
        if low == _EQUAL:
            return constant, slope, until, 0.0, 0.0, 0
        upper_constant, upper_slope, _ = self._piece(decodes, low + 1, place)
        start = EXCESSES[low]
        gap = EXCESSES[low + 1] - start
        return constant, slope, until, (upper_constant - constant) / gap, (upper_slope - slope) / gap, start

    def _piece(self, decodes: int, excess: int, place: int) -> Piece:
        """Of contexts whose longest exceeds the mean by `EXCESSES[excess]`."""
        count, low = self._class_of(decodes), min(max(place - 1, 0), len(MEANS) - 2)
        first, second = (self._at(count, excess, end) for end in (low, low + 1))
        slope = max((second - first) / (count * (MEANS[low + 1] - MEANS[low])), 0.0)
        constant = first - slope * count * MEANS[low]
        until = count * MEANS[place] if place < len(MEANS) else float("inf")
        return self._fixed(decodes) + self._scale * constant, self._scale * slope, until

    def _class_of(self, decodes: int) -> int:
        """The number that is replayed for `decodes`: one that fills as many waves of tiles."""
        form = self._kernel.alone
        waves = -(-form.heads * decodes // form.slots)
        first = (waves - 1) * form.slots // form.heads + 1 if waves <= _WAVES else 1
        return max(count_class(decodes, self._exact), first)

    def _at(self, count: int, excess: int, place: int) -> float:
        """Microseconds of decodes of the mean `MEANS[place]`, the longest exceeding it by `EXCESSES[excess]`."""
        key = (count, excess, place)
        price = self._replayed.get(key)
        if price is None:
            mean = MEANS[place]
            longest = mean + EXCESSES[excess]
            replayed = replay_decodes(self._kernel, self._times, count, mean, longest)
            price = self._replayed[key] = replayed * self._correction.at(count, mean, longest)
        return price
