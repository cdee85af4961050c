"""Where the price of a logged step comes from: the simulated run's experiment, or what the user names."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.compare.run import Run
from simulator.compare.steps import Price, table_price
from simulator.costs import LinearCosts, StepCosts
from simulator.errors import InputError, nearest
from simulator.experiment import ENGINES
from simulator.files import load_yaml
from simulator.named_tables import find_table
from simulator.table_costs import TableCosts
from simulator.validation import parse


@dataclass(frozen=True)
class PriceSource:
    """A price of steps, and in words what it is."""

    price: Price
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
        return _source(costs, engine or "none", tensor, None, None)
    for run in reversed(runs):
        if run.experiment is not None:
            keys = load_yaml(run.experiment)
            parallel = keys.get("parallel")
            degree = parallel.get("tensor") if isinstance(parallel, dict) else None
            named = engine or str(keys.get("engine", "none"))
            return _source(keys.get("costs"), named, tensor or degree, run.experiment.parent.resolve(), run.experiment)
    if engine is not None:
        raise InputError("needs --costs, or a folder of simulate-trace on one side", key="--engine")
    return None


def _source(costs: Any, engine: str, tensor: int | None, beside: Path | None, path: Path | None) -> PriceSource:
    if engine not in ENGINES:
        raise InputError(f'unknown engine profile "{engine}"; {nearest(engine, ENGINES, "engines")}', key="--engine")
    step_costs: StepCosts
    degree = tensor or 1
    if isinstance(costs, str):
        table = find_table(costs, beside, tensor)
        step_costs, name, degree = TableCosts(table), table.name, table.metadata.tensor_parallel
    elif isinstance(costs, dict) and isinstance(costs.get("linear"), dict):
        step_costs, name = parse(LinearCosts, costs["linear"], path=path, prefix="costs.linear."), "linear (analytic)"
    else:
        raise InputError("should be the name of a cost table, or {linear: ...}", path=path, key="costs")
    description = f"costs {name}, engine {engine}: the GPU's time alone"
    return PriceSource(table_price(step_costs), description, degree)
