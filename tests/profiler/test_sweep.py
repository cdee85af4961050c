"""A sweep keeps what it measured, whatever happens; the measuring itself is made up here."""

from dataclasses import replace

import pytest

from profiler.grid import Point
from profiler.sweep import (
    Measured,
    repeat_noise,
    resume,
    row_of,
    save_unfinished,
    sweep,
    unfinished_path,
)
from profiler.timing import Timing
from simulator.cost_table import Attention, Gpu, TableMetadata, read_table, write_table
from simulator.errors import InputError
from tests.profiler.machines import TINY

POINTS = [Point("mlp", tokens=count) for count in range(1, 7)]
METADATA = TableMetadata(
    gpu=Gpu("NVIDIA H200", 150_000_000_000, 132, "9.0"),
    model=TINY,
    attention=Attention("torch", "2.9"),
    dtype="bfloat16",
    tensor_parallel=1,
    page_size=16,
    torch="2.9",
    cuda="13.0",
    driver="580",
    date="2026-01-01",
    repeats=7,
    command="profile-gpu",
)


def _row(point):
    return row_of(point, Timing(10.0 * point.tokens, 9.0, 11.0, 7), float("nan"))


class Measuring:
    """Measures points at 10 us a token; raises `failures[tokens]` instead, once each."""

    def __init__(self, failures=None):
        self.failures, self.asked, self.saves = dict(failures or {}), [], 0

    def measure(self, point):
        self.asked.append(point.tokens)
        if point.tokens in self.failures:
            raise self.failures.pop(point.tokens)
        return _row(point)

    def save(self):
        self.saves += 1

    def run(self, measured, **options):
        sweep(POINTS, self.measure, measured, report=lambda *_: None, save=self.save, **options)
        return measured


def test_all_points_in_order_and_one_save_at_the_end():
    """Six points take no time, so nothing is saved between."""
    measuring = Measuring()
    measured = measuring.run(Measured())
    assert list(measured.rows) == POINTS
    assert measuring.saves == 1
    assert measured.notes == []


def test_measured_points_are_not_measured_again():
    """What a resumed run brings is kept."""
    measuring = Measuring()
    measured = measuring.run(Measured({point: _row(point) for point in POINTS[:4]}))
    assert measuring.asked == [5, 6]
    assert set(measured.rows) == set(POINTS)


def test_a_point_without_memory_is_left_out_and_noted():
    """The others are measured."""
    measured = Measuring({3: RuntimeError("CUDA out of memory. Tried to allocate 9 GiB")}).run(Measured())
    assert [point.tokens for point in measured.rows] == [1, 2, 4, 5, 6]
    assert measured.notes == ["left out mlp of 3: out of memory"]


def test_three_refusals_in_a_row_are_not_the_point_s_fault():
    """The error comes out, and what was measured before is saved."""
    measuring = Measuring({count: RuntimeError(f"CUDA error {count}") for count in (3, 4, 5)})
    measured = Measured()
    with pytest.raises(RuntimeError, match="CUDA error 5"):
        measuring.run(measured)
    assert len(measured.rows) == 2
    assert measuring.saves == 1


def test_an_interrupt_saves():
    """Also when a graph's capture, broken off by it, raises an error of its own."""
    broken = RuntimeError("capture was invalidated")
    broken.__context__ = KeyboardInterrupt()
    for error in (KeyboardInterrupt(), broken):
        measuring = Measuring({4: error})
        measured = Measured()
        with pytest.raises(KeyboardInterrupt):
            measuring.run(measured)
        assert [point.tokens for point in measured.rows] == [1, 2, 3]
        assert measuring.saves == 1


def test_the_budget_ends_the_sweep_with_a_note():
    """A deadline in the past leaves everything."""
    measured = Measuring().run(Measured(), deadline_s=0.0)
    assert measured.rows == {}
    assert measured.remarks() == ["stopped by --budget with 6 points left out: 6 of mlp"]


def test_an_unfinished_table_is_a_table(tmp_path):
    """It is read like any other, says that it is unfinished, and gives its rows back exactly once resumed."""
    out = tmp_path / "table.csv"
    measured = Measured({point: _row(point) for point in (POINTS[2], POINTS[0])})
    save_unfinished(out, measured, METADATA)
    table = read_table(unfinished_path(out))
    assert table.rows["tokens"].tolist() == [1, 3]
    assert table.metadata.notes == ("unfinished: 2 points",)
    assert set(resume(out, METADATA).rows) == {POINTS[0], POINTS[2]}
    assert resume(tmp_path / "other.csv", METADATA).rows == {}


def test_a_finished_table_can_be_resumed_with_a_finer_grid(tmp_path):
    """After --quick the rest is measured, not all again."""
    write_table(tmp_path / "t.csv", Measured({POINTS[1]: _row(POINTS[1])}).frame(), METADATA)
    assert list(resume(tmp_path / "t.csv", METADATA).rows) == [POINTS[1]]


def test_measurements_of_two_gpus_are_not_mixed(tmp_path):
    """The message names what differs."""
    save_unfinished(tmp_path / "t.csv", Measured({POINTS[1]: _row(POINTS[1])}), METADATA)
    other = replace(METADATA, gpu=replace(METADATA.gpu, name="NVIDIA A100"))
    with pytest.raises(InputError, match=r"t\.unfinished\.csv, gpu: --resume would mix.*H200.*A100"):
        resume(tmp_path / "t.csv", other)


def test_noise_is_the_difference_of_repeats():
    """100, 102 and 101 us: 2 us of 101; a point measured once says nothing."""
    runs = [{POINTS[0]: {"time_us": time}} for time in (100.0, 102.0, 101.0)]
    noise = repeat_noise([*runs, {POINTS[1]: {"time_us": 5.0}}])
    assert noise["repeat_points"] == 1
    assert noise["repeat_median_percent"] == noise["repeat_max_percent"] == pytest.approx(1.98, abs=0.001)
    assert repeat_noise([{}]) == {}
