"""Where the price of a logged step comes from: the simulated run's experiment, or what the user names."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.compare.run import Run
from simulator.compare.steps import StepPrices
from simulator.costs import LinearCosts, StepCosts
from simulator.engines.profile import NONE, load_engine
from simulator.errors import InputError
from simulator.files import load_yaml
from simulator.named_tables import find_table
from simulator.table_costs import TableCosts
from simulator.validation import parse


@dataclass(frozen=True)
class PriceSource:
    """Prices of steps, and in words what they are."""

    prices: StepPrices
    description: str
    tensor: int = 1


def find_price(runs: tuple[Run, Run], costs: str | None, engine: str | None, tensor: int | None) -> PriceSource | None:
    """The price by `costs` (a table) and `engine` (a profile), else by the experiment of a simulated run.

    None where the first has no step log, or neither run was simulated and no table is named. Raises InputError.
    """
    if runs[0].step_log is None:
        for option, value in (("--costs", costs), ("--engine", engine), ("--tensor", tensor)):
            if value is not None:
                raise InputError(f"{runs[0].name} has no step log, so there is nothing to price", key=option)
        return None
    if costs is not None:
        return _source(costs, engine or NONE, tensor, None, None)
    for run in reversed(runs):
        if run.experiment is not None:
            keys = load_yaml(run.experiment)
            parallel = keys.get("parallel")
            degree = parallel.get("tensor") if isinstance(parallel, dict) else None
            named = engine or str(keys.get("engine", NONE))
            return _source(keys.get("costs"), named, tensor or degree, run.experiment.parent.resolve(), run.experiment)
    if engine is not None:
        raise InputError("needs --costs, or a folder of simulate-trace on one side", key="--engine")
    return None


def _source(costs: Any, engine: str, tensor: int | None, beside: Path | None, path: Path | None) -> PriceSource:
    profile = load_engine(engine, beside)
    step_costs: StepCosts
    degree, layers, heat = tensor or 1, 0, None
    if isinstance(costs, str):
        table = find_table(costs, beside, tensor)
        table_costs = TableCosts(table)
        step_costs, heat, name = table_costs, table_costs.heat(), table.name
        degree, layers = table.metadata.tensor_parallel, table.metadata.model.num_hidden_layers
    elif isinstance(costs, dict) and isinstance(costs.get("linear"), dict):
        if profile is not None:
            raise InputError("an engine's launch times depend on the model; name a cost table", key="costs")
        step_costs, name = parse(LinearCosts, costs["linear"], path=path, prefix="costs.linear."), "linear (analytic)"
    else:
        raise InputError("should be the name of a cost table, or {linear: ...}", path=path, key="costs")
    what = "the GPU's time alone" if profile is None else "GPU and host"
    prices = StepPrices(step_costs, heat, profile, layers)
    return PriceSource(prices, f"costs {name}, engine {engine}: {what}", degree)
