"""The scan for cliffs: asks `Staircase` what to time, times it, and keeps rows and cliffs.

Operators are scanned one after the other, since the GPU holds the weights of one at a time. A step of one matrix
product matters by what it is of the layer, so where one has a step the others are compared too: the step of the
layer, the sum of all, then has an interval from comparisons alone.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import log
from statistics import median
from typing import Protocol

from profiler.grid import LINEAR_OPERATORS, SEQUENCES, Point, token_counts
from profiler.staircase import Aims, Pair, Probe, Staircase, likelihood
from profiler.sweep import Measured, Row, reason_of

SCANNED = {"mlp": 0.35, "qkv_proj": 0.22, "o_proj": 0.16, "lm_head": 0.1}  # with their shares of the time
SMALLEST_OF_LAYER = 0.01  # a step of one operator that is less of the layer is not compared in the others
MOST_TOGETHER = 40  # steps of the layer that are compared in every matrix product
SD_PER_WIDTH = 1 / 2.563  # of a normal distribution, from its 10 % to its 90 % quantile

AIMS = {"cuda": Aims(), "cpu": Aims(smallest=0.2, precision=0.1, drift=0.05, most_rounds=4)}
ALLOWANCE_S = {"cuda": 75.0, "cpu": 3.0}
SHARE_OF_BUDGET = 0.4  # of what is left of it once the scan begins
EXPECTED_QUESTIONS = {"cuda": 420, "cpu": 150}  # for the time left that is shown before the scan


class Clock(Protocol):
    """What times a point, and two in turn; `profiler.sweep.Workshop` is one."""

    def measure(self, point: Point) -> Row:
        """A row of the cost table."""
        ...

    def compare(self, first: Point, second: Point) -> tuple[Row, Row, float]:
        """A row of each, timed in turn, and the growth from the first to the second."""
        ...


@dataclass
class Scan:
    """A scan into `measured`, which already holds the first grid, until `deadline_s` (`time.monotonic`)."""

    clock: Clock
    measured: Measured
    aims: Aims
    deadline_s: float
    report: Callable[[str, int], None]
    save: Callable[[], None]
    asked: int = 0
    pairs: dict[Point, list[tuple[Row, Row]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stairs = {name: self._staircase(name) for name in SCANNED}

    def run(self) -> None:
        """Scan all operators; what time was too short for is noted, and an interrupted scan keeps its cliffs."""
        try:
            left = 1.0
            for name, share in SCANNED.items():
                self._stage(name, share / left)
                left -= share
            for name in LINEAR_OPERATORS:
                self._stage(name, 1.0, only_wanted=True)
        finally:
            self._keep()
        unfinished = [name for name, stairs in self.stairs.items() if stairs.next_question() is not None]
        if unfinished:
            self.measured.notes.append(
                f"the time for the scan was over: {', '.join(unfinished)} may have more cliffs, smaller or rarer ones"
            )

    def _keep(self) -> None:
        self.measured.cliffs = [cliff for stairs in self.stairs.values() for cliff in stairs.cliffs()]
        self.save()

    def _staircase(self, name: str) -> Staircase:
        grid = SEQUENCES if name == "lm_head" else token_counts(max(map(_size, self.measured.rows), default=0))
        stairs = Staircase(name, frozenset(grid), self.aims)
        for point, row in self.measured.rows.items():
            if point.operator == name:
                _learn(stairs, point, row)
        stairs.finished = {cliff.tokens: cliff for cliff in self.measured.cliffs if cliff.operator == name}
        return stairs

    def _stage(self, name: str, share: float, only_wanted: bool = False) -> None:
        """Ask about one operator for a share of the time that is left."""
        stairs, now_s = self.stairs[name], time.monotonic()
        if name in LINEAR_OPERATORS:
            stairs.wanted |= set(self._steps_of_the_layer())
        end_s = now_s + share * (self.deadline_s - now_s)
        try:
            while time.monotonic() < end_s and (question := stairs.next_question(only_wanted)) is not None:
                self.report(f"{question.tokens} and its neighbours of {name}", self.asked)
                self.asked += 1
                self._answer(stairs, question)
        except RuntimeError as error:
            if isinstance(error.__context__, KeyboardInterrupt):  # it broke off a graph's capture
                raise error.__context__ from None
            self.measured.notes.append(f"broke off the scan of {name}: {reason_of(error)}")
        self._keep()

    def _answer(self, stairs: Staircase, question: Probe | Pair) -> None:
        point = place_of(stairs.operator, question.tokens)
        if isinstance(question, Probe):
            self.measured.rows[point] = self.clock.measure(point)
            _learn(stairs, point, self.measured.rows[point])
            return
        above = place_of(stairs.operator, question.tokens + 1)
        first, second, growth = self.clock.compare(point, above)
        stairs.learn_round(question.tokens, growth)
        rounds = self.pairs.setdefault(point, [])
        rounds.append((first, second))
        mean = sum(stairs.rounds[question.tokens]) / len(rounds)
        self.measured.rows[point], self.measured.rows[above] = pair_rows(rounds, mean)
        for place in (point, above):
            _learn(stairs, place, self.measured.rows[place])

    def _steps_of_the_layer(self) -> Iterator[int]:
        """The largest steps known by now, as a share of the layer's time."""
        linear = [self.stairs[name] for name in LINEAR_OPERATORS]
        jumps: dict[int, float] = {}
        for stairs in linear:
            for cliff in stairs.cliffs(least_rounds=2):
                jump = abs(cliff.growth) * stairs.times[cliff.tokens]
                jumps[cliff.tokens] = jumps.get(cliff.tokens, 0.0) + jump
        shares = {n: jump / sum(_near(stairs, n) for stairs in linear) for n, jump in jumps.items()}
        largest = sorted(shares, key=lambda n: -shares[n] * likelihood(n))
        return (n for n in largest[:MOST_TOGETHER] if shares[n] >= SMALLEST_OF_LAYER)


