"""`profile-gpu --add-power-limit`: a table gets the constants, all else is kept; and what it refuses."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

from profiler import device, power_only
from profiler.attention import TorchAttention
from profiler.cli import main
from profiler.power_fit import PowerFit
from profiler.power_only import Options, measure
from simulator.cost_table import Cliff, read_table, write_metadata
from simulator.power_limit import PowerLimit
from tests.profiler.machines import needs_torch
from tests.simulator.tables import GPU, write_small_table

FOUND = PowerLimit(
    0.25, 0.03, 0.4, {"p2048": {"median": 0.01, "p95": 0.04}, "p512 rest 0.1": {"median": 0.0, "p95": 0.1}}
)
NOTES = ("elementwise work fused", "power limit: not measured: no time")


@pytest.fixture
def path(tmp_path):
    """A table with notes, cliffs and noise."""
    path = write_small_table(tmp_path)
    kept = {"notes": NOTES, "cliffs": (Cliff("mlp", 128, 0.5, 0.4, 0.6, 3),), "noise": {"repeat_max_percent": 1.5}}
    write_metadata(path.with_suffix(".yaml"), replace(read_table(path).metadata, **kept))
    return path


@pytest.fixture
def found(monkeypatch):
    """The stage comes to this; `found.given` is what it was told."""

    def find(rank, table, cycles, **options):
        find.given = (rank, table, cycles, options)
        return find.fit

    find.fit = PowerFit(FOUND, "fitted to 100 steps")
    monkeypatch.setattr(power_only, "find_power_limit", find)
    monkeypatch.setattr(power_only, "_rank", lambda *_given: "rank")
    return find


def run(*options):
    return CliRunner().invoke(main, ["--add-power-limit", *map(str, options)])


@pytest.mark.usefixtures("found")
def test_the_constants_are_added_and_all_else_is_kept(path, capsys):
    """The CSV to the byte, the sidecar but for the limit and its note; what was done is said."""
    csv, before = path.read_bytes(), read_table(path).metadata
    measure(Options(path), read_table(path), 0.0)
    after = read_table(path).metadata
    assert path.read_bytes() == csv
    assert after == replace(before, power_limit=FOUND, notes=(NOTES[0], "power limit: fitted to 100 steps"))
    said = capsys.readouterr().err
    assert "slowdown 0.25, time constant 30.0 ms, decode intensity 0.4 (before: none)" in said
    assert str(path.with_suffix(".yaml")) in said
    assert not list(path.parent.glob("*.partial"))


def test_a_limit_that_is_not_there_takes_the_place_of_one(path, found):
    """The GPU may have been given more power since."""
    measure(Options(path), read_table(path), 0.0)
    found.fit = PowerFit(None, "steps take at most 0.3% longer")
    measure(Options(path, quiet=True), read_table(path), 0.0)
    after = read_table(path).metadata
    assert after.power_limit is None
    assert after.notes == (NOTES[0], "power limit: steps take at most 0.3% longer")


def test_what_is_run_suits_the_table(path, found):
    """Steps of at most its 256 tokens, until the budget is over."""
    measure(Options(path, budget=30.0), read_table(path), 1000.0)
    _, _, cycles, options = found.given
    assert {duty.first for duty in cycles} == {"p256", "d32", "d128"}
    assert options["deadline_s"] == 1030.0


def test_errors_of_the_fit_take_a_line_a_cycle(path, found):
    """A sidecar is read by people."""
    measure(Options(path), read_table(path), 0.0)
    text = path.with_suffix(".yaml").read_text(encoding="utf-8")
    assert "    p2048: {median: 0.01, p95: 0.04}\n" in text
    assert found.given[0] == "rank"


@pytest.fixture
def on_a_gpu(monkeypatch):
    """A GPU is there, the table's own, and warm."""
    monkeypatch.setattr(device, "require_torch", lambda _device: None)
    monkeypatch.setattr(device, "describe", lambda _device: GPU)
    monkeypatch.setattr(power_only, "warm_gpu", lambda _seconds: None)


@pytest.mark.usefixtures("on_a_gpu", "found")
def test_from_the_command_line(path):
    """Exit status 0."""
    result = run(path)
    assert result.exit_code == 0, result.output
    assert read_table(path).metadata.power_limit == FOUND


@pytest.mark.usefixtures("on_a_gpu")
def test_without_a_measurement_the_table_stays_as_it_was(path, found):
    """Exit status 2, and why."""
    found.fit = PowerFit(None, "not measured: the model and its steps need 90.0 GiB", measured=False)
    before = path.with_suffix(".yaml").read_bytes()
    result = run(path)
    assert result.exit_code == 2
    assert "need 90.0 GiB; the table is as it was" in result.output
    assert path.with_suffix(".yaml").read_bytes() == before


@pytest.mark.usefixtures("on_a_gpu", "found")
def test_another_gpu_is_refused(path, monkeypatch):
    """Its power limit is another."""
    monkeypatch.setattr(device, "describe", lambda _device: replace(GPU, name="Other GPU"))
    result = run(path)
    assert result.exit_code == 2
    assert "the table is of a Test GPU (100 SMs), this is a Other GPU (100 SMs)" in result.output


def test_a_table_that_was_not_measured_is_refused(path):
    """Its prices are not this GPU's."""
    write_metadata(path.with_suffix(".yaml"), replace(read_table(path).metadata, source="modelled"))
    result = run(path)
    assert result.exit_code == 2
    assert "the table is modelled, not measured on a GPU" in result.output


@pytest.mark.parametrize("name", ["h200/llama-3.1-8b", "small.yaml", "none.csv"])
def test_a_file_is_needed(path, name):
    """A table that ships is not changed by its name."""
    result = run(path.parent / name)
    assert result.exit_code == 2
    assert "--add-power-limit: a table is a .csv file" in result.output


@pytest.mark.parametrize(
    "options", [["--model", "tiny"], ["--out", "x.csv"], ["--tp", 2], ["--force"], ["--resume"], ["--max-tokens", 1]]
)
def test_what_the_table_says_cannot_be_said_again(path, options):
    """The model is the table's."""
    result = run(path, *options)
    assert result.exit_code == 2
    assert "takes model, type and sizes from the table" in result.output


def test_a_cpu_is_refused(path):
    """There is nothing to be found."""
    result = run(path, "--device", "cpu")
    assert result.exit_code == 2
    assert "--device: a CPU's power limit is not looked for" in result.output


@needs_torch[1]
@needs_torch[0]
def test_the_kernel_is_the_table_s(path):
    """Unless --attention names another, which is checked before it is run; shape and type are the table's, too."""
    then = read_table(path).metadata
    rank = power_only._rank(Options(path, "cpu", "torch"), replace(then, dtype="float32", tensor_parallel=2))
    assert isinstance(rank.backend, TorchAttention)
    assert (rank.shape, str(rank.dtype), rank.ranks) == (then.model.shard(2), "torch.float32", 2)
    with pytest.raises(power_only.InputError, match="fa2"):
        power_only._rank(Options(path, "cpu"), then)
