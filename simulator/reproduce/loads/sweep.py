"""A sweep: each system of an experiment at each load, and what is kept of a run."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Gt

from simulator.errors import InputError, nearest
from simulator.experiment_keys import resolve_experiment
from simulator.files import load_yaml
from simulator.report.measures import TIE
from simulator.results import PolicyResult, floats
from simulator.runner import load_trace, run_policy
from simulator.trace import Floats
from simulator.validation import parse

KEPT = (
    *("requests_per_s", "output_tokens_per_s_per_gpu", "ttft_p50_s", "ttft_p99_s", "tpot_p99_s", "itl_p50_s"),
    *("itl_p99_s", "transfer_mean_s", "transfer_p99_s", "decode_queue_p99_s", "prefill_idle_fraction"),
    *("decode_idle_fraction", "kv_peak_fraction", "preemptions"),
)
"""Columns of the summary that a row has."""

Seconds = Annotated[float, Gt(0)]


@dataclass(frozen=True)
class Slo:
    """What a request has to keep, seconds; `gap_s` is the longest between two of its tokens. None: anything goes."""

    name: str
    about: str
    ttft_s: Seconds | None = None
    tpot_s: Seconds | None = None
    gap_s: Seconds | None = None

    def kept(self, result: PolicyResult) -> int:
        """Requests that have finished and kept it; what has no value (the gap of a single token) is kept."""
        requests = result.requests
        good = requests["status"] == "finished"
        for column, limit in (("ttft_s", self.ttft_s), ("tpot_s", self.tpot_s), ("itl_max_s", self.gap_s)):
            if limit is not None:
                good &= ~(floats(requests, column) > limit)
        return int(good.sum())


@dataclass(frozen=True)
class Sweep:
    """`speedups` of the trace of `experiment`; its systems by label, those whose GPUs do both phases first."""

    experiment: str
    speedups: tuple[Seconds, ...]
    shared: tuple[str, ...]
    pools: tuple[str, ...]
    slos: tuple[Slo, ...]


def read_sweep(path: Path) -> Sweep:
    """The sweep in a YAML. Raises InputError."""
    sweep = parse(Sweep, load_yaml(path), path=path)
    known = [run.label for run in resolve_experiment(load_yaml(of(path, sweep)), path=of(path, sweep)).policies]
    for label in (*sweep.shared, *sweep.pools):
        if label not in known:
            raise InputError(f'no system "{label}"; {nearest(label, known, "labels")}', path=path)
    return sweep


def of(path: Path, sweep: Sweep) -> Path:
    """The experiment of the sweep in `path`, beside it."""
    return path.parent / sweep.experiment


def run_at(path: Path, speedup: float, label: str) -> PolicyResult:
    """The system `label` of the experiment in `path` at that many times the load of its trace."""
    experiment = resolve_experiment(load_yaml(path) | {"speedup": speedup}, path=path)
    [run] = [run for run in experiment.policies if run.label == label]
    return run_policy(experiment, run, load_trace(experiment))


def offered_per_s(result: PolicyResult) -> float:
    """Requests a second that arrive."""
    arrivals = floats(result.requests, "arrival_s")
    return (len(arrivals) - 1) / float(arrivals[-1] - arrivals[0])


def rows(path: Path, sweep: Sweep, jobs: int) -> Iterator[dict[str, Any]]:
    """A row a load and system, in this order."""
    tasks = [(path, sweep, speedup, label) for speedup in sweep.speedups for label in (*sweep.shared, *sweep.pools)]
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_row, tasks)


def _row(task: tuple[Path, Sweep, float, str]) -> dict[str, Any]:
    path, sweep, speedup, label = task
    result = run_at(of(path, sweep), speedup, label)
    gpus = int(result.summary["gpus"])
    row: dict[str, Any] = {
        "label": label,
        "speedup": speedup,
        "offered_per_s_per_gpu": offered_per_s(result) / gpus,
        "gpus": gpus,
    }
    for slo in sweep.slos:
        kept = slo.kept(result)
        row[f"{slo.name}_attainment"] = kept / len(result.requests)
        row[f"{slo.name}_goodput_per_s_per_gpu"] = kept / float(result.summary["duration_s"]) / gpus
    return row | {name: float(result.summary[name]) for name in KEPT}


SIDES = ("shared GPUs", "pools")


@dataclass(frozen=True)
class Crossover:
    """Where, in offered requests a second and GPU, the better one of two sides of a measure is no longer the same."""

    measure: str
    at: float
    before: str
    after: str


def crossovers(table: Sequence[Mapping[str, Any]], sweep: Sweep, measure: str, *, higher: bool) -> list[Crossover]:
    """Where the best shared system and the best one of pools change places, linear between two loads; loads at which
    they are within `TIE` of each other do not tell."""
    loads, lead = _leads(table, sweep, measure, higher)
    found = []
    for low, high in pairwise(np.flatnonzero(lead).tolist()):
        if lead[low] * lead[high] < 0:
            at = loads[low] + lead[low] / (lead[low] - lead[high]) * (loads[high] - loads[low])
            before, after = SIDES if lead[low] > 0 else SIDES[::-1]
            found.append(Crossover(measure, float(at), before, after))
    return found


def first_ahead(
    table: Sequence[Mapping[str, Any]], sweep: Sweep, measure: str, *, higher: bool
) -> tuple[str, float] | None:
    """Which side is better at the lowest load at which one is, and that load; None: they are level at all."""
    loads, lead = _leads(table, sweep, measure, higher)
    return next(((SIDES[ahead < 0], load) for load, ahead in zip(loads, lead.tolist(), strict=True) if ahead), None)


def _leads(table: Sequence[Mapping[str, Any]], sweep: Sweep, measure: str, higher: bool) -> tuple[list[float], Floats]:
    """Offered loads, and by how much the best shared system is better there than the best of pools; 0: a tie."""
    best = max if higher else min
    loads = sorted({row["offered_per_s_per_gpu"] for row in table})
    of_shared, of_pools = (
        np.array(
            [
                best(row[measure] for row in table if row["label"] in labels and row["offered_per_s_per_gpu"] == load)
                for load in loads
            ]
        )
        for labels in (sweep.shared, sweep.pools)
    )
    lead = (of_shared - of_pools) * (1 if higher else -1)
    return loads, np.where(np.abs(lead) > TIE * np.maximum(of_shared, of_pools), lead, 0.0)
