"""`profile-network` from the command line: a real small run on a CPU, what it writes, and mistakes."""

import csv
import multiprocessing
import os
import sys

import click
import pytest
from click.testing import CliRunner

from profiler import network_setup
from profiler.collectives import Exchange, Task
from profiler.network_cli import Sizes, command
from profiler.network_rows import GLOO, NCCL, ONE_SHOT
from profiler.network_setup import DEFAULT_SIZES, tasks_of
from profiler.ranks import NO_MULTICAST, Group, _own_device, _require_arrived, measure_ranks
from simulator.cli import simulate_trace
from simulator.errors import InputError
from simulator.network import load_network
from tests.profiler.machines import needs_gpu, needs_torch


def with_torch(test):
    """Marks a test that starts processes of torch."""
    for mark in needs_torch:
        test = mark(test)
    return test


def ran(*options, code=0):
    """What the command prints on both streams."""
    result = CliRunner().invoke(command, list(map(str, options)))
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """(the YAML of a run of two ranks on a CPU, what the run printed)."""
    out = tmp_path_factory.mktemp("trial") / "trial.yaml"
    return out, ran("--device", "cpu", "--sizes", "8KB,4MB", "--name", "my host", "--out", out)


@with_torch
def test_a_run_on_a_cpu_writes_a_network(trial):
    """All three exchanges at both sizes, and what was measured on."""
    network = load_network(str(trial[0]))
    assert network.name == "my host"
    for exchange in (network.all_reduce, network.all_gather, network.send):
        [measured] = exchange
        assert measured.ranks == 2
        assert [size for size, _ in measured.points] == [8192, 2**22]
        assert all(0 < us < 10**6 for _, us in measured.points)
        assert measured.how.startswith("gloo from 8 KB to 4 MB")
    said = network.measurement
    assert said is not None
    assert (said.ranks, said.dtype, said.readings) == (2, "float32", "trial.csv")
    assert said.command == (
        "profile-network --device cpu --ranks 2 --sizes 8192,4194304 --name 'my host' --out trial.yaml"
    )
    assert "a trial on a CPU: no network of GPUs" in said.notes
    assert "trial of profile-network" in network.about


@with_torch
def test_the_readings_lie_beside_it(trial):
    """A row an exchange and size, quantiles in order, the same medians as the network's."""
    network = load_network(str(trial[0]))
    with trial[0].with_suffix(".csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    for row in rows:
        [measured] = getattr(network, row["exchange"])
        assert dict(measured.points)[int(row["bytes"])] == float(row["time_us"])
        assert float(row["p10_us"]) <= float(row["time_us"]) <= float(row["p90_us"])
        assert (row["kernel"], row["ranks"], row["repeats"], row["fastest"]) == (GLOO, "2", "7", "yes")


@with_torch
def test_the_run_says_what_it_found(trial):
    """An all-reduce's times, and the files."""
    assert "an all-reduce takes" in trial[1]
    assert "6 readings in" in trial[1]


@with_torch
def test_simulate_trace_reads_it(trial, tmp_path):
    """Two tensor-parallel ranks exchange at these times: slower than on NVLink."""
    times = {}
    for network in ("h200-nvlink", str(trial[0])):
        out = tmp_path / str(len(times))
        words = ["--tensor", "2", "--network", network, "--limit", "5", "--no-plots", "--no-report", "--out", str(out)]
        result = CliRunner().invoke(simulate_trace, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        with (out / "summary.csv").open(encoding="utf-8") as file:
            times[network] = float(next(csv.DictReader(file))["e2e_mean_s"])
    assert times[str(trial[0])] > times["h200-nvlink"]


@with_torch
def test_ranks_that_look_on_and_do_not_divide_a_size(tmp_path):
    """Three ranks: a send between two of them, an all-gather rounded up to three equal pieces; quietly."""
    out = tmp_path / "three.yaml"
    assert ran("--device", "cpu", "--ranks", "3", "--sizes", "8KB", "--quiet", "--out", out) == ""
    network = load_network(str(out))
    ranks_and_size = [
        (measured.ranks, measured.points[0][0])
        for measured in (*network.all_reduce, *network.all_gather, *network.send)
    ]
    assert ranks_and_size == [(3, 8192), (3, 8208), (2, 8192)]


@with_torch
def test_a_rank_that_fails_ends_the_run(tmp_path):
    """One line, exit status 1, no file: here for want of memory."""
    out = tmp_path / "huge.yaml"
    printed = ran("--device", "cpu", "--sizes", "1000000GB", "--out", out, code=1)
    assert "profile-network: a rank failed, nothing was written: " in printed
    assert "allocate" in printed
    assert list(tmp_path.iterdir()) == []
    assert multiprocessing.active_children() == []


@with_torch
def test_ctrl_c_leaves_no_process():
    """At the first reading."""

    def interrupted(_result):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_ranks(Group(2, "cpu"), [Task("all_reduce", GLOO, 8192)] * 1000, interrupted)
    assert multiprocessing.active_children() == []


@with_torch
@pytest.mark.parametrize(("multicast", "expected"), [(False, {"0", "1"}), (True, {None})])
def test_nvlink_multicast_is_off_unless_asked_for(monkeypatch, multicast, expected):
    """In a rank's environment, whatever it was before; asked for, it is left to NCCL."""
    import torch

    monkeypatch.setattr(torch.cuda, "set_device", lambda _index: None)
    for name in NO_MULTICAST:
        monkeypatch.setenv(name, "2")
    _own_device(0, Group(2, "cuda", multicast))
    assert {os.environ.get(name) for name in NO_MULTICAST} == expected


def test_a_wrong_sum_is_not_timed():
    """Every rank stops, since they agree on it."""

    class Here:
        agree = staticmethod(bool)

    wrong = Exchange(2, lambda: None, lambda: False)
    with pytest.raises(RuntimeError, match="one-shot all_reduce of 8 KB brings wrong numbers"):
        _require_arrived(Here(), Task("all_reduce", ONE_SHOT, 8192), wrong)


def test_gpus_are_measured_with_both_kernels_up_to_16_mb():
    """NCCL from 8 KB to 256 MB throughout."""
    tasks = tasks_of(DEFAULT_SIZES["cuda"], Group(2, "cuda"))
    sizes = {
        kernel: [task.size for task in tasks if (task.exchange, task.kernel) == ("all_reduce", kernel)]
        for kernel in (NCCL, ONE_SHOT)
    }
    assert sizes[NCCL] == [2**power for power in range(13, 29)]
    assert sizes[ONE_SHOT] == [2**power for power in range(13, 25)]
    assert {task.kernel for task in tasks if task.exchange != "all_reduce"} == {NCCL}


def test_an_all_gather_is_measured_once_where_sizes_round_to_the_same():
    """16 and 32 bytes among four ranks are 64 bytes both."""
    tasks = tasks_of([16, 32], Group(4, "cpu"))
    assert [task.size for task in tasks if task.exchange == "all_gather"] == [64]


def test_sizes_are_whole_packets():
    """Of 16 bytes, which the one-shot kernel moves at a time."""
    with pytest.raises(InputError, match="--sizes: 8200 bytes is no multiple of 16; the nearest is 8192"):
        tasks_of([8200], Group(2, "cpu"))


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        ("8KB", (8192,)),
        ("4096", (4096,)),
        ("8k:64 KiB", (8192, 16384, 32768, 65536)),
        ("8KB:30KB", (8192, 16384)),
        ("1MB, 8KB:16KB, 8KB", (8192, 16384, 2**20)),
        ("1GB", (2**30,)),
    ],
)
def test_sizes_as_they_are_written(words, sizes):
    """Single, doubling, mixed; ascending, each once."""
    assert Sizes().convert(words, None, None) == sizes


