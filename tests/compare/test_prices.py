"""Prices of logged steps of several ranks hold what the ranks exchange."""

from pathlib import Path

import pytest

from simulator.compare.prices import PriceOptions, find_price
from simulator.compare.run import Run
from simulator.errors import InputError
from simulator.exchanges import exchanges_of
from simulator.named_tables import find_table
from simulator.network import load_network
from simulator.table_costs import TableCosts
from tests.compare.conftest import Compare
from tests.compare.files import measured_folder

TABLE = "h200/llama-3.1-8b@tp2"
STEP = (8, 800, 100, [(0, 256)])
LOGGED = Run("logged", "", Path(), step_log=Path("steps.csv.gz"))


def price(**said: object) -> tuple[int, bool, str]:
    """Of one step; whether workers launch it; and in words."""
    source = find_price((LOGGED, LOGGED), PriceOptions(**said))  # type: ignore[arg-type]
    assert source is not None
    return int(source.prices.costs.step_ns(*STEP)), source.prices.workers, source.description


def test_ranks_exchange_by_the_usual_network_of_their_gpu() -> None:
    """As the simulation has it, with what the engine saves of each all-reduce, and with workers of their own."""
    table = find_table(TABLE)
    ns, workers, words = price(costs="h200/llama-3.1-8b", tensor=2, engine="vllm-0.23")
    assert ns == TableCosts(table, exchanges_of(table, load_network("h200-nvlink"), 4.0)).step_ns(*STEP)
    assert ns > TableCosts(table).step_ns(*STEP)
    assert workers
    assert "of 2 ranks, h200-nvlink" in words


def test_a_network_that_is_named_goes_first() -> None:
    """A slower one makes dearer steps."""
    assert price(costs=TABLE, network="pcie4")[0] > price(costs=TABLE)[0]


def test_one_gpu_exchanges_nothing() -> None:
    """And launches its steps itself."""
    ns, workers, _ = price(costs="h200/llama-3.1-8b", network="pcie4")
    assert ns == TableCosts(find_table("h200/llama-3.1-8b")).step_ns(*STEP)
    assert not workers


def test_a_network_without_prices_is_refused() -> None:
    """It joins nothing."""
    with pytest.raises(InputError, match=r"--network: needs --costs"):
        find_price((LOGGED, LOGGED), PriceOptions(network="pcie4"))


def test_a_network_for_a_run_without_steps_is_refused(compare_runs: Compare, here: Path) -> None:
    """As the other options of prices."""
    measured_folder(here / "run")
    answer = compare_runs("run", "run", "--network", "pcie4")
    assert answer.code == 2
    assert "--network: run has no step log" in answer.err
