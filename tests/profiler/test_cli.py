"""`profile-gpu` from the command line, on a CPU and a tiny model: tables, interruption, mistakes."""

import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from profiler import device, run, run_setup, scan
from profiler.cli import _name_of, main
from profiler.grid import Limits
from profiler.options import Span
from profiler.sweep import Workshop, unfinished_path
from simulator.attention.kernels import kernel_of
from simulator.cost_table import read_table
from simulator.table_rows import OPERATORS
from tests.profiler.machines import TINY, needs_torch, write_tiny_model
from tests.simulator.attention.tiles import FA2_TIMES

pytestmark = needs_torch

SMALL = ["--device", "cpu", "--max-tokens", "66", "--max-kv-tokens", "512", "--quick", "--no-plots"]


@pytest.fixture
def profile(tmp_path):
    """Runs `profile-gpu` on the tiny model; the table goes to tmp_path/table.csv."""
    model = write_tiny_model(tmp_path)

    def run_it(*options, small=SMALL):
        out = tmp_path / "table.csv"
        return CliRunner().invoke(main, ["--model", str(model), "--out", str(out), *small, *options])

    run_it.out = tmp_path / "table.csv"
    return run_it


def test_a_table_that_the_simulator_reads(profile):
    """All operators, every row a measurement, and a sidecar that says where it comes from."""
    result = profile()
    assert result.exit_code == 0, result.output
    table = read_table(profile.out)
    assert set(table.rows["operator"]) == {*OPERATORS} - {"whole_layer"}  # from 2048 tokens on
    assert (table.rows["time_us"] > 0).all()
    assert (table.rows["p10_us"] <= table.rows["p90_us"]).all()
    assert (table.metadata.model.name, table.metadata.attention.backend) == ("tiny", "torch")
    assert table.metadata.gpu.name.startswith("CPU")
    assert table.metadata.command.startswith("profile-gpu --model tiny.yaml --attention auto --device cpu")
    assert "table.csv" in table.metadata.command
    assert str(profile.out.parent) not in table.metadata.command
    assert table.metadata.noise["repeat_points"] >= 1
    assert table.metadata.power_limit is None
    assert "power limit: not looked for on a CPU" in table.metadata.notes
    assert "cliffs" in result.output
    assert not unfinished_path(profile.out).exists()


def test_an_interrupted_run_keeps_its_rows_and_resumes(profile, monkeypatch):
    """Ctrl-C at the tenth point: exit status 1, rows kept, --resume measures the rest only."""
    measure, measured = Workshop.measure, []
    kernel = kernel_of("torch", TINY, run.machine.describe("cpu").sm_count)
    controls = len(run.control_points(run.plan(Limits(66, 512, 16), kernel, coarse=True)))

    def interrupted(self, point):
        measured.append(point)
        if len(measured) == controls + 10:
            raise KeyboardInterrupt
        return measure(self, point)

    monkeypatch.setattr(Workshop, "measure", interrupted)
    result = profile()
    assert result.exit_code == 1
    assert "9 of" in result.output
    assert "--resume" in result.output
    assert len(read_table(unfinished_path(profile.out)).frame()) == 9
    assert not profile.out.exists()
    refused = profile()
    assert refused.exit_code == 2
    assert "--resume goes on with it" in refused.output
    kept, before = measured[controls : controls + 9], len(measured)
    assert profile("--resume").exit_code == 0
    again = measured[before + controls : -controls]
    assert not set(kept) & set(again)
    assert len(read_table(profile.out).frame()) == len(kept) + len(again)
    assert not unfinished_path(profile.out).exists()


def test_a_fit_that_is_interrupted_is_said_and_made_up_for(profile, monkeypatch):
    """Ctrl-C once all is measured: exit status 1 and how to get the constants; --resume fits and measures no point."""
    measured = []

    def interrupted(*_given):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "LEAST_ATTENTION_KINDS", 1)
    monkeypatch.setattr(run, "fit_aloud", interrupted)
    result = profile()
    assert result.exit_code == 1
    assert "table.csv, but without the constants of its attention kernel" in result.output
    assert "--resume fits them" in result.output
    before = read_table(profile.out)
    assert before.metadata.attention_model is None
    monkeypatch.setattr(run, "fit_aloud", lambda *_given: FA2_TIMES)
    measure = Workshop.measure
    monkeypatch.setattr(Workshop, "measure", lambda self, point: measured.append(point) or measure(self, point))
    assert profile("--resume").exit_code == 0
    after = read_table(profile.out)
    assert after.metadata.attention_model == FA2_TIMES
    assert after.rows["time_us"].tolist() == before.rows["time_us"].tolist()
    assert max(map(measured.count, measured)) == 2  # the control points, before and after


def test_a_whole_run_scans_for_cliffs_and_draws(profile, monkeypatch):
    """Both sides of each compared step are rows, the sidecar has its interval, and plots lie beside the table."""
    monkeypatch.setitem(scan.ALLOWANCE_S, "cpu", 12.0)
    monkeypatch.setitem(scan.AIMS, "cpu", replace(scan.AIMS["cpu"], drift=0.001, smallest=0.01, least_rounds=2))
    result = profile(small=["--device", "cpu", "--max-tokens", "66", "--max-kv-tokens", "256"])
    assert result.exit_code == 0, result.output
    table = read_table(profile.out)
    assert table.metadata.cliffs
    for cliff in table.metadata.cliffs:
        place = "sequences" if cliff.operator == "lm_head" else "tokens"
        measured = set(table.rows[place][table.rows["operator"] == cliff.operator].tolist())
        assert {cliff.tokens, cliff.tokens + 1} <= measured
        assert cliff.low < cliff.growth < cliff.high
    assert (profile.out.parent / "table-plots" / "tokens.png").is_file()


