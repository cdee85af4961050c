"""From variations to their outcomes: each different system is simulated once."""

from collections.abc import Callable, Sequence
from pathlib import Path

from simulator.errors import InputError, nearest
from simulator.reproduce.figures import Outcome
from simulator.reproduce.published import SARATHI
from simulator.reproduce.runs import SystemRun, micro_batch_s, run_systems
from simulator.reproduce.variations import Variation, systems
from simulator.runner import load_trace
from simulator.trace import Trace


def require_known(names: Sequence[str], variations: Sequence[Variation]) -> None:
    """InputError for a name that no variation has."""
    known = [variation.name for variation in variations]
    for name in names:
        if name not in known:
            raise InputError(f'unknown variation "{name}"; {nearest(name, known, "variations")}', key="--only")


def find_outcomes(
    folder: Path, variations: Sequence[Variation], jobs: int, tell: Callable[[str], None]
) -> tuple[list[Outcome], Trace]:
    """The outcomes in order, and the requests; `tell` gets a line a run. Raises InputError before anything runs."""
    wanted = {variation.name: list(systems(folder, variation)) for variation in variations}
    different = {system.key: system for of_variation in wanted.values() for system in of_variation}
    runs: dict[str, SystemRun] = {}
    for key, run in zip(different, run_systems(different.values(), jobs), strict=True):
        runs[key] = run
        tell(f"{len(runs)} of {len(different)}: {run.label}, {run.duration_s:,.0f} s simulated in {run.took_s:.0f} s")
    outcomes, trace = [], None
    for variation in variations:
        of_variation = wanted[variation.name]
        sarathi = next(system for system in of_variation if system.label == SARATHI)
        trace = load_trace(sarathi.experiment) if trace is None else trace
        found = {system.label: runs[system.key] for system in of_variation}
        outcomes.append(Outcome(variation, found, micro_batch_s(sarathi.experiment, trace)))
    assert trace is not None
    return outcomes, trace
