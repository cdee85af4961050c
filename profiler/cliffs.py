"""Where one more token costs much more: the tile-quantization cliffs of a measured table.

A matrix product is computed in tiles, so its time is a staircase in tokens. A cliff is the step from t to t +
1 tokens, as a fraction of the time at t, with the uncertainty that the spread of both measurements leaves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from profiler.grid import LINEAR_OPERATORS

LAYER = "layer"  # the linear operators of a layer together


@dataclass(frozen=True, slots=True)
class Cliff:
    """From `tokens` to one more, time grows by the fraction `growth` (or shrinks), give or take `noise`."""

    operator: str
    tokens: int
    growth: float
    noise: float

    @property
    def clear(self) -> bool:
        """Larger than three times its noise and than 2 %."""
        return abs(self.growth) > max(3 * self.noise, 0.02)

    def __str__(self) -> str:
        direction = "more" if self.growth >= 0 else "less"
        return (
            f"{self.tokens + 1} tokens cost {abs(self.growth) * 100:.0f} ± {max(self.noise * 100, 1):.0f} %"
            f" {direction} than {self.tokens}"
        )


def find_cliffs(rows: pd.DataFrame) -> list[Cliff]:
    """The step at each t whose successor was measured: of each linear operator, of their sum (`layer`)."""
    linear = {name: _curve(rows[rows["operator"] == name]) for name in LINEAR_OPERATORS}
    curves = {name: curve for name, curve in linear.items() if not curve.empty}
    if len(curves) == len(LINEAR_OPERATORS):
        curves[LAYER] = _sum(list(curves.values()))
    return [cliff for name, curve in curves.items() for cliff in _cliffs_of(name, curve)]


def _curve(rows: pd.DataFrame) -> pd.DataFrame:
    """Columns `time` and `noise` (us) by tokens; noise is half the width from 10 % to 90 % quantile."""
    noise = (rows["p90_us"] - rows["p10_us"]) / 2
    curve = pd.DataFrame({"tokens": rows["tokens"], "time": rows["time_us"], "noise": noise})
    return curve.groupby("tokens").mean().sort_index()


def _sum(curves: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Times added, noises added in quadrature, at the tokens where all were measured."""
    shared = sorted(set.intersection(*(set(curve.index) for curve in curves)))
    parts = [curve.loc[shared] for curve in curves]
    time = sum(part["time"] for part in parts)
    noise = sum(part["noise"] ** 2 for part in parts) ** 0.5
    return pd.DataFrame({"time": time, "noise": noise})


def _cliffs_of(operator: str, curve: pd.DataFrame) -> list[Cliff]:
    times, noises = curve["time"].to_dict(), curve["noise"].to_dict()
    cliffs = []
    for tokens in map(int, curve.index):
        before, after = times[tokens], times.get(tokens + 1)
        if after is None:
            continue
        noise = ((noises[tokens] / before) ** 2 + (noises[tokens + 1] / after) ** 2) ** 0.5 * after / before
        cliffs.append(Cliff(operator, tokens, after / before - 1, noise))
    return cliffs


def summary(rows: pd.DataFrame, smallest: int = 64, most: int = 3) -> list[str]:
    """On the linear operators of a layer together: the largest steps from `smallest`, and 256 to 257."""
    of_layer = [cliff for cliff in find_cliffs(rows) if cliff.operator == LAYER and cliff.tokens >= smallest]
    if not of_layer:
        return ["No two neighbouring token counts were measured, so nothing is said about cliffs."]
    clear = sorted((cliff for cliff in of_layer if cliff.clear), key=lambda cliff: -abs(cliff.growth))
    lines = [
        f"The matrix products of a layer, {len(of_layer)} steps from t to t + 1 tokens:"
        f" {len(clear)} stand out of the noise, {sum(cliff.growth < 0 for cliff in clear)} of them downward."
    ]
    lines += [f"  {cliff}" for cliff in clear[:most]]
    famous = next((cliff for cliff in of_layer if cliff.tokens == 256), None)
    if famous is not None and famous not in clear[:most]:
        lines.append(f"  {famous}" + ("" if famous.clear else ", which the noise may explain"))
    return lines
