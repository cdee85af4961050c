"""The network that readings make: it is what `simulate-trace --network` reads."""

import pytest
import yaml

from profiler.network_file import NO_LINK, network_of, write_text, yaml_of
from profiler.network_rows import ONE_SHOT
from simulator.network import Measurement, load_network
from tests.profiler.network_readings import by_model, reading

MEASUREMENT = Measurement(
    gpu="NVIDIA H200",
    ranks=4,
    dtype="bfloat16",
    torch="2.11.0",
    date="2026-11-30T12:00:00+00:00",
    command="profile-network --device cuda --ranks 4 --out four.yaml",
    readings="four.csv",
    nccl="2.28.9",
    nvlink_multicast="not used",
    notes=("a note",),
)
SIZES = [8192, 2**20, 2**24]
READINGS = [
    *by_model(SIZES, 3.0, 100.0, send_us=15.0, ranks=4),
    reading("all_reduce", 8192, 7.0, ONE_SHOT, ranks=4),
    reading("all_reduce", 2**20, 500.0, ONE_SHOT, ranks=4),
    reading("all_gather", 8192, 9.0, ranks=4),
]


@pytest.fixture
def network(tmp_path):
    """Written and read again."""
    path = tmp_path / "four.yaml"
    write_text(path, yaml_of(network_of("four", READINGS, MEASUREMENT)))
    return load_network(str(path))


def test_the_yaml_prices_what_was_measured(network):
    """The faster kernel's time at each size; all-gathers and sends as they are."""
    assert network.all_reduce_us(8192, 4) == 7.0
    assert network.all_reduce_us(2**20, 4) == pytest.approx(18 + 1.5 * 2**20 / 1e5, abs=1e-3)
    assert network.all_gather_us(8192, 4) == 9.0
    assert network.send_us(8192) == pytest.approx(15 + 8192 / 1e5, abs=1e-3)


def test_the_link_prices_other_numbers_of_ranks(network):
    """Eight take 14 rounds and move 1.75 of the bytes."""
    assert network.link is not None
    assert network.all_reduce_us(2**24, 8) == pytest.approx(
        14 * network.link.latency_us + 1.75 * 2**24 / network.link.gigabytes_per_s / 1e3
    )


def test_it_says_how(network):
    """Kernels by size, machine and versions, the fit."""
    [all_reduce] = network.all_reduce
    assert all_reduce.how.startswith("PyTorch's one-shot kernel on symmetric memory at 8 KB, NCCL from 1 MB to 16 MB;")
    assert all_reduce.how.endswith("; 40 in a CUDA graph, 8 above 4 MB, median of 31 replays")
    assert network.about == "4 x NVIDIA H200 of one host, in CUDA graphs"
    assert network.measurement is not None
    assert (network.measurement.nccl, network.measurement.nvlink_multicast) == ("2.28.9", "not used")
    assert network.measurement.notes[0] == "a note"
    assert network.measurement.notes[1].startswith("link: alpha-beta model")


def test_keys_without_a_value_are_left_out():
    """No nulls for a user to wonder about."""
    raw = yaml.safe_load(yaml_of(network_of("four", READINGS, MEASUREMENT)))
    assert "driver" not in raw["measurement"]
    assert not {"default_for", "source"} & set(raw)


def test_without_a_bandwidth_there_is_no_link(tmp_path):
    """And a note says why."""
    path = tmp_path / "one.yaml"
    write_text(path, yaml_of(network_of("one", by_model([8192], 3.0, 100.0, 15.0), MEASUREMENT)))
    network = load_network(str(path))
    assert network.link is None
    assert network.measurement is not None
    assert network.measurement.notes == ("a note", NO_LINK)
    assert not network.all_gather
