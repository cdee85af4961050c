"""Where the price of a logged step comes from: the simulated run's experiment, or what the user names."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from simulator.compare.run import Run
from simulator.compare.steps import StepPrices
from simulator.costs import LinearCosts, StepCosts
from simulator.engines.profile import NONE, load_engine
from simulator.errors import InputError
from simulator.exchanges import exchanges_of
from simulator.files import load_yaml
from simulator.named_tables import find_table
from simulator.network import network_of
from simulator.table_costs import TableCosts
from simulator.validation import parse


@dataclass(frozen=True)
class PriceSource:
    """Prices of steps, and in words what they are."""

    prices: StepPrices
    description: str
    tensor: int = 1


@dataclass(frozen=True)
class PriceOptions:
    """What the user says of prices: a table, a profile, the ranks of which it is one, and what joins them."""

    costs: str | None = None
    engine: str | None = None
    tensor: int | None = None
    network: str | None = None


def find_price(runs: tuple[Run, Run], said: PriceOptions = PriceOptions()) -> PriceSource | None:
    """The price by what is `said`, a table above all, else by the experiment of a simulated run.

    None where the first has no step log, or neither run was simulated and no table is named. Raises InputError.
    """
    if runs[0].step_log is None:
        for option, value in asdict(said).items():
            if value is not None:
                raise InputError(f"{runs[0].name} has no step log, so there is nothing to price", key=f"--{option}")
        return None
    if said.costs is not None:
        return _source(said.costs, replace(said, engine=said.engine or NONE), None)
    for run in reversed(runs):
        if run.experiment is not None:
            keys = load_yaml(run.experiment)
            parallel = keys.get("parallel")
            degree = parallel.get("tensor") if isinstance(parallel, dict) else None
            resolved = PriceOptions(
                engine=said.engine or str(keys.get("engine", NONE)),
                tensor=said.tensor or degree,
                network=said.network or keys.get("network"),
            )
            return _source(keys.get("costs"), resolved, run.experiment)
    for option in ("engine", "network"):
        if getattr(said, option) is not None:
            raise InputError("needs --costs, or a folder of simulate-trace on one side", key=f"--{option}")
    return None


def _source(costs: Any, said: PriceOptions, path: Path | None) -> PriceSource:
    """By `costs` as an experiment has them, at `path` if it is one."""
    engine, tensor = said.engine or NONE, said.tensor
    beside = None if path is None else path.parent.resolve()
    profile = load_engine(engine, beside)
    step_costs: StepCosts
    degree, layers, heat = tensor or 1, 0, None
    if isinstance(costs, str):
        table = find_table(costs, beside, tensor)
        saved_us = 0.0 if profile is None else profile.all_reduce_saves_us
        exchanges = exchanges_of(table, network_of(said.network, table.metadata.gpu.name, beside), saved_us)
        table_costs = TableCosts(table, exchanges)
        step_costs, heat, name = table_costs, table_costs.heat(), table.name
        degree, layers = table.metadata.tensor_parallel, table.metadata.model.num_hidden_layers
        if degree > 1:
            name += f" of {degree} ranks, {'exchanges left out' if exchanges is None else exchanges.network.name}"
    elif isinstance(costs, dict) and isinstance(costs.get("linear"), dict):
        if profile is not None:
            raise InputError("an engine's launch times depend on the model; name a cost table", key="costs")
        step_costs, name = parse(LinearCosts, costs["linear"], path=path, prefix="costs.linear."), "linear (analytic)"
    else:
        raise InputError("should be the name of a cost table, or {linear: ...}", path=path, key="costs")
    what = "the GPU's time alone" if profile is None else "GPU and host"
    prices = StepPrices(step_costs, heat, profile, layers, workers=degree > 1)
    return PriceSource(prices, f"costs {name}, engine {engine}: {what}", degree)
