"""`measure-batches` from the command line, on a CPU and a tiny model: rows, interruption, memory, mistakes."""

import csv
import json
import sys

import pytest
import yaml
from click.testing import CliRunner

from profiler import device, measure, measure_setup
from profiler.attention import TorchAttention
from profiler.measure_cli import measure_batches
from profiler.measured_rows import COLUMNS
from profiler.room import Room
from tests.profiler.machines import TINY, needs_gpu, needs_torch, write_tiny_model
from tests.profiler.test_verify import Masked, causal, left_aligned

pytestmark = [*needs_torch, pytest.mark.usefixtures("one_thread")]

BATCHES = [
    {"id": "prefill", "prefills": [[0, 40], [16, 7]], "decodes": []},
    {"id": "decode", "prefills": [], "decodes": [1, 33, 90]},
    {"id": "hybrid", "prefills": [[100, 60]], "decodes": [5]},
]
ENTRIES = {"prefill": 48 + 32, "decode": 16 + 48 + 96, "hybrid": 160 + 16}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """`batches.jsonl` and `tiny.yaml`, the model; the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "batches.jsonl").write_text("".join(f"{json.dumps(batch)}\n" for batch in BATCHES))
    write_tiny_model(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder):
    """Runs the command; `run.rows()` is what it wrote, `run.sidecar()` what it says of it."""

    def run_it(*options, code=0, on=("--device", "cpu")):
        words = ["batches.jsonl", "--model", "tiny.yaml", "--out", "measured.csv", *on, *options]
        result = CliRunner().invoke(measure_batches, words)
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result.output

    def rows():
        with (folder / "measured.csv").open(encoding="utf-8") as file:
            return list(csv.DictReader(file))

    run_it.rows, run_it.out = rows, folder / "measured.csv"
    run_it.sidecar = lambda: yaml.safe_load((folder / "measured.yaml").read_text(encoding="utf-8"))
    return run_it


def ids(rows):
    return [row["id"] for row in rows]


@pytest.fixture
def steps(monkeypatch):
    """The batches that are run, in order; a test may set `steps.at[id]` to what happens instead."""

    class Steps(list):
        at: dict = {}  # noqa: RUF012 - one a test

    ran = Steps()
    ran.at, row = {}, measure._row

    def recorded(model, batch, timer, clocks):
        ran.append(batch.id)
        if batch.id in ran.at:
            raise ran.at[batch.id]
        return row(model, batch, timer, clocks)

    monkeypatch.setattr(measure, "_row", recorded)
    return ran


def test_a_row_for_each_batch(run):
    """In the file's order, with the contract's columns, times in order."""
    printed = run()
    rows = run.rows()
    assert tuple(rows[0]) == COLUMNS
    assert [tuple(row.values())[:4] for row in rows] == [
        ("prefill", "47", "2", "0"),
        ("decode", "3", "0", "3"),
        ("hybrid", "61", "1", "1"),
    ]
    for row in rows:
        assert 0 < float(row["gpu_p10_s"]) <= float(row["gpu_s"]) <= float(row["gpu_p90_s"]) < 10
        assert float(row["host_s"]) > 0
        assert int(row["repeats"]) >= 3
    assert "3 of 3 batches in measured.csv, 0 skipped" in printed


def test_the_sidecar_says_how(run):
    """Device, model, kernel, type, pages and the command; the cache is as large as the largest batch."""
    run("--tp", "2", "--dtype", "bfloat16")
    said = run.sidecar()
    assert said["gpu"]["name"].startswith("CPU")
    assert said["model"]["num_attention_heads"] == TINY.num_attention_heads
    assert (said["attention"]["backend"], said["dtype"], said["tensor_parallel"]) == ("torch", "bfloat16", 2)
    assert (said["kv_tokens"], said["measured"], said["skipped"]) == (max(ENTRIES.values()), 3, {})
    assert said["command"] == (
        "measure-batches batches.jsonl --model tiny.yaml --attention auto --device cpu --tensor-parallel 2"
        " --dtype bfloat16 --out measured.csv"
    )
    assert any("one of 2 ranks, alone: all-reduces" in note for note in said["notes"])


def test_steps_run_what_the_batch_says(run, monkeypatch):
    """Exactly these tokens, decodes first, on pages that differ from batch to batch."""
    seen = []
    step = measure.Model.step
    monkeypatch.setattr(
        measure.Model,
        "step",
        lambda self, scheduled, pages: seen.append((scheduled, pages)) or step(self, scheduled, pages),
    )
    run()
    assert [[(one.context, one.new) for one in scheduled] for scheduled, _ in seen] == [
        [(0, 40), (16, 7)],
        [(0, 1), (32, 1), (89, 1)],
        [(4, 1), (100, 60)],
    ]
    for _, pages in seen:
        drawn = [page for own in pages for page in own]
        assert len(set(drawn)) == len(drawn)
        assert drawn != sorted(drawn)


def test_an_interrupted_run_keeps_its_rows_and_resumes(run, steps):
    """Ctrl-C in the third batch: exit 1; then only the third is run."""
    steps.at["hybrid"] = KeyboardInterrupt()
    printed = run(code=1)
    assert "interrupted; 2 of 3 batches are in measured.csv; --resume goes on" in printed
    kept = run.rows()
    assert ids(kept) == ["prefill", "decode"]
    assert "measured.csv exists; --resume goes on with it" in run(code=2)
    steps.at.clear()
    steps.clear()
    run("--resume")
    assert steps == ["hybrid"]
    assert run.rows()[:2] == kept
    assert ids(run.rows()) == list(ENTRIES)
    assert (run.sidecar()["measured"], run.sidecar()["of_an_earlier_run"]) == (3, 2)


def test_a_killed_run_leaves_each_row_on_disk(run, steps, monkeypatch):
    """Each row is there before the next batch begins; a line cut short is measured again."""
    on_disk = []
    row_or_reason = measure._row_or_reason
    monkeypatch.setattr(
        measure, "_row_or_reason", lambda *given: on_disk.append(ids(run.rows())) or row_or_reason(*given)
    )
    run()
    assert on_disk == [[], ["prefill"], ["prefill", "decode"]]
    run.out.write_text(run.out.read_text()[:-20])
    steps.clear()
    run("--resume")
    assert steps == ["hybrid"]
    assert ids(run.rows()) == list(ENTRIES)


def test_rows_of_another_measurement_are_not_mixed(run, folder):
    """Another type, another file, a row of nobody: refused, and nothing is changed."""
    run()
    before = run.out.read_text()
    assert "measured.yaml, dtype: --resume would mix measurements: float32 then, bfloat16 now" in run(
        "--resume", "--dtype", "bfloat16", code=2
    )
    run.out.write_text(before.replace("decode,3,", "decode,4,"))
    assert "measured.csv, line 3: not a row of these batches" in run("--resume", code=2)
    run.out.write_text(before)
    with (folder / "batches.jsonl").open("a") as file:
        file.write('{"id": "more", "prefills": [], "decodes": [3]}\n')
    assert "measured.yaml, batches: --resume would mix measurements" in run("--resume", code=2)
    assert run.out.read_text() == before
    (folder / "measured.yaml").unlink()
    assert "measured.yaml: the sidecar, which says what was measured" in run("--resume", code=2)


def test_a_batch_without_memory_is_skipped(run, steps):
    """Noted and counted; the others are measured, exit status 0."""
    import torch

    steps.at["decode"] = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    printed = run()
    assert ids(run.rows()) == ["prefill", "hybrid"]
    assert "skipped decode: out of memory" in printed
    assert "2 of 3 batches in measured.csv, 1 skipped (decode)" in printed
    assert run.sidecar()["skipped"] == {"decode": "out of memory"}


def test_another_failure_is_not_swallowed(run, steps):
    """A kernel that refuses is no matter of memory."""
    steps.at["decode"] = RuntimeError("an illegal memory access")
    with pytest.raises(AssertionError, match="1 == 0"):
        run()
    assert ids(run.rows()) == ["prefill"]


def test_activations_that_do_not_fit_are_skipped_before_they_are_tried(run, steps, monkeypatch):
    """On a CPU trying could take the machine with it."""
    room = Room(TINY, 4, 16, "cpu")
    batches = {batch.id: batch for batch in measure.read_batches(run.out.with_name("batches.jsonl")).batches}
    free = room.fixed_bytes(list(batches.values())) + 11 * room.page_bytes + room.step_bytes(batches["hybrid"])
    answers = iter([free, *[room.step_bytes(batches["prefill"]) - 1] * 9])
    monkeypatch.setattr(device, "free_bytes", lambda _device: next(answers))
    printed = run()
    assert steps == ["decode"]
    assert "2 skipped (prefill, hybrid)" in printed


def test_max_kv_tokens_leaves_out_larger_batches(run, steps):
    """A decode of one token counts as a page; the cache is that of the largest within the limit."""
    printed = run("--max-kv-tokens", str(ENTRIES["decode"]))
    assert steps == ["prefill", "decode"]
    assert "2 of 3 batches in measured.csv, 1 skipped (hybrid)" in printed
    assert run.sidecar()["kv_tokens"] == ENTRIES["decode"]
    assert "measure-batches: skipped hybrid: 176 KV entries, over --max-kv-tokens" in printed
    assert run.sidecar()["skipped"] == {"hybrid": "176 KV entries, over --max-kv-tokens"}
    assert "--max-kv-tokens: no batch is that small; the smallest needs 80" in run(
        "--max-kv-tokens", "79", "--force", code=2
    )


def test_a_batch_too_large_for_the_memory_is_left_out_aloud(run, steps, monkeypatch):
    """By id and with the reason; the others are measured in a smaller cache."""
    room = Room(TINY, 4, 16, "cpu")
    batches = measure.read_batches(run.out.with_name("batches.jsonl")).batches
    free = room.fixed_bytes(batches) + 10 * room.page_bytes + room.step_bytes(batches[2])
    monkeypatch.setattr(device, "free_bytes", lambda _device: free)
    printed = run()
    assert steps == ids(run.rows()) == ["prefill", "decode"]
    assert "measure-batches: skipped hybrid: too little memory: it needs" in printed
    assert "2 of 3 batches in measured.csv, 1 skipped (hybrid)" in printed
    assert run.sidecar()["kv_tokens"] == ENTRIES["decode"]
    assert run.sidecar()["skipped"]["hybrid"].startswith("too little memory")


def test_where_no_batch_fits_nothing_is_begun(run, monkeypatch):
    """Exit status 2, before anything is allocated."""
    room = Room(TINY, 4, 16, "cpu")
    monkeypatch.setattr(device, "free_bytes", lambda _device: room.weight_bytes)
    monkeypatch.setattr(measure, "Model", None)
    assert "--model: too little memory: the weights of tiny" in run(code=2)
    assert not run.out.exists()


def test_a_budget_stops_before_the_next_batch(run, steps):
    """What is left is counted; --resume goes on."""
    printed = run("--budget", "0s")
    assert steps == []
    assert "0 of 3 batches in measured.csv, 0 skipped, 3 left when the budget was over" in printed
    run("--resume", "--limit-seconds", "3600")
    assert ids(run.rows()) == list(ENTRIES)


@pytest.mark.parametrize("budget", ["soon", "-1", "nan"])
def test_a_budget_is_a_time(run, budget):
    """The same as that of profile-gpu."""
    assert "is no time; write 120s, 2m or plain seconds" in run("--budget", budget, code=2)


def test_quiet_prints_nothing(run):
    """The rows are written."""
    assert run("--quiet", "--verify") == ""
    assert len(run.rows()) == 3


def test_verify_comes_first_and_is_recorded(run, steps):
    """Its errors are printed and kept in the sidecar."""
    printed = run("--verify")
    assert printed.count("verified: ") == 9
    assert "in 10 chunks against at once, hidden states: " in printed
    assert any("wrong pairs of a token" in note for note in run.sidecar()["notes"])
    assert len(steps) == 3


@pytest.mark.parametrize("mask", [left_aligned, causal(-1)], ids=["left-aligned", "one key too few"])
def test_a_failed_verification_measures_nothing(run, steps, monkeypatch, mask):
    """Exit status 1 and what is wrong; without --verify the comparison with a reference refuses the kernel."""
    monkeypatch.setattr(measure_setup, "choose_attention", lambda *_: Masked(mask))
    printed = run("--verify", code=1)
    assert "measure-batches: --verify failed, nothing was measured: " in printed
    assert "wrong pairs of a token and what it attends to" in printed
    assert "the attention kernel torch differs from the reference" in run(code=2)
    assert steps == []
    assert not run.out.exists()


def test_a_kernel_that_only_verify_would_pass_is_refused(run, monkeypatch):
    """Twice the output everywhere: chunked equals unchunked, but it is no attention."""

    class Doubled(TorchAttention):
        def prepare(self, batch, shape, device):
            attend = super().prepare(batch, shape, device)
            return lambda q, keys, values, table: attend(2 * q, keys, values, table)

    monkeypatch.setattr(measure_setup, "choose_attention", lambda *_: Doubled())
    assert "the attention kernel torch differs from the reference" in run("--verify", code=2)
    assert not run.out.exists()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--out", "m.parquet"], '--out: the rows go to a .csv file, not "m.parquet"'),
        (["--out", "taken.csv"], "--out: taken.csv exists; --resume goes on with it, --force starts over"),
        (["--out", "theirs.csv", "--resume"], "--out: theirs.yaml exists; --resume goes on with it"),
        (["--out", "tiny.csv", "--force"], "--out: tiny.yaml would be overwritten, but is read in this run"),
        (["--out", "taken.csv/m.csv"], "--out: cannot write taken.csv/m.csv"),
        (["--model", "llama-3.1-8"], 'did you mean "llama-3.1-8b"?'),
        (["--attention", "fa2"], '"fa2" is a GPU kernel; with --device cpu use "torch"'),
        (["--tp", "5"], "tiny does not divide over 5 ranks"),
    ],
)
def test_mistakes(run, folder, options, expected):
    """One line, exit status 2, and nothing of the user's is overwritten."""
    (folder / "taken.csv").write_text("precious")
    (folder / "theirs.yaml").write_text("precious")
    model = (folder / "tiny.yaml").read_text()
    printed = run(*options, code=2)
    assert expected in printed
    assert printed.count("\n") == 1
    assert (folder / "taken.csv").read_text() == "precious"
    assert (folder / "tiny.yaml").read_text() == model


