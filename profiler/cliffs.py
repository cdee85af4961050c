"""The cliffs of a cost table: where one more token costs much more, or less.

Those that the scan compared are in the table's sidecar. Of other neighbours in the table only the two separate
measurements are known; their interval is the spread of both.
"""

from collections.abc import Sequence

import pandas as pd

from profiler.grid import LINEAR_OPERATORS
from simulator.cost_table import Cliff, Source

LAYER = "layer"  # the linear operators of a layer together
SCANNED_OPERATORS = (*LINEAR_OPERATORS, "lm_head")


def is_clear(cliff: Cliff) -> bool:
    """Larger than 2 % and than its interval; than three times the interval if that is a mere spread."""
    return abs(cliff.growth) > max((1 if cliff.rounds else 3) * cliff.error, 0.02)


def interval_of(cliffs: Sequence[Cliff], source: Source) -> str:
    """What the intervals of a table's cliffs are."""
    if source == "modelled":
        return "modelled, not measured"
    if any(cliff.rounds for cliff in cliffs):
        return "± is the 95 % interval"
    return "± is the spread of separate measurements" + ("" if source == "measured" else " of others")


def described(cliff: Cliff, unit: str = "tokens") -> str:
    """`257 tokens cost 14 ± 1 % more than 256`; a tenth of a per cent where that is known."""
    error, growth = cliff.error * 100, abs(cliff.growth) * 100
    digits = 1 if cliff.rounds and error < 0.95 else 0
    size = f"{growth:.{digits}f} ± {max(error, 0.1 if digits else 1):.{digits}f} %"
    return f"{cliff.tokens + 1} {unit} cost {size} {'more' if cliff.growth >= 0 else 'less'} than {cliff.tokens}"


def find_cliffs(rows: pd.DataFrame, compared: Sequence[Cliff] = ()) -> list[Cliff]:
    """The step at each t that was `compared`, or whose successor was measured, and the steps of their sum (`layer`)."""
    found: list[Cliff] = []
    by_operator: dict[str, dict[int, Cliff]] = {}
    for name in SCANNED_OPERATORS:
        own = {cliff.tokens: cliff for cliff in compared if cliff.operator == name}
        by_operator[name] = {**_neighbours(name, curve(rows, name)), **own}
        found += [cliff for _, cliff in sorted(by_operator[name].items())]
    return found + _of_layer([(curve(rows, name), by_operator[name]) for name in LINEAR_OPERATORS])


def curve(rows: pd.DataFrame, operator: str) -> pd.DataFrame:
    """Columns `time` and `noise` (us) by tokens, or sequences; noise is half the width from 10 % to 90 % quantile."""
    own = rows[rows["operator"] == operator]
    noise = (own["p90_us"] - own["p10_us"]) / 2
    place = own["sequences" if operator == "lm_head" else "tokens"]
    times = pd.DataFrame({"tokens": place, "time": own["time_us"], "noise": noise})
    return times.groupby("tokens").mean().sort_index()


def _neighbours(operator: str, times: pd.DataFrame) -> dict[int, Cliff]:
    noise = times["noise"] / times["time"]
    cliffs = {}
    for tokens in map(int, times.index):
        if tokens + 1 in times.index:
            growth = float(times["time"][tokens + 1] / times["time"][tokens]) - 1
            error = float((noise[tokens] ** 2 + noise[tokens + 1] ** 2) ** 0.5) * (1 + growth)
            cliffs[tokens] = Cliff(operator, tokens, growth, growth - error, growth + error)
    return cliffs


def _of_layer(parts: Sequence[tuple[pd.DataFrame, dict[int, Cliff]]]) -> list[Cliff]:
    """Where each matrix product's step is known: growths weighed by time, errors added in quadrature."""
    shared = set.intersection(*(set(cliffs) for _, cliffs in parts))
    steps = []
    for tokens in sorted(shared):
        weights = [float(times["time"][tokens]) if tokens in times.index else 0.0 for times, _ in parts]
        cliffs = [cliffs[tokens] for _, cliffs in parts]
        if not all(weights):  # a sidecar that tells of a step whose row is not there
            continue
        growth = sum(weight * cliff.growth for weight, cliff in zip(weights, cliffs, strict=True)) / sum(weights)
        error = sum((weight * cliff.error) ** 2 for weight, cliff in zip(weights, cliffs, strict=True)) ** 0.5
        error /= sum(weights)
        rounds = min(cliff.rounds for cliff in cliffs)
        steps.append(Cliff(LAYER, tokens, growth, growth - error, growth + error, rounds))
    return steps
