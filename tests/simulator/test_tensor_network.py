"""A run on several tensor-parallel GPUs: which network joins them, and what that changes."""

import csv
from pathlib import Path

import pytest
from click.testing import CliRunner

from simulator.cli import simulate_trace
from simulator.errors import InputError
from simulator.experiment import as_yaml_keys
from simulator.experiment_keys import resolve_experiment


def resolve(**keys: object):
    return resolve_experiment({"costs": "h200/llama-3.1-8b", "parallel": {"tensor": 2}, "policies": ["orca"], **keys})


def test_two_h200_are_joined_by_nvlink_unless_something_is_said() -> None:
    """And then no note says that steps are too short."""
    found = resolve()
    assert as_yaml_keys(found)["network"] == "h200-nvlink"
    assert not any("all-reduce" in note for note in found.notes)
    assert as_yaml_keys(resolve(network="pcie4"))["network"] == "pcie4"


def test_one_gpu_needs_no_network() -> None:
    """Nothing is exchanged."""
    assert as_yaml_keys(resolve(parallel={"tensor": 1}))["network"] is None


def test_a_slower_network_makes_longer_steps() -> None:
    """By 65 all-reduces of 512 tokens each: the difference of the two networks' times."""
    fast, slow = (resolve(network=name) for name in ("h200-nvlink", "pcie4"))
    assert fast.network is not None
    assert slow.network is not None
    steps = [found.make_costs().step_ns(0, 0, 0, [(0, 512)]) for found in (fast, slow)]
    size, logits = 512 * 4096 * 2, 128256 * 2
    longer_us = 65 * (slow.network.all_reduce_us(size, 2) - fast.network.all_reduce_us(size, 2))
    longer_us += slow.network.all_gather_us(logits, 2) - fast.network.all_gather_us(logits, 2)
    assert steps[1] - steps[0] == pytest.approx(1000 * longer_us, abs=3)


def test_an_engine_fuses_all_reduces() -> None:
    """vllm-0.23 saves a little of each."""
    alone, fused = (resolve(engine=name).make_costs().step_ns(8, 800, 100, []) for name in ("none", "vllm-0.23"))
    assert 0 < alone - fused < 65 * 10_000


def test_a_wrong_network_is_one_line() -> None:
    """With the nearest name."""
    with pytest.raises(InputError, match="h200-nvlink"):
        resolve(network="h200-nvlin")
    answer = CliRunner().invoke(simulate_trace, ["--list", "networks"])
    assert answer.exit_code == 0
    assert "infiniband-ndr" in answer.output


def test_a_run_with_a_network_repeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its experiment.yaml names the network, a file by its path."""
    monkeypatch.chdir(tmp_path)
    Path("net.yaml").write_text("name: mine\nabout: a test\nlink: {latency_us: 100, gigabytes_per_s: 1}\n")
    options = ["--limit", "20", "--policy", "orca", "--tensor", "2", "--no-plots", "--no-report", "--quiet"]
    for arguments in (
        ["--network", "net.yaml", *options, "--out", "one"],
        ["one/experiment.yaml", "--no-plots", "--no-report", "--quiet", "--out", "two"],
        [*options, "--out", "usual"],
    ):
        assert CliRunner().invoke(simulate_trace, arguments, catch_exceptions=False).exit_code == 0
    one, two, usual = (Path(name, "summary.csv").read_text() for name in ("one", "two", "usual"))
    assert one == two
    durations = [float(next(csv.DictReader(text.splitlines()))["e2e_mean_s"]) for text in (one, usual)]
    assert durations[0] > durations[1]