def test_no_gpu_and_no_torch_are_one_clear_line(run, monkeypatch):
    """Named as this command."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert run(on=(), code=2).startswith("measure-batches: no NVIDIA GPU")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run(code=2).startswith("measure-batches: measure-batches needs PyTorch")


def test_mistakes_in_the_file_are_found_without_torch(folder, monkeypatch):
    """Line and key."""
    monkeypatch.setitem(sys.modules, "torch", None)
    (folder / "batches.jsonl").write_text('{"id": "b", "prefills": [[0, 0]], "decodes": []}\n')
    result = CliRunner().invoke(measure_batches, ["batches.jsonl", "--out", "m.csv"])
    assert result.exit_code == 2
    assert result.output.startswith("measure-batches: batches.jsonl, line 1, prefills[0][1]: should be a whole number")


def test_help_says_what_the_rest_is_for():
    """Without it times do not repeat."""
    shown = CliRunner().invoke(measure_batches, ["--help"]).output
    assert "rests for half a step's time" in shown
    assert "up to 12 % longer (H200)" in shown


@needs_gpu
@pytest.mark.parametrize("attention", ["fa2", "fa3"])
def test_on_a_gpu(run, attention):
    """Verified and measured in bfloat16, by a graph and eagerly; the GPU's time of a tiny step is under 10 ms."""
    model = run.out.with_name("tiny.yaml")
    model.write_text(model.read_text().replace("head_dim: 8", "head_dim: 128"))
    try:
        measure_setup.choose_attention(attention, "cuda")
    except measure_setup.InputError as error:
        pytest.skip(str(error))
    for launch in ([], ["--eager"]):
        run("--attention", attention, "--verify", "--force", *launch, on=())
        rows = run.rows()
        assert ids(rows) == list(ENTRIES) if attention == "fa3" else len(rows) == 3
        assert all(0 < float(row["gpu_s"]) < 0.01 for row in rows)
