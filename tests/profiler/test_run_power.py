"""The power limit as the last stage of `profile-gpu`: what becomes of it, and of the time it needs."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from profiler import run
from profiler.power_fit import PowerFit
from profiler.run_setup import Options
from profiler.sweep import Measured, resume
from simulator.cost_table import read_table, write_metadata
from simulator.power_limit import PowerLimit
from tests.simulator.tables import metadata, write_small_table

FOUND = PowerLimit(0.25, 0.03, 0.4)
SETUP = SimpleNamespace(shape="shape", backend="kernel", fused="fused")


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """Runs the stage of a table that is written; it comes to `stage.fit`."""
    path = write_small_table(tmp_path)

    def find(rank, table, cycles, **options):
        stage.given = (rank, table, cycles, options)
        return stage.fit

    def stage(measured=None, **options):
        given = Options(model="tiny", out=path, quiet=True, **options)
        return run._find_power_limit(given, SETUP, measured or Measured(), metadata(), 0.0)

    stage.fit, stage.given = PowerFit(FOUND, "fitted"), None
    monkeypatch.setattr(run, "find_power_limit", find)
    monkeypatch.setattr(run.machine, "dtype_of", lambda *_given: "dtype")
    return stage


def test_the_constants_go_into_the_sidecar(stage):
    """With a note, and the time that the whole run took by then."""
    made = stage()
    assert (made.power_limit, made.notes) == (FOUND, ("power limit: fitted",))
    assert made.seconds > 0


def test_whole_steps_of_the_rank_are_run_until_the_budget_is_over(stage):
    """Of kernels and type as in the table's rows."""
    stage(budget=100.0, tensor_parallel=2, quick=True, max_tokens=1024)
    rank, table, cycles, options = stage.given
    assert (rank.shape, rank.backend, rank.fused, rank.dtype, rank.ranks) == ("shape", "kernel", "fused", "dtype", 2)
    assert table.metadata.model.name == "two-layers"
    assert {duty.first for duty in cycles} == {"p512", "p256", "d32", "d128"}
    assert options["deadline_s"] == 100.0


def test_a_table_without_it_says_why(stage):
    """Here for lack of memory."""
    stage.fit = PowerFit(None, "not measured: out of memory", measured=False)
    made = stage()
    assert (made.power_limit, made.notes) == (None, ("power limit: not measured: out of memory",))


def test_a_cpu_has_none(stage):
    """Nothing is run."""
    made = stage(device="cpu")
    assert (made.power_limit, stage.given) == (None, None)
    assert made.notes == ("power limit: not looked for on a CPU",)


def test_an_interruption_says_how_to_get_it(stage, monkeypatch):
    """All points are on disk."""

    def interrupted(*_given, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "find_power_limit", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"all points are in .*small.csv, but without .* --resume adds them"):
        stage()


def test_a_resumed_run_keeps_what_an_earlier_one_found(stage, tmp_path):
    """The budget has no time to find it again."""
    path = tmp_path / "small.csv"
    then = replace(read_table(path).metadata, power_limit=FOUND)
    write_metadata(path.with_suffix(".yaml"), then)
    measured = resume(path, then)
    assert measured.power_limit == FOUND
    made = stage(measured)
    assert stage.given is None
    assert made.notes == ("power limit: that of an earlier run",)


@pytest.mark.parametrize(
    ("options", "kept", "sweep_ends_s"),
    [
        ({"budget": None}, None, None),
        ({"budget": 120.0}, None, 1000 + 96),
        ({"budget": 600.0}, None, 1000 + 560),
        ({"budget": 120.0}, FOUND, 1000 + 120),
        ({"budget": 120.0, "device": "cpu"}, None, 1000 + 120),
    ],
)
def test_the_sweep_leaves_a_fifth_of_the_budget(options, kept, sweep_ends_s):
    """And never more than the stage's limit; all is the sweep's where no power limit is looked for."""
    given = Options(model="tiny", out=Path("t.csv"), **options)
    assert run._deadline_s(given, Measured(power_limit=kept), 1000.0) == sweep_ends_s
