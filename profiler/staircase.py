"""Where the next timing of an operator tells most about the steps of its time over tokens. No clock is read here.

A matrix product runs in tiles, and its tiles in waves over the multiprocessors, so its time is a staircase; where
the library changes its kernel it also steps down. Between two token counts whose times differ, the place that halves
what is unknown is probed next, until a step is pinned between t and t + 1; then t and t + 1 are compared in turn,
round by round, until the interval of the step's size is narrow. The largest difference comes first. A step of
`smallest` or more is missed only where an opposite one within the same stretch of the first grid hides it.

What is smooth costs little: where three neighbouring times lie on a line, the trend explains the growth.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import hypot, log
from statistics import fmean as mean

from simulator.cost_table import Cliff

# 97.5 % quantiles of Student's t by degrees of freedom, from 1
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
NORMAL = 1.96
LEAST_SUSPECT = 1.5  # times the smallest step: so much growth in one stretch is halved whatever lies on a line
BORROWED = 4  # degrees of freedom that a pair borrows from all pairs together


@dataclass(frozen=True, slots=True)
class Probe:
    """Time the operator at `tokens`."""

    tokens: int


@dataclass(frozen=True, slots=True)
class Pair:
    """Time `tokens` and `tokens` + 1 in turn, another round."""

    tokens: int


@dataclass(frozen=True, slots=True)
class Aims:
    """What counts as a step, how well its size should be known, and how noisy one timing is against another.

    `smallest`, `precision` (half of the 95 % interval) and `drift` (a standard deviation) are relative;
    `dense`: stretches up to so many tokens are not looked into without a reason.
    """

    smallest: float = 0.03
    precision: float = 0.01
    drift: float = 0.007
    least_rounds: int = 3
    most_rounds: int = 10
    dense: int = 64


@dataclass
class Staircase:
    """What is known of one operator, and what to ask next. O(known points) a question."""

    operator: str
    grid: frozenset[int] = frozenset()
    aims: Aims = field(default_factory=Aims)
    times: dict[int, float] = field(default_factory=dict)
    noise: dict[int, float] = field(default_factory=dict)
    rounds: dict[int, list[float]] = field(default_factory=dict)
    finished: dict[int, Cliff] = field(default_factory=dict)
    wanted: set[int] = field(default_factory=set)
    _pooled: tuple[int, float] | None = None

    def learn(self, tokens: int, time: float, noise: float = 0.0) -> None:
        """A time in any unit, its own noise as a relative standard deviation."""
        self.times[tokens] = time
        self.noise[tokens] = max(noise, self.aims.drift)

    def learn_round(self, tokens: int, growth: float) -> None:
        """The growth from `tokens` to one more in one comparison."""
        self.rounds.setdefault(tokens, []).append(growth)
        self._pooled = None

    def next_question(self, only_wanted: bool = False) -> Probe | Pair | None:
        """The question that tells most; None when nothing is left to ask."""
        candidates: list[tuple[float, Probe | Pair]] = list(self._comparisons(only_wanted))
        if not only_wanted:
            candidates += self._searches()
            candidates = candidates or list(self._explorations())
        if not candidates:
            return None
        return max(candidates, key=lambda scored: scored[0])[1]

    def cliffs(self, least_rounds: int | None = None) -> list[Cliff]:
        """The steps compared in so many rounds, `aims.least_rounds` if nothing is said, with their 95 % intervals.

        Ascending; without those that say nothing. Time may be over before a step has its rounds: two that agree by
        chance would pass for a narrow interval.
        """
        least = least_rounds or self.aims.least_rounds
        found = {tokens: self._cliff(tokens) for tokens, rounds in self.rounds.items() if len(rounds) >= least}
        known = sorted({**self.finished, **found}.items())
        return [cliff for _, cliff in known if cliff.error <= max(abs(cliff.growth), 3 * self.aims.precision)]

    def _comparisons(self, only_wanted: bool) -> Iterator[tuple[float, Pair]]:
        """Pairs of neighbours that differ, or are wanted, and whose growth is not known well enough."""
        for low, high in self._stretches():
            wanted = low in self.wanted
            if high - low > 1 or low in self.finished or (only_wanted and not wanted):
                continue
            growth, done = self._growth(low), len(self.rounds.get(low, ()))
            if (wanted or self._stands_out(low, high)) and self._needs_another(low, wanted):
                yield (1.0 if wanted else abs(growth)) * likelihood(low) / (1 + done), Pair(low)
        for tokens in sorted(self.wanted - self.finished.keys()):
            if tokens not in self.times or tokens + 1 not in self.times:
                yield likelihood(tokens), Pair(tokens)

    def _needs_another(self, tokens: int, wanted: bool) -> bool:
        rounds = self.rounds.get(tokens, [])
        if len(rounds) < 2:
            return True
        if not wanted and abs(mean(rounds)) < self.aims.smallest / 2:
            return False  # it was noise that made the pair look like a step
        if len(rounds) < self.aims.least_rounds:
            return True
        return len(rounds) < self.aims.most_rounds and self._cliff(tokens).error > self.aims.precision

    def _searches(self) -> Iterator[tuple[float, Probe]]:
        """Stretches whose ends differ."""
        for low, high in self._stretches():
            if high - low > 1 and self._stands_out(low, high) and not self._is_smooth(low):
                yield abs(log(self.times[high] / self.times[low])) * likelihood(low), Probe(split(low, high))

    def _explorations(self) -> Iterator[tuple[float, Probe]]:
        """Wide stretches whose ends agree: a step up and one down may hide there."""
        for low, high in self._stretches():
            if high - low > max(self.aims.dense, low // 12):
                yield log(high / low) * likelihood(low), Probe(split(low, high))

    def _is_smooth(self, low: int) -> bool:
        """Whether the times of the stretch from `low` lie on a line with the one at the next place before or after.

        Points of the first grid prove nothing: they may be the same place of each stair. Nor does a stretch that
        grows enough to hide a step beside others of its kind.
        """
        known = sorted(self.times)
        place = known.index(low)
        if abs(log(self.times[known[place + 1]] / self.times[low])) > LEAST_SUSPECT * self.aims.smallest:
            return False
        threes = [known[max(place - 1, 0) : place + 2], known[place : place + 3]]
        return any(len(three) == 3 and self._is_line(*three) for three in threes)

    def _is_line(self, low: int, middle: int, high: int) -> bool:
        share = (middle - low) / (high - low)
        if middle in self.grid or not 0.3 < share < 0.7:
            return False
        line = self.times[low] + share * (self.times[high] - self.times[low])
        return abs(self.times[middle] / line - 1) < 2 * self.aims.drift

    def _stretches(self) -> Iterator[tuple[int, int]]:
        return pairwise(sorted(self.times))

    def _growth(self, tokens: int) -> float:
        rounds = self.rounds.get(tokens)
        if rounds:
            return mean(rounds)
        return self.times[tokens + 1] / self.times[tokens] - 1

    def _stands_out(self, low: int, high: int) -> bool:
        noise = hypot(self.noise[low], self.noise[high])
        growth = self._growth(low) if high - low == 1 else log(self.times[high] / self.times[low])
        known = high - low == 1 and low in self.rounds
        return known or abs(growth) > max(self.aims.smallest, 2.5 * noise)

    def _cliff(self, tokens: int) -> Cliff:
        """Mean and 95 % interval of the rounds.

        Few rounds know their own spread badly, so it is weighed with that of all pairs (the moderated t of Smyth,
        2004, "Linear models and empirical Bayes methods", with a fixed prior weight).
        """
        rounds = self.rounds[tokens]
        own, degrees = variance(rounds), len(rounds) - 1
        if self._pooled is None:
            self._pooled = _pooled([rounds for rounds in self.rounds.values() if len(rounds) > 1])
        pairs, common = self._pooled
        if pairs > BORROWED:
            own = (BORROWED * common + degrees * own) / (BORROWED + degrees)
            degrees += BORROWED
        t = STUDENT[degrees - 1] if degrees <= len(STUDENT) else NORMAL
        growth, error = mean(rounds), t * (own / len(rounds)) ** 0.5
        return Cliff(self.operator, tokens, growth, growth - error, growth + error, len(rounds))


def variance(values: Sequence[float]) -> float:
    """The unbiased estimate; `statistics.variance` is exact and a hundred times slower."""
    middle = mean(values)
    return sum((value - middle) ** 2 for value in values) / (len(values) - 1)


def _pooled(pairs: Sequence[Sequence[float]]) -> tuple[int, float]:
    """How many pairs there are, and the variance of a round that they have in common."""
    freedom = sum(len(rounds) - 1 for rounds in pairs)
    return len(pairs), sum(variance(rounds) * (len(rounds) - 1) for rounds in pairs) / max(freedom, 1)


def likelihood(tokens: int) -> float:
    """How often steps of so many tokens are met, very roughly: budgets above 2048 are rarer."""
    return 1.0 if tokens <= 2048 else (2048 / tokens) ** 0.5


def split(low: int, high: int) -> int:
    """Where to probe between `low` and `high`: the roundest number, since kernels' tiles are powers of two.

    Where `low` itself is the roundest, the number after it: if the step is there it is pinned at once. Bisection
    otherwise, so a step anywhere is found in at most two probes a halving.
    """
    roundest = _roundest(low, high - 1)
    if roundest == low and low % 32 == 0:
        return low + 1
    return roundest if roundest > low else (low + high) // 2


def _roundest(low: int, high: int) -> int:
    """The multiple of the highest power of two from `low` to `high`, both included."""
    power = 1 << (high - low).bit_length()
    while not (place := high // power * power) >= low:
        power //= 2
    return place