def test_a_short_budget_leaves_a_coarse_table_and_says_what_it_lacks(profile, monkeypatch):
    """The clock jumps past the budget at the thirtieth point."""
    measure, count = Workshop.measure, []

    def late(self, point):
        count.append(point)
        if len(count) == 30:
            monkeypatch.setattr("time.monotonic", lambda: 1e9)
        return measure(self, point)

    monkeypatch.setattr(Workshop, "measure", late)
    result = profile("--budget", "2m", small=[*SMALL[:-2], "--no-plots"])
    assert result.exit_code == 0, result.output
    table = read_table(profile.out)
    assert len(table.frame()) < 30
    assert any(note.startswith("stopped by --budget with") for note in table.metadata.notes)
    assert "of attention" in result.output


@pytest.mark.parametrize(("text", "seconds"), [("120s", 120), ("2m", 120), ("90", 90), ("1.5 min", 90), ("1h", 3600)])
def test_a_budget_in_words(text, seconds):
    """Seconds where no unit is given."""
    assert Span().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["soon", "-3", "2m30", ""])
def test_a_budget_that_is_no_time(text, tmp_path):
    """Exit status 2, and how to write it."""
    result = CliRunner().invoke(main, ["--budget", text, "--out", str(tmp_path / "t.csv")])
    assert result.exit_code == 2
    assert "write 120s, 2m or plain seconds" in result.output


def test_an_existing_table_is_not_overwritten(profile):
    """Unless --force says so."""
    profile.out.write_text("precious", encoding="utf-8")
    result = profile()
    assert result.exit_code == 2
    assert "--force" in result.output
    assert profile.out.read_text(encoding="utf-8") == "precious"
    assert profile("--force", "--quiet").exit_code == 0


def test_a_budget_of_nothing_writes_no_table(profile):
    """And says why."""
    result = profile("--budget", "0")
    assert result.exit_code == 2
    assert "the budget was over" in result.output
    assert not profile.out.exists()


def test_no_gpu_is_one_clear_line(profile, monkeypatch):
    """Exit status 2, no traceback, and what to do."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = profile(small=[])
    assert result.exit_code == 2
    assert result.output.startswith("profile-gpu: no NVIDIA GPU")
    assert result.output.count("\n") == 1


def test_no_torch_is_one_clear_line(profile, monkeypatch):
    """A machine that only simulates has none."""
    monkeypatch.setitem(sys.modules, "torch", None)
    result = profile()
    assert result.exit_code == 2
    assert "needs PyTorch" in result.output
    assert result.output.count("\n") == 1


def test_no_flash_attn_is_one_clear_line(profile, monkeypatch):
    """A GPU is there, its kernel is not."""
    monkeypatch.setattr(device, "require_torch", lambda _device: None)
    monkeypatch.setattr(device, "describe", lambda _device: device.Gpu("NVIDIA H200", 10**9, 132, "9.0"))
    for package in ("flash_attn", "vllm"):
        monkeypatch.setitem(sys.modules, package, None)
    result = profile(small=[])
    assert result.exit_code == 2
    assert "no flash-attn kernel could be loaded" in result.output
    assert result.output.count("\n") == 1


def test_too_little_memory_is_one_clear_line(profile, monkeypatch):
    """It says how much is needed and how much is free."""
    monkeypatch.setattr(device, "free_bytes", lambda _device: 30_000)
    result = profile()
    assert result.exit_code == 2
    assert "too little memory: timing tiny at 66 tokens takes about" in result.output
    assert result.output.count("\n") == 1


def test_little_memory_cuts_attention_and_notes_it(profile, monkeypatch):
    """Operators fit, the largest KV caches do not."""
    monkeypatch.setattr(run_setup, "LEAST_KV_TOKENS", 64)
    monkeypatch.setattr(run_setup, "needed_bytes", lambda *_: 0)
    monkeypatch.setattr(device, "free_bytes", lambda _device: 40_000)
    assert profile().exit_code == 0
    table = read_table(profile.out)
    assert "memory limits attention to 176 KV entries a call" in table.metadata.notes
    decoding = table.rows["decodes"] * table.rows["decode_context"]
    assert 0 < decoding.max() <= 176


def test_an_unknown_model_is_named_with_the_nearest(tmp_path):
    """No torch is loaded to find that out."""
    result = CliRunner().invoke(main, ["--model", "llama-3.1-8", "--out", str(tmp_path / "t.csv")])
    assert result.exit_code == 2
    assert 'did you mean "llama-3.1-8b"?' in result.output


def test_a_table_must_be_a_csv(tmp_path):
    """Its sidecar's name is made from it."""
    result = CliRunner().invoke(main, ["--model", "llama-13b", "--out", str(tmp_path / "t.parquet")])
    assert result.exit_code == 2
    assert "--out: a table is a .csv file" in result.output


@pytest.mark.parametrize(
    ("model", "name"),
    [("llama-3.1-8b", "llama-3.1-8b"), ("a/b.yaml", "b"), ("/m/Qwen-7B/config.json", "Qwen-7B")],
)
def test_the_table_is_named_after_the_model(model, name):
    """A dot in a model's name is no suffix."""
    assert _name_of(model) == name
