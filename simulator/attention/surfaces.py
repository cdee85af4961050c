"""Measured surfaces, looked up between their points: attention of a chunk over (its tokens, the context before it)."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

Line = tuple[list[int], list[float], list[float]]
"""A piecewise linear function: where each piece but the first begins, and the constant and slope of each."""


def line_through(x: Sequence[int], y: Sequence[float]) -> Line:
    """The line through points of ascending `x` from 0 on and positive `y`.

    Outside them the nearest piece goes on, but it neither gets below 0 on the left nor falls on the right.
    """
    slopes = [(high - low) / (b - a) for (a, b), (low, high) in zip(pairwise(x), pairwise(y), strict=True)] or [0.0]
    left = max(0.0, y[0] - x[0] * slopes[0])
    slopes = [(y[0] - left) / x[0] if x[0] else slopes[0], *slopes, max(0.0, slopes[-1])]
    starts = [(0, left), *zip(x, y, strict=True)]
    if len(x) == 1:
        del slopes[1]
    return list(x), [value - at * slope for (at, value), slope in zip(starts, slopes, strict=True)], slopes


def value_at(line: Line, at: float) -> float:
    """The value of a piecewise linear function."""
    starts, constants, slopes = line
    piece = bisect_right(starts, at)
    return constants[piece] + at * slopes[piece]


class PrefillSurface:
    """Microseconds of one chunk's attention in one layer.

    Straight lines between measured contexts and between measured chunk sizes: where a size and the next were both
    measured, a cliff between them stays one. Below the smallest size its time holds, above the largest the last trend.
    """

    def __init__(self, points: dict[int, dict[int, float]]) -> None:
        """`points`: microseconds by tokens of the chunk, then by context before it; at least one of each."""
        self.chunks = sorted(points)
        self._lines = [_context_line(points[chunk], chunk) for chunk in self.chunks]
        self.fixed_us = min(value_at(line, 0) for line in self._lines)

    def price(self, context: int, tokens: int) -> float:
        """Microseconds of `tokens` new tokens after `context` cached ones."""
        chunks = self.chunks
        if len(chunks) == 1:
            return value_at(self._lines[0], context) * max(1.0, tokens / chunks[0])
        if tokens <= chunks[0]:
            return value_at(self._lines[0], context)
        above = bisect_right(chunks, tokens, 1, len(chunks) - 1)
        low, high = value_at(self._lines[above - 1], context), value_at(self._lines[above], context)
        first, second = chunks[above - 1], chunks[above]
        if tokens <= second:
            return low + (high - low) * (tokens - first) / (second - first)
        return high * _area(context, tokens) / _area(context, second)  # beyond: as the area of its mask


def _area(context: int, tokens: int) -> float:
    return tokens * (context + tokens / 2)


def _context_line(points: dict[int, float], chunk: int) -> Line:
    """Over contexts. Measured at one only: the area of the mask gives the growth."""
    contexts = sorted(points)
    if len(contexts) == 1:
        slope = points[contexts[0]] / (contexts[0] + chunk / 2)
        return [], [slope * chunk / 2], [slope]
    return line_through(contexts, [points[context] for context in contexts])
