"""The power limit's constants from steps whose constants are known."""

from dataclasses import replace

import numpy as np
import pytest

from profiler.duty_cycles import CYCLES, StepRow
from profiler.power_fit import PowerFit, fit_power_limit
from profiler.power_stage import QUICK_CYCLES
from simulator.power_limit import PowerLimit
from tests.profiler.duty_rows import TOKEN_NS, TOKENS, rows_of

H200_LIKE = PowerLimit(slowdown=0.21, time_constant_s=0.04, decode_intensity=0.5)
SLOW = PowerLimit(slowdown=0.4, time_constant_s=0.12, decode_intensity=0.3)


def fit(rows: list[StepRow]) -> PowerFit:
    return fit_power_limit(rows, TOKENS, TOKEN_NS)


def off(found: PowerLimit, true: PowerLimit) -> list[float]:
    """Relative errors of the three constants."""
    names = ("slowdown", "time_constant_s", "decode_intensity")
    return [abs(getattr(found, name) / getattr(true, name) - 1) for name in names]


@pytest.mark.parametrize("true", [H200_LIKE, SLOW], ids=["fast", "slow"])
def test_the_constants_come_back_from_noisy_steps(true):
    """To 4 per cent, with steps that vary by half a per cent and prices that are off by up to three."""
    found = fit(rows_of(true))
    assert found.measured
    assert max(off(found.limit, true)) < 0.04


def test_the_first_cycles_alone_tell_them():
    """As with --quick, or a short budget."""
    found = fit(rows_of(H200_LIKE, CYCLES[:QUICK_CYCLES]))
    assert max(off(found.limit, H200_LIKE)) < 0.06


def test_some_disturbed_steps_bend_nothing():
    """One step in 25 takes half as long again, which squares of errors would not bear."""
    random = np.random.default_rng(1)
    rows = [replace(row, time_s=row.time_s * (1.5 if random.random() < 0.04 else 1)) for row in rows_of(H200_LIKE)]
    assert max(off(fit(rows).limit, H200_LIKE)) < 0.1


def test_a_long_cycle_weighs_no_more_than_a_short_one():
    """Decodes in a row, of which there are many in a second, disagree with all others and do not prevail."""
    rows = rows_of(H200_LIKE, CYCLES[:QUICK_CYCLES])
    wrong = [row for row in rows_of(replace(H200_LIKE, decode_intensity=1.0), CYCLES[3:4]) if row.kind == "d32"]
    last_s = rows[-1].start_s + 1
    once = [*rows, *(replace(row, cycle="again", start_s=row.start_s + last_s) for row in wrong)]
    often = [*once, *(replace(row, cycle="again", start_s=row.start_s + 2 * last_s) for row in wrong)]
    for found in (fit(once), fit(often)):
        assert max(off(found.limit, H200_LIKE)) < 0.1
    assert fit(once).limit.decode_intensity == pytest.approx(fit(often).limit.decode_intensity, rel=0.02)


def test_what_remains_is_told_by_cycle():
    """Median and 95 % quantile of steps that vary by half a per cent; the note has the median of the worst cycle."""
    found = fit(rows_of(H200_LIKE))
    assert list(found.limit.error) == [duty.name for duty in CYCLES]
    for of_cycle in found.limit.error.values():
        assert 0.001 < of_cycle["median"] < 0.006
        assert 0.005 < of_cycle["p95"] < 0.02
    assert f"in {len(CYCLES)} duty cycles" in found.note
    assert f"{max(of['median'] for of in found.limit.error.values()):.1%}" in found.note


@pytest.mark.parametrize(("noise", "said"), [(0.001, "steps take at most 0."), (0.02, "which is nothing")])
def test_a_gpu_that_is_never_slowed_has_no_constants(noise, said):
    """However much its steps vary; the note says what was seen."""
    found = fit(rows_of(replace(H200_LIKE, slowdown=0.0), noise=noise))
    assert (found.limit, found.measured) == (None, True)
    assert said in found.note


def test_a_slowdown_below_a_per_cent_is_none():
    """Though without noise it shows."""
    assert fit(rows_of(replace(H200_LIKE, slowdown=0.008), noise=0.0)).limit is None
