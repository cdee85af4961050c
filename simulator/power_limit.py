"""A GPU at its power limit: the same step takes longer while compute-bound steps follow each other without a rest.

Matrix products at full clocks draw more than the GPU may; within some tens of milliseconds it lowers its clocks to a
power that it can hold. Decodes draw less, idling little, so clocks come back between. On an H200 a step of 2,048 prompt
tokens takes 17 % longer in a row of its kind than after a rest, 9 % longer with four steps of 32 decodes between two.

The state is one number, the *heat*, an exponential mean over `time_constant_s` of what steps draw: a step that
computes at a share c of the GPU's best rate draws x + (1 - x) c, where x, `decode_intensity`, is what reading memory
draws; an idle GPU draws 0. A step takes 1 + slowdown x sqrt(c) x heat^4 times as long. Tables are measured with half a
step's rest before each step (`profiler.step_timing`), so prices are taken relative to the same formula at such rests.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, sqrt
from typing import Annotated

from annotated_types import Ge, Gt, Le

MEASURED_REST = 0.5
"""How long the GPU rests before each measured step, as a share of the step's time."""
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class PowerLimit:
    """Constants of a GPU; see the module. `slowdown` 0.2 means 20 % longer at full draw.

    `error`: where the constants were fitted to duty cycles (`profiler.power_fit`), by the name of each the relative
    errors of its steps that remain, `median` and `p95`.
    """

    slowdown: Annotated[float, Ge(0), Le(10)]
    time_constant_s: Annotated[float, Gt(0), Le(100)]
    decode_intensity: Annotated[float, Ge(0), Le(1)]
    error: dict[str, dict[str, Annotated[float, Ge(0), Le(100)]]] = field(default_factory=dict)


class Heat:
    """The state of a GPU under `limit`; times in nanoseconds.

    `token_ns` are the prices of what depends on the tokens of a step alone, by tokens; the best rate among them is 1.
    Steps of decodes alone are taken as steady, so that as many as wanted can pass unseen: `of_decodes` is the heat they
    go towards, and that is put in when the next other step comes.
    """

    def __init__(self, limit: PowerLimit, token_ns: Sequence[float]) -> None:
        self._constant_ns = limit.time_constant_s * _NS_PER_S
        rates = [0.0, *(tokens / token_ns[tokens] for tokens in range(1, len(token_ns)))]
        best = max(rates, default=0.0) or 1.0
        for tokens in range(2, len(rates)):  # a stair makes a step slower, not the GPU cooler
            rates[tokens] = max(rates[tokens], rates[tokens - 1])
        least = limit.decode_intensity
        self._draws = [least + (1 - least) * rate / best for rate in rates]
        self._slowdowns = [limit.slowdown * sqrt(rate / best) for rate in rates]
        self._heat, self._at_ns = 0.0, 0
        self.of_decodes = 0.0
        """Where the heat goes during steps of decodes since the last other step; 0 if there were none."""
        self._of_decodes: dict[tuple[int, float], tuple[float, float]] = {}

    def during_decodes(self, decodes: int, time_ns: float, interval_ns: float) -> float:
        """How many times as long as its price `time_ns` a step of decodes alone takes where one starts every
        `interval_ns`."""
        factor, self.of_decodes = self.factor_of_decodes(decodes, min(1.0, time_ns / interval_ns))
        return factor

    def factor_of_decodes(self, decodes: int, share: float) -> tuple[float, float]:
        """How many times as long as its price a step of decodes alone takes where such steps fill `share` of the time,
        and the heat of that, for `of_decodes` once it runs."""
        found = self._of_decodes.get((decodes, share))
        if found is None:
            place = min(decodes, len(self._draws) - 1)
            draw, slowdown = self._draws[place], self._slowdowns[place]
            heat = draw * share
            factor = (1 + slowdown * heat**4) / (1 + slowdown * (draw / (1 + MEASURED_REST)) ** 4)
            found = self._of_decodes[decodes, share] = factor, heat
        return found

    def step_ns(self, start_ns: int, decoded_until_ns: int, tokens: int, time_ns: float) -> float:
        """Nanoseconds of a step of `tokens` priced at `time_ns`, after steps of decodes up to `decoded_until_ns`, if
        there were any since the last call."""
        draw, slowdown, constant = self._draws[-1], self._slowdowns[-1], self._constant_ns
        if tokens < len(self._draws):
            draw, slowdown = self._draws[tokens], self._slowdowns[tokens]
        heat = self._heat
        if decoded_until_ns > self._at_ns:
            decoded = self.of_decodes
            heat = decoded + (heat - decoded) * exp((self._at_ns - decoded_until_ns) / constant)
            self._at_ns = decoded_until_ns
        if start_ns > self._at_ns:
            heat *= exp((self._at_ns - start_ns) / constant)
        length = time_ns / constant
        kept = exp(-length)
        recovered = kept**MEASURED_REST
        rested = draw * (1 - kept) * recovered / (1 - kept * recovered)
        mean, mean_rested = _mean_fourth_powers(heat, rested, draw, length, kept)
        taken = time_ns * (1 + slowdown * mean) / (1 + slowdown * mean_rested)
        self._heat = draw + (heat - draw) * exp(-taken / constant)
        self._at_ns, self.of_decodes = start_ns + int(taken), 0.0
        return taken


def _mean_fourth_powers(
    start: float, other_start: float, draw: float, length: float, kept: float
) -> tuple[float, float]:
    """The mean of heat^4 while it goes from `start` towards `draw` for `length` time constants, `kept` = e^-length; and
    the same from `other_start`."""
    part = (1 - kept) / length
    once = 4 * part * draw**3
    twice = 3 * part * draw**2 * (1 + kept)
    thrice = 4 / 3 * part * draw * (1 + kept + kept * kept)
    four_times = part / 4 * (1 + kept) * (1 + kept * kept)
    level, away, other = draw**4, draw - start, draw - other_start
    return (
        level - away * (once - away * (twice - away * (thrice - away * four_times))),
        level - other * (once - other * (twice - other * (thrice - other * four_times))),
    )
