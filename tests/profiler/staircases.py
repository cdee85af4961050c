"""Made-up operators whose time is a known staircase, and the noise of a clock."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from profiler.grid import LINEAR_OPERATORS, Point
from profiler.sweep import row_of
from profiler.timing import Timing


def linear_rows(times, operators=LINEAR_OPERATORS, spread=0.02):
    """The same curve for each operator: {tokens: us}, quantiles `spread` apart."""
    return pd.DataFrame(
        row_of(Point(name, tokens=tokens), Timing(time, time * (1 - spread / 2), time * (1 + spread / 2), 9), 1800.0)
        for name in operators
        for tokens, time in times.items()
    )


@dataclass
class Stairs:
    """A time of `base` + `slope` x tokens that steps by a fraction after each of `steps`; noisily timed.

    Every timing is off by `drift`, a comparison's growth by `noise` (both standard deviations).
    """

    steps: Mapping[int, float]
    base: float = 100.0
    slope: float = 0.02
    drift: float = 0.006
    noise: float = 0.004
    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def true(self, tokens: int) -> float:
        time = self.base + self.slope * tokens
        return time * math.prod(1 + size for place, size in self.steps.items() if place < tokens)

    def growth(self, tokens: int) -> float:
        return self.true(tokens + 1) / self.true(tokens) - 1

    def timed(self, tokens: int) -> float:
        return self.true(tokens) * self._off(self.drift)

    def compared(self, tokens: int) -> float:
        return (1 + self.growth(tokens)) * self._off(self.noise) - 1

    def _off(self, deviation: float) -> float:
        return float(np.exp(self.generator.normal(0, deviation))) if deviation else 1.0


@dataclass
class StairsClock:
    """A `profiler.scan.Clock` of made-up operators; `asked` counts what it was asked."""

    operators: Mapping[str, Stairs]
    asked: list[Point] = field(default_factory=list)

    def measure(self, point: Point) -> dict[str, object]:
        self.asked.append(point)
        return self._row(point, self.operators[point.operator].timed(point.tokens or point.sequences))

    def compare(self, first: Point, second: Point) -> tuple[dict[str, object], dict[str, object], float]:
        self.asked.append(first)
        size = first.tokens or first.sequences
        assert (second.tokens or second.sequences) == size + 1
        stairs = self.operators[first.operator]
        growth, level = stairs.compared(size), stairs.timed(size)
        return self._row(first, level), self._row(second, level * (1 + growth)), growth

    @staticmethod
    def _row(point: Point, time: float) -> dict[str, object]:
        return row_of(point, Timing(time, 0.999 * time, 1.001 * time, 15), 1800.0)


def grid_points(operators: Iterable[str], sizes: Iterable[int]) -> list[Point]:
    """The points of a first grid."""
    sizes = list(sizes)
    return [
        Point(name, sequences=size) if name == "lm_head" else Point(name, tokens=size)
        for name in operators
        for size in sizes
    ]
