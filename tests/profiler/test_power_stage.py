"""The stage that looks for a power limit, on a CPU and a tiny model: what is run, and when nothing comes of it."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from profiler import duty_cycles, power_stage
from profiler.attention import TorchAttention
from profiler.clocks import ClockSampler, Reading
from profiler.duty_cycles import DutyCycle
from profiler.fused import TorchFused
from profiler.power_fit import PowerFit
from profiler.power_stage import POWER_NOTE, Rank, find_power_limit, noted
from simulator.batch_file import ListedBatch
from simulator.power_limit import PowerLimit
from tests.profiler.machines import TINY, needs_gpu, needs_torch

pytestmark = [*needs_torch, pytest.mark.usefixtures("one_thread")]

KINDS = {
    "prompt": ListedBatch("prompt", ((0, 40),), ()),
    "d32": ListedBatch("d32", (), (20, 33)),
    "long": ListedBatch("long", ((200, 30),), ()),
}
SHORT = [DutyCycle("prompt"), DutyCycle("d32"), *(DutyCycle("prompt", between=n) for n in range(1, 8))]
LONG = DutyCycle("long", rest=0.1)
FOUND = PowerFit(PowerLimit(0.2, 0.04, 0.5), "seen")


@pytest.fixture
def find(monkeypatch):
    """Runs the stage; `find.fitted` is what went into the fit: rows, tokens of each kind, prices."""
    import torch

    monkeypatch.setattr(duty_cycles, "IDLE_S", 0.0)
    monkeypatch.setattr(DutyCycle, "seconds", 0.0)
    rank = Rank(TINY, TorchAttention(), TorchFused(), "cpu", torch.float32)
    table = SimpleNamespace(rows={"operator": ["qkv_proj", "o_proj", "mlp", "elementwise", "embedding"]})
    monkeypatch.setattr(power_stage, "token_prices", lambda _table: "prices")

    def run(cycles=(*SHORT, LONG), **options):
        return find_power_limit(rank, table, list(cycles), kinds=KINDS, **options)

    def fit(*given):
        run.fitted = given
        return FOUND

    monkeypatch.setattr(power_stage, "fit_power_limit", fit)
    run.table, run.fitted = table, None
    return run


def cycles_in(rows):
    return list(dict.fromkeys(row.cycle for row in rows))


def test_whole_steps_of_all_cycles_are_fitted(find):
    """In order, with the tokens of each kind of step and the table's prices."""
    assert find() == FOUND
    rows, tokens, prices = find.fitted
    assert cycles_in(rows) == [duty.name for duty in (*SHORT, LONG)]
    assert all(row.time_s > 0 for row in rows)
    assert [row.start_s for row in rows] == sorted(row.start_s for row in rows)
    assert (tokens, prices) == ({"prompt": 40, "d32": 2, "long": 30}, "prices")


def test_what_memory_does_not_suffice_for_is_left_out(find, monkeypatch):
    """The step with the largest cache, and the cycles that have it."""
    room = Rank(TINY, TorchAttention(), TorchFused(), "cpu", SimpleNamespace(itemsize=4)).room
    enough = power_stage._needed(room, [KINDS["prompt"], KINDS["d32"], KINDS["long"]]) - 1
    monkeypatch.setattr(power_stage.machine, "free_bytes", lambda _device: enough)
    find()
    assert cycles_in(find.fitted[0]) == [duty.name for duty in SHORT]


def test_too_little_memory_for_the_model_is_noted(find, monkeypatch):
    """Nothing is built."""
    monkeypatch.setattr(power_stage.machine, "free_bytes", lambda _device: 1000)
    found = find()
    assert (found.limit, found.measured) == (None, False)
    assert "the model and its steps need" in found.note


def test_time_that_is_over_is_noted(find):
    """Too few cycles tell nothing."""
    found = find(deadline_s=0.0)
    assert (found.limit, found.measured) == (None, False)
    assert "time for 0 duty cycles only" in found.note
    assert find.fitted is None


def test_short_time_leaves_the_first_cycles(find, monkeypatch):
    """Which are enough; the clock jumps past the deadline in the ninth."""
    play, begun = power_stage.play, []

    def late(duty, *given):
        begun.append(duty.name)
        rows = play(duty, *given)
        if len(begun) == 9:
            monkeypatch.setattr(power_stage.time, "monotonic", lambda: 1e12)
        return rows

    monkeypatch.setattr(power_stage, "play", late)
    assert find() == FOUND
    assert cycles_in(find.fitted[0]) == begun == [duty.name for duty in SHORT]


def test_few_tokens_tell_too_little(find):
    """A table of small steps has too few of the cycles."""
    found = find(SHORT[:3])
    assert not found.measured
    assert "so few tokens" in found.note


def test_a_table_without_an_operator_is_noted(find):
    """A budget left it out, so steps have no price."""
    find.table.rows["operator"].remove("mlp")
    assert find().note == "not measured: the table has no mlp"


def test_a_kernel_that_refuses_is_noted(find, monkeypatch):
    """The table is measured by then, and must not be lost."""

    def refuse(*_given):
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(power_stage, "play", refuse)
    assert find().note == "not measured: out of memory"


def test_an_interruption_is_one(find, monkeypatch):
    """Also one that broke off a graph's capture, which torch raises as an error of its own."""

    def interrupted(*_given):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise RuntimeError("capture failed")  # noqa: B904 - as torch does

    monkeypatch.setattr(power_stage, "play", interrupted)
    with pytest.raises(KeyboardInterrupt):
        find()


@needs_gpu
def test_steps_are_replayed_and_timed_on_a_gpu(find, monkeypatch):
    """One after the other, on the GPU's own clock."""
    import torch

    rank = Rank(replace(TINY, head_dim=64), TorchAttention(), TorchFused(), "cuda", torch.bfloat16)
    monkeypatch.setattr(power_stage, "LEAST_CYCLES", 1)
    found = find_power_limit(rank, find.table, SHORT, kinds=KINDS)
    assert found.limit == FOUND.limit
    rows = find.fitted[0]
    assert all(0 < row.time_s < 0.1 for row in rows)
    assert all(row.start_s + 0.99 * row.time_s < after.start_s for row, after in pairwise(rows))


def test_the_clock_is_told_where_it_is_known(find, monkeypatch):
    """A limit that the clock does not show is none."""
    readings = [Reading(0.0, 1980.0, 300.0, 0), Reading(1.0, 1320.0, 700.0, 0x4)]
    monkeypatch.setattr(power_stage, "ClockSampler", lambda _device: Sampled(readings))
    assert find().note == "seen; SM clock 1320 to 1980 MHz, lowered by the power cap in 50% of the readings"


class Sampled(ClockSampler):
    """A sampler that has read this."""

    def __init__(self, readings):
        super().__init__("cpu")
        self.readings = readings


def test_a_note_replaces_the_one_before():
    """The others stay."""
    notes = ("elementwise", f"{POWER_NOTE}not measured: no time", "attention")
    assert noted(FOUND, notes) == ("elementwise", "attention", "power limit: seen")
