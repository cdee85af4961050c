"""What ranks exchange: times of messages, measured or by a link's facts, and what they add to a step."""

from itertools import pairwise
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.exchanges import Exchanges
from simulator.models import load_model
from simulator.network import Link, Measured, Network, default_network, load_network, network_names
from simulator.table_costs import TableCosts
from tests.simulator.tables import small_table

PAIR = Measured(2, ((1000, 5.0), (2000, 7.0), (4000, 15.0)))
LINK = Link(latency_us=3.0, gigabytes_per_s=100.0)


class TestMeasured:
    @pytest.mark.parametrize(
        ("size", "expected"),
        [(1, 5.0), (1000, 5.0), (1500, 6.0), (2000, 7.0), (3000, 11.0), (4000, 15.0), (6000, 23.0)],
    )
    def test_is_linear_between_sizes(self, size: int, expected: float) -> None:
        """Constant below the smallest, at the last slope beyond the largest."""
        assert PAIR.us(size) == expected

    def test_a_single_size_is_a_bandwidth_beyond_it(self) -> None:
        """Nothing else is known of larger messages."""
        assert Measured(2, ((1000, 5.0),)).us(3000) == 15.0

    def test_sizes_ascend(self) -> None:
        """Out of order, or without any, there is nothing to interpolate."""
        for points in ((), ((2, 1.0), (1, 1.0)), ((1, 1.0), (1, 2.0))):
            with pytest.raises(ValueError, match="ascend"):
                Measured(2, points)


class TestLink:
    def test_a_ring_of_four_takes_six_rounds(self) -> None:
        """2 (n - 1) = 6 rounds of 3 us, and 2 (n - 1) / n = 1.5 of 1 MB at 100 GB/s, 15 us."""
        network = Network("x", "", LINK)
        assert network.all_reduce_us(10**6, 4) == pytest.approx(18 + 15)
        assert network.all_gather_us(10**6, 4) == pytest.approx(9 + 7.5)
        assert network.send_us(10**6) == pytest.approx(3 + 10)

    def test_one_rank_exchanges_nothing(self) -> None:
        """Neither latency nor bytes."""
        assert Network("x", "").all_reduce_us(10**6, 1) == 0

    def test_what_was_measured_goes_first(self) -> None:
        """For that number of ranks; the link is for others."""
        network = Network("x", "", LINK, all_reduce=(PAIR,))
        assert network.all_reduce_us(2000, 2) == 7.0
        assert network.all_reduce_us(2000, 4) == pytest.approx(18.03)

    def test_without_either_it_says_what_is_known(self) -> None:
        """The numbers of ranks that were measured."""
        with pytest.raises(InputError, match="all_reduce of 2 of ranks, not of 4"):
            Network("x", "", all_reduce=(PAIR,)).all_reduce_us(2000, 4)


class TestNamed:
    @pytest.mark.parametrize("name", sorted(network_names()))
    def test_those_that_ship_grow_with_size_and_ranks(self, name: str) -> None:
        """More bytes take no less time, but for the noise of a measurement; more ranks of a link take more."""
        network = load_network(name)
        sizes = [2**power for power in range(10, 30)]
        for exchange in (network.all_reduce_us, network.all_gather_us):
            times = [exchange(size, 2) for size in sizes]
            assert all(later > 0.97 * sooner for sooner, later in pairwise(times))
            assert exchange(2**28, 8) > exchange(2**28, 4)
        times = [network.send_us(size) for size in sizes]
        assert min(times) > 0
        assert times[-1] > times[0]

    def test_the_h200s_network_is_the_measured_one(self) -> None:
        """A GPU without a known one has none."""
        found = default_network("NVIDIA H200")
        assert found is not None
        assert found.source == "h200-nvlink"
        assert default_network("Abacus") is None

    def test_an_unknown_name_gets_the_nearest(self) -> None:
        """As everywhere."""
        with pytest.raises(InputError, match="h200-nvlink"):
            load_network("h200-nvlnk")

    @pytest.mark.parametrize(
        ("text", "key"),
        [
            ("name: x\nabout: y\nall_reduce: 3\n", "all_reduce"),
            ("name: x\nabout: y\nall_reduce: [{ranks: 2, points: [[1]]}]\n", "all_reduce[0].points"),
            ("name: x\nabout: y\nsend: [{ranks: 2, points: [[1, true]]}]\n", "send[0].points"),
            ("name: x\nabout: y\nsend: [{ranks: 1, points: [[1, 2]]}]\n", "send[0].ranks"),
            ("name: x\nabout: y\nlink: {latency_us: 1, gigabytes_per_s: 0}\n", "link.gigabytes_per_s"),
            ("about: y\n", "name"),
        ],
    )
    def test_a_broken_file_is_refused_with_its_key(self, tmp_path: Path, text: str, key: str) -> None:
        """And with the file."""
        path = tmp_path / "net.yaml"
        path.write_text(text)
        with pytest.raises(InputError) as caught:
            load_network(str(path))
        assert str(path) in str(caught.value)
        assert key in str(caught.value)


class TestExchanges:
    MODEL = load_model("llama-3.1-8b")

    def test_two_all_reduces_a_layer_and_one(self) -> None:
        """65 of (tokens, 4096) of two bytes: 100 tokens are 819,200 bytes, 6 us of latency and 8.192 of bytes each."""
        found = Exchanges(Network("x", "", LINK), self.MODEL, 2).tokens_ns(100)
        assert found == pytest.approx(65 * (6 + 8.192) * 1000)

    def test_a_fused_norm_saves_of_each(self) -> None:
        """But never more than all of it."""
        network = Network("x", "", LINK)
        assert Exchanges(network, self.MODEL, 2, 1.0).tokens_ns(100) == pytest.approx(65 * (5 + 8.192) * 1000)
        assert Exchanges(network, self.MODEL, 2, 100.0).tokens_ns(100) == 0

    def test_logits_are_gathered(self) -> None:
        """Of 3 sequences: 128,256 of two bytes each; one round and half of the bytes."""
        found = Exchanges(Network("x", "", LINK), self.MODEL, 2).sequences_ns(3)
        assert found == pytest.approx((3 + 3 * 128256 * 2 / 2 / 100e3) * 1000)

    def test_they_are_in_the_price_of_a_step_once(self, tmp_path: Path) -> None:
        """A step of 16 decodes and 32 prompt tokens has the all-reduces of 48 tokens, the logits of 17 sequences."""
        table = small_table(tmp_path)
        exchanges = Exchanges(Network("x", "", LINK), table.metadata.model, 2)
        alone, together = TableCosts(table), TableCosts(table, exchanges)
        step = 16, 16 * 100, 100, [(0, 32)]
        added = exchanges.tokens_ns(48) + exchanges.sequences_ns(17)
        assert together.step_ns(*step) - alone.step_ns(*step) == pytest.approx(added, abs=2)


def test_noise_makes_no_message_faster_than_a_smaller_one_was() -> None:
    """Beyond the largest measured size a falling last piece is level."""
    network = Network("n", "", send=(Measured(2, ((1000, 100.0), (10_000, 50.0))),))
    assert network.send_us(1_000_000) == 50.0