def place_of(operator: str, tokens: int) -> Point:
    """The point of an operator at so many tokens, or sequences for the LM head."""
    return Point(operator, sequences=tokens) if operator == "lm_head" else Point(operator, tokens=tokens)


def _size(point: Point) -> int:
    return point.tokens or point.sequences


def _learn(stairs: Staircase, point: Point, row: Row) -> None:
    deviation = (row["p90_us"] - row["p10_us"]) * SD_PER_WIDTH / row["time_us"]
    stairs.learn(_size(point), row["time_us"], 1.25 * deviation / max(row["repeats"], 1) ** 0.5)


def _near(stairs: Staircase, tokens: int) -> float:
    """The time at the known place that is nearest."""
    if not stairs.times:
        return 0.0
    return stairs.times[min(stairs.times, key=lambda known: abs(log(known / tokens)))]


def pair_rows(rounds: Sequence[tuple[Row, Row]], growth: float) -> tuple[Row, Row]:
    """One row for each of two points compared in `rounds`: their ratio is 1 + `growth`, their level the median one."""
    level = median((first["time_us"] * second["time_us"]) ** 0.5 for first, second in rounds)
    factors = (1 + growth) ** -0.5, (1 + growth) ** 0.5
    firsts, seconds = zip(*rounds, strict=True)
    return _merged(firsts, level * factors[0]), _merged(seconds, level * factors[1])


def _merged(rows: Sequence[Row], time_us: float) -> Row:
    """The rows of one point as one, at `time_us`, with the quantiles' mean distances from the median."""
    return {
        **rows[-1],
        "time_us": time_us,
        "p10_us": time_us * median(row["p10_us"] / row["time_us"] for row in rows),
        "p90_us": time_us * median(row["p90_us"] / row["time_us"] for row in rows),
        "repeats": sum(int(row["repeats"]) for row in rows),
        "sm_mhz": median(row["sm_mhz"] for row in rows),
    }


def scan(
    device: str,
    clock: Clock,
    measured: Measured,
    deadline_s: float | None,
    report: Callable[[str, int], None],
    save: Callable[[], None],
) -> int:
    """Look for cliffs for as long as is usual on the device, in a part of the budget only; how many questions it took.

    `report(what, questions so far)` before each question; `save()` after each operator.
    """
    now_s = time.monotonic()
    allowed_s = ALLOWANCE_S[device]
    if deadline_s is not None:
        allowed_s = min(allowed_s, SHARE_OF_BUDGET * (deadline_s - now_s))
    work = Scan(clock, measured, AIMS[device], now_s + allowed_s, report, save)
    work.run()
    return work.asked
