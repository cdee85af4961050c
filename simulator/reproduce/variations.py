"""What is varied in the pipeline experiment: keys of its files and options of its policies, by a YAML."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from simulator.cost_table import CostTable
from simulator.errors import InputError
from simulator.experiment import Experiment
from simulator.experiment_keys import resolve_experiment
from simulator.files import load_yaml
from simulator.reproduce.published import SARATHI, TP_ONLY, TP_PP
from simulator.validation import parse

FILES = {TP_PP: "tp-pp.yaml", SARATHI: "tp-pp.yaml", TP_ONLY: "tp-only.yaml"}
"""The experiment file that holds each system."""


@dataclass(frozen=True)
class Variation:
    """`changes` replace keys of the experiment files, `set` are `LABEL.KEY=VALUE` of the policies that have the label.
    `layer_us` is added to each layer of each step: a host that launches kernels one by one, and too slowly."""

    name: str
    about: str
    changes: dict[str, Any] = field(default_factory=dict)
    set: tuple[str, ...] = ()
    layer_us: Annotated[float, Ge(0)] = 0.0


@dataclass(frozen=True)
class _File:
    variations: tuple[Variation, ...]


@dataclass(frozen=True)
class System:
    """One of the three systems under a variation: an experiment of one policy. `key` is equal for systems that are
    alike."""

    label: str
    experiment: Experiment
    key: str


def read_variations(path: Path) -> tuple[Variation, ...]:
    """The variations in a YAML; the first is the plain experiment. Raises InputError."""
    found = parse(_File, load_yaml(path), path=path).variations
    names = [variation.name for variation in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice or not found:
        problem = f'"{twice[0]}" twice' if twice else "none"
        raise InputError(f"each variation needs a name of its own, not {problem}", path=path, key="variations")
    return found


def systems(folder: Path, variation: Variation) -> Iterator[System]:
    """The three systems under a variation. Raises InputError."""
    for label, name in FILES.items():
        raw = load_yaml(folder / name)
        policies = [entry for entry in raw.get("policies", ()) if isinstance(entry, Mapping)]
        policies = [entry for entry in policies if entry.get("label") == label]
        if not policies:
            raise InputError(f'no policy labelled "{label}"', path=folder / name, key="policies")
        wanted = raw | variation.changes | {"policies": policies}
        settings = [text for text in variation.set if text.startswith(f"{label}.")]
        experiment = resolve_experiment(wanted, path=folder / name, settings=settings)
        if variation.layer_us and experiment.table is not None:
            experiment = replace(experiment, table=slower_layers(experiment.table, variation.layer_us))
        yield System(label, experiment, repr((wanted, settings, variation.layer_us)))


def slower_layers(table: CostTable, layer_us: float) -> CostTable:
    """The table with so much more in each layer, whatever a step holds."""
    rows = dict(table.rows)
    rows["time_us"] = np.where(rows["operator"] == "elementwise", rows["time_us"] + layer_us, rows["time_us"])
    return replace(table, rows=rows)
