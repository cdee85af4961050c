"""What is run to see a GPU slow down, and how: on the host's clock, with steps that only take note of themselves."""

import time
from itertools import pairwise
from statistics import median

import pytest

from profiler import duty_cycles
from profiler.duty_cycles import CYCLES, IDLE_S, KINDS, LEAST_ROUNDS, DutyCycle, play
from profiler.marks import HostMarks
from profiler.power_stage import LEAST_CYCLES, LIMIT_S, QUICK_CYCLES, cycles_for


@pytest.fixture
def hasty(monkeypatch):
    """No idling before a cycle, and as few rounds as may be."""
    monkeypatch.setattr(duty_cycles, "IDLE_S", 0.0)
    monkeypatch.setattr(DutyCycle, "seconds", 0.0)


def played(duty, step_s=0.0):
    """(the rows, the kinds in the order of their launches)."""
    launched = []

    def launch(kind):
        launched.append(kind)
        time.sleep(step_s)

    marks = HostMarks()
    calls = {kind: lambda kind=kind: launch(kind) for kind in duty.kinds}
    return play(duty, calls, marks, marks.mark()), launched


def test_all_cycles_together_take_less_than_the_limit():
    """With some seconds left to build the model and capture its steps."""
    assert sum(IDLE_S + duty.seconds for duty in CYCLES) < LIMIT_S - 5


def test_each_cycle_is_of_known_kinds_and_named_once():
    """The sidecar lists errors by name."""
    assert {kind for duty in CYCLES for kind in duty.kinds} == {*KINDS}
    assert len({duty.name for duty in CYCLES}) == len(CYCLES)
    assert DutyCycle("p2048", between=4).name == "p2048 + 4 d32"
    assert DutyCycle("p512", rest=0.25).name == "p512 rest 0.25"


def test_a_quick_run_still_tells_all_constants():
    """It has a row without pause, a rest, and decodes between, of which the limit's constants are read."""
    quick = cycles_for(8192, quick=True)
    assert LEAST_CYCLES <= len(quick) == QUICK_CYCLES
    for part in (quick, quick[:LEAST_CYCLES]):
        assert any(duty.rest for duty in part)
        assert any(duty.between for duty in part)
        assert any(not (duty.rest or duty.between) for duty in part)


def test_steps_larger_than_the_table_are_left_out():
    """Their prices would be a guess."""
    assert {duty.first for duty in cycles_for(1024)} == {"p512", "p256", "d32", "d128"}


@pytest.mark.usefixtures("hasty")
def test_rounds_are_whole_and_in_order():
    """Each step is a row, with the kinds in turn, one after the other."""
    duty = DutyCycle("p256", between=2)
    rows, launched = played(duty)
    assert launched == ["p256", "d32", "d32"] * LEAST_ROUNDS
    assert [row.kind for row in rows] == launched
    assert {row.cycle for row in rows} == {"p256 + 2 d32"}
    assert all(row.start_s + row.time_s <= after.start_s for row, after in pairwise(rows))


@pytest.mark.usefixtures("hasty")
def test_a_rest_follows_the_round_not_the_step():
    """As long as its share of the round, and no pause within a round."""
    rows, _ = played(DutyCycle("p256", rest=1.0, between=1), step_s=0.02)
    gaps = [after.start_s - row.start_s - row.time_s for row, after in pairwise(rows)]
    assert median(gaps[::2]) < 0.02
    assert all(gap > 0.039 for gap in gaps[1::2])


def test_a_cycle_begins_after_idling_and_lasts(monkeypatch):
    """The GPU is cool then; rounds go on until the cycle's time is over."""
    monkeypatch.setattr(duty_cycles, "IDLE_S", 0.05)
    monkeypatch.setattr(DutyCycle, "seconds", 0.1)
    rows, _ = played(DutyCycle("d32"), step_s=0.005)
    assert rows[0].start_s >= 0.05
    assert rows[-1].start_s + rows[-1].time_s - rows[0].start_s > 0.09
