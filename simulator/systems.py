"""Policies with GPUs of their own: an entry's `parallel`, or a prefill and a decode pool, becomes an experiment."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from simulator.disaggregation.deployment import Disaggregated
from simulator.disaggregation.keys import Resolve, resolve_system
from simulator.experiment import Experiment
from simulator.policy_runs import PolicyRun


def resolve_systems(
    runs: Sequence[PolicyRun], raw: Mapping[str, Any], beside: Path | None, resolve: Resolve
) -> tuple[tuple[PolicyRun, ...], dict[str, Experiment | Disaggregated]]:
    """What serves the runs that say so themselves, by label: GPUs of their own, or two pools.

    `raw` are the keys of the whole experiment, and `resolve` makes one of others. Raises InputError.
    """
    resolved, systems = [], dict[str, Experiment | Disaggregated]()
    own = {key: value for key, value in raw.items() if key not in ("policies", "provenance")}
    for run in runs:
        if run.disaggregated:
            run, systems[run.label] = resolve_system(run, own, beside, resolve)
        elif run.parallel is not None:
            parallel = {**own.get("parallel", {}), **run.parallel}
            entry = {"policy": run.policy, "label": run.label, **run.options}
            experiment = resolve({**own, "parallel": parallel, "policies": [entry]})
            run, systems[run.label] = replace(run, parallel=asdict(experiment.parallel)), experiment
        resolved.append(run)
    return tuple(resolved), systems


def notes_of_system(system: Experiment | Disaggregated, known: Sequence[str]) -> list[str]:
    """Its notes beyond those of the whole experiment."""
    parts = (system,) if isinstance(system, Experiment) else (system.prefill, system.decode)
    return list(dict.fromkeys(note for part in parts for note in part.notes if note not in known))
