"""Fit the constants of a GPU's power limit to the times of steps in duty cycles.

Steps are replayed through `simulator.power_limit.Heat` from where each of them began, as the simulator will do it.
Least squares of log(replayed / measured) over the three constants and the price of each kind of step, since a table's
prices are off by a per cent or two, which is not the power limit's doing. Each duty cycle weighs the same, and so does
each kind of step in it; the loss is soft-L1, so that a step disturbed by something else does not bend the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from profiler.duty_cycles import StepRow
from simulator.power_limit import Heat, PowerLimit
from simulator.regression import least_squares

Vector = NDArray[np.float64]

LEAST_SLOWDOWN = 0.01
_OUTLIER = 0.02
"""Errors well above this count by their size, not its square."""
_GUESS = PowerLimit(slowdown=0.1, time_constant_s=0.05, decode_intensity=0.5)
_LOWEST, _HIGHEST = (0.0, log(1e-3), 0.0), (10.0, log(10.0), 1.0)
_DIFFERENCE = 1e-3
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class PowerFit:
    """What duty cycles tell: the constants, None where the GPU was not slowed or was not `measured`; `note` says it."""

    limit: PowerLimit | None
    note: str
    measured: bool = True


class _Steps:
    """The rows in order of their starts, as arrays; `kinds` numbers the kinds of step."""

    def __init__(self, rows: Sequence[StepRow], tokens: Mapping[str, int], token_ns: Sequence[float]) -> None:
        rows = sorted(rows, key=lambda row: row.start_s)
        self.token_ns = token_ns
        self.names = list(dict.fromkeys(row.kind for row in rows))
        self.kinds = [self.names.index(row.kind) for row in rows]
        self.tokens = [tokens[row.kind] for row in rows]
        self.starts_ns = [int((row.start_s - rows[0].start_s) * _NS_PER_S) for row in rows]
        self.times_ns = np.array([row.time_s for row in rows]) * _NS_PER_S
        self.cycles = np.array([row.cycle for row in rows])
        self.weights = self._weights()
        kinds = np.array(self.kinds)
        self.usual_ns = np.array([np.median(self.times_ns[kinds == kind]) for kind in range(len(self.names))])

    def _weights(self) -> Vector:
        """1 for each cycle in all, in equal parts for its kinds."""
        kinds, weights = np.array(self.kinds), np.zeros(len(self.kinds))
        for cycle in set(self.cycles.tolist()):
            of_cycle = self.cycles == cycle
            present = set(kinds[of_cycle].tolist())
            for kind in present:
                steps = of_cycle & (kinds == kind)
                weights[steps] = 1 / (len(present) * steps.sum())
        return weights

    def errors(self, limit: PowerLimit, prices_ns: Vector) -> Vector:
        """log(replayed / measured) of each step, `prices_ns` by kind."""
        heat, prices = Heat(limit, self.token_ns), prices_ns.tolist()
        replayed = [
            heat.step_ns(start, 0, tokens, prices[kind])
            for start, tokens, kind in zip(self.starts_ns, self.tokens, self.kinds, strict=True)
        ]
        return np.log(np.array(replayed) / self.times_ns)


def fit_power_limit(rows: Sequence[StepRow], tokens: Mapping[str, int], token_ns: Sequence[float]) -> PowerFit:
    """The constants that describe `rows` best. Deterministic; some seconds.

    `tokens` of each kind of step; `token_ns`: prices by tokens (`simulator.table_costs.token_prices`).
    """
    steps = _Steps(rows, tokens, token_ns)
    growth, noise = _growth(steps)
    if growth <= max(noise, LEAST_SLOWDOWN):
        return PowerFit(None, f"steps take at most {growth:.1%} longer in a row than after a rest (noise {noise:.1%})")
    limit, prices = _fitted(steps)
    if limit.slowdown < LEAST_SLOWDOWN:
        return PowerFit(None, f"by the fit steps take {limit.slowdown:.1%} longer at full draw, which is nothing")
    errors = abs(np.expm1(steps.errors(limit, prices)))
    remaining = {str(cycle): errors[steps.cycles == cycle] for cycle in dict.fromkeys(steps.cycles.tolist())}
    error = {
        cycle: {"median": round(float(np.median(of)), 4), "p95": round(float(np.quantile(of, 0.95)), 4)}
        for cycle, of in remaining.items()
    }
    slowdown, constant_s, intensity = (round(value, 4) for value in _constants(limit))
    medians = [of_cycle["median"] for of_cycle in error.values()]
    return PowerFit(
        PowerLimit(slowdown, constant_s, intensity, error),
        f"fitted to {len(rows)} steps in {len(error)} duty cycles, where steps took up to {growth:.1%} longer than"
        f" after a rest; the median error of a duty cycle's steps is {np.median(medians):.1%}, of the worst one's"
        f" {max(medians):.1%}",
    )


def _constants(limit: PowerLimit) -> tuple[float, float, float]:
    return limit.slowdown, limit.time_constant_s, limit.decode_intensity


def _fitted(steps: _Steps) -> tuple[PowerLimit, Vector]:
    """(the constants, the price of each kind in nanoseconds)."""
    roots = np.sqrt(steps.weights)

    def parts(values: Vector) -> tuple[PowerLimit, Vector]:
        slowdown, log_constant, intensity, *prices = values.tolist()
        return PowerLimit(slowdown, exp(log_constant), intensity), steps.usual_ns * np.array(prices)

    def residuals(values: Vector) -> Vector:
        errors = steps.errors(*parts(values))
        # Soft-L1 of each error before its weight; scipy's own would take it of the two together.
        return np.asarray(roots * errors * np.sqrt(2 / (1 + np.sqrt(1 + (errors / _OUTLIER) ** 2))))

    slowdown, constant, intensity = _constants(_GUESS)
    kinds = len(steps.names)
    found = least_squares(
        residuals,
        [slowdown, log(constant), intensity, *[1.0] * kinds],
        bounds=([*_LOWEST, *[0.5] * kinds], [*_HIGHEST, *[2.0] * kinds]),
        x_scale=[0.1, 0.5, 0.5, *[0.05] * kinds],
        diff_step=_DIFFERENCE,
        xtol=1e-5,
        ftol=1e-6,
    )
    return parts(found.x)


def _growth(steps: _Steps) -> tuple[float, float]:
    """(how much longer a kind takes in its slowest cycle than in its fastest, the spread of steps within a cycle).

    Relative; medians over the later half of a cycle, of the kind that differs most.
    """
    kinds, most = np.array(steps.kinds), (0.0, 0.0)
    for kind in range(len(steps.names)):
        typical, spreads = [], []
        for cycle in dict.fromkeys(steps.cycles[kinds == kind].tolist()):
            times = steps.times_ns[(kinds == kind) & (steps.cycles == cycle)]
            low, middle, high = np.quantile(times[len(times) // 2 :], [0.16, 0.5, 0.84])
            typical.append(middle)
            spreads.append((high - low) / 2 / middle)
        most = max(most, (float(max(typical) / min(typical)) - 1, float(np.median(spreads))))
    return most
