"""Steps as a GPU at a power limit would run them: the formula itself plays the duty cycles, with noise."""

from collections.abc import Sequence

import numpy as np

from profiler.duty_cycles import CYCLES, IDLE_S, KINDS, DutyCycle, StepRow
from simulator.power_limit import Heat, PowerLimit

TOKEN_NS = [0.0, *(max(7e6, 20e3 * tokens + 1e6) for tokens in range(1, 2049))]
"""Prices by tokens of a GPU that reads weights for 7 ms and computes 50 tokens a millisecond."""
TOKENS = {kind: batch.tokens for kind, batch in KINDS.items()}


def rows_of(
    limit: PowerLimit, cycles: Sequence[DutyCycle] = CYCLES, noise: float = 0.005, seed: int = 0
) -> list[StepRow]:
    """The steps of `cycles` under `limit`; `noise` is that of one step, and prices differ from TOKEN_NS by some per
    cent."""
    random, heat = np.random.default_rng(seed), Heat(limit, TOKEN_NS)
    prices = {kind: TOKEN_NS[tokens] * random.uniform(0.97, 1.03) for kind, tokens in TOKENS.items()}
    rows, now_ns = [], 0.0
    for duty in cycles:
        now_ns += IDLE_S * 1e9
        until_ns = now_ns + duty.seconds * 1e9
        while now_ns < until_ns:
            round_ns = now_ns
            for kind in duty.kinds:
                taken = heat.step_ns(int(now_ns), 0, TOKENS[kind], prices[kind]) * (1 + noise * random.normal())
                rows.append(StepRow(duty.name, kind, now_ns / 1e9, taken / 1e9))
                now_ns += taken
            now_ns += duty.rest * (now_ns - round_ns)
    return rows