@pytest.mark.parametrize("words", ["", "soon", "8TB", "-8", "0", "8KB,", "8:", "16KB:8KB", "1.5MB"])
def test_sizes_that_are_none(words):
    """Refused in one sentence."""
    with pytest.raises(click.UsageError, match=r"is no size; write 8KB, 1MB or plain bytes|ends before it begins"):
        Sizes().convert(words, None, None)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--out", "n.csv"], '--out: a network is a .yaml file, not "n.csv"'),
        (["--out", "taken.yaml"], "--out: taken.yaml exists; --force overwrites it"),
        (["--out", "table.yaml"], "--out: table.csv exists; --force overwrites it"),
        (["--out", "folder.yaml", "--force"], "--out: folder.yaml is a folder; name a file"),
        (["--out", "taken.yaml/n.yaml"], "--out: cannot write taken.yaml/n.yaml"),
        (["--out", "n.yaml", "--ranks", "1"], "1 is not in the range x>=2"),
        ([], "Missing option '--out'"),
    ],
)
def test_mistakes(tmp_path, monkeypatch, options, expected):
    """One message, exit status 2, nothing overwritten."""
    monkeypatch.chdir(tmp_path)
    for name in ("taken.yaml", "table.csv"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "folder.yaml").mkdir()
    assert expected in ran("--device", "cpu", *options, code=2)
    assert (tmp_path / "taken.yaml").read_text() == "mine"


@with_torch
@pytest.mark.parametrize(
    ("gpus", "options", "expected"),
    [
        (0, [], "an exchange takes two GPUs; PyTorch"),
        (1, [], "sees 1. Networks that ship need none"),
        (2, ["--ranks", "4"], "--ranks: PyTorch sees 2 GPUs, so 2 ranks at most"),
    ],
)
def test_gpus_that_are_not_there(tmp_path, monkeypatch, gpus, options, expected):
    """Named before anything is started."""
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert expected in ran("--out", tmp_path / "n.yaml", *options, code=2)


def test_without_torch_it_says_so(tmp_path, monkeypatch):
    """Exit status 2."""
    monkeypatch.setitem(sys.modules, "torch", None)
    printed = ran("--device", "cpu", "--out", tmp_path / "n.yaml", code=2)
    assert "profile-network needs PyTorch: pip install torch" in printed


@needs_gpu
def test_gpus_of_this_host(tmp_path):
    """Both kernels of an all-reduce are in the CSV, or a note says why not."""
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    out = tmp_path / "host.yaml"
    ran("--ranks", "2", "--sizes", "8KB,16MB,32MB", "--out", out)
    network = load_network(str(out))
    assert network.all_reduce_us(2**25, 2) > network.all_reduce_us(8192, 2)
    assert network.measurement is not None
    rows = out.with_suffix(".csv").read_text(encoding="utf-8")
    assert rows.count(",one-shot,") == 2 or "one-shot kernel: " in "".join(network.measurement.notes)
    assert network_setup.ONE_SHOT_BYTES == 2**24
