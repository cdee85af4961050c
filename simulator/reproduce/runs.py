"""Running a system, and what is kept of the run."""

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from simulator.experiment import Experiment
from simulator.pipeline.bubbles import CAUSES
from simulator.pipeline.prices import stage_prices
from simulator.reproduce.variations import System
from simulator.results import PolicyResult, floats
from simulator.runner import load_trace, run_policy
from simulator.trace import Floats, Trace

CHUNK, DECODES = 230, 26
"""The usual micro-batch of SARATHI: 256 tokens for 27 requests."""


@dataclass(frozen=True)
class SystemRun:
    """Seconds throughout. `durations_s`: one a replica. `busy_s`, `bubbles_s` (by cause) and `outside_s` (before its
    first work or after its last) are of a stage, the mean over stages and replicas; `finish_s` and `request_bubbles_s`
    are of each request, ascending. `micro_batches` are of a pipeline or, together, of all replicas; `hybrids` of them
    ran prompt tokens beside decodes. `took_s`: how long the simulation ran."""

    label: str
    requests: int
    durations_s: tuple[float, ...]
    busy_s: float
    bubbles_s: dict[str, float]
    outside_s: float
    finish_s: Floats
    request_bubbles_s: Floats
    micro_batches: int
    hybrids: int
    took_s: float
    notes: tuple[str, ...]

    @property
    def duration_s(self) -> float:
        """Until the last request of the last replica has finished."""
        return max(self.durations_s)

    @property
    def busy_share(self) -> float:
        """Of the duration, the mean over stages and replicas."""
        return self.busy_s / self.duration_s

    @property
    def median_bubble_s(self) -> float:
        """Of the bubbles that a request met, summed over stages and iterations."""
        return float(np.median(self.request_bubbles_s)) if len(self.request_bubbles_s) else float("nan")


def run_system(system: System) -> SystemRun:
    """Simulate it, one replica after the other."""
    began = time.perf_counter()
    experiment = system.experiment
    whole = load_trace(experiment)
    parts = [every(whole, place, system.replicas) for place in range(system.replicas)]
    results = [run_policy(experiment, experiment.policies[0], part) for part in parts]
    return summed_up(system.label, results, time.perf_counter() - began)


def every(trace: Trace, place: int, of: int) -> Trace:
    """The requests that round robin deals to one of so many replicas."""
    return replace(
        trace,
        arrival_ns=trace.arrival_ns[place::of],
        prompt_tokens=trace.prompt_tokens[place::of],
        output_tokens=trace.output_tokens[place::of],
    )


def summed_up(label: str, results: Sequence[PolicyResult], took_s: float) -> SystemRun:
    """What is kept of the replicas' runs; a request that has not finished is in the notes alone."""
    durations = tuple(float(result.summary["duration_s"]) for result in results)
    stages = [floats(result.bubbles, "busy_s") for result in results]
    columns = {cause: np.concatenate([floats(result.bubbles, f"{cause}_s") for result in results]) for cause in CAUSES}
    finished = [result.requests["status"] == "finished" for result in results]
    prompts = [result.iterations["prefill_tokens"] > 0 for result in results]
    decodes = [result.iterations["num_decodes"] > 0 for result in results]
    busy_s = float(np.concatenate(stages).mean())
    bubbles_s = {cause: float(seconds.mean()) for cause, seconds in columns.items()}
    return SystemRun(
        label=label,
        requests=sum(len(result.requests) for result in results),
        durations_s=durations,
        busy_s=busy_s,
        bubbles_s=bubbles_s,
        outside_s=max(durations) - busy_s - sum(bubbles_s.values()),
        finish_s=_ascending(results, finished, "finish_s"),
        request_bubbles_s=_ascending(results, finished, "bubble_s"),
        micro_batches=sum(len(result.iterations) for result in results),
        hybrids=int(sum((some & more).sum() for some, more in zip(prompts, decodes, strict=True))),
        took_s=took_s,
        notes=tuple(dict.fromkeys(note for result in results for note in result.notes)),
    )


def _ascending(results: Sequence[PolicyResult], wanted: Sequence[np.ndarray], column: str) -> Floats:
    return np.sort(
        np.concatenate([floats(result.requests, column)[rows] for result, rows in zip(results, wanted, strict=True)])
    )


def run_systems(wanted: Iterable[System], jobs: int) -> Iterator[SystemRun]:
    """The runs in the order of `wanted`, in so many processes."""
    if jobs == 1:
        yield from map(run_system, wanted)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run_system, wanted)


def micro_batch_s(experiment: Experiment, trace: Trace) -> float:
    """What the usual micro-batch of SARATHI costs on a stage in the middle, all-reduces included: a chunk in the middle
    of the mean prompt, and decodes in the middle of the mean output."""
    prompt, output = float(trace.prompt_tokens.mean()), float(trace.output_tokens.mean())
    before, context = round((prompt - CHUNK) / 2), round(prompt + output / 2)
    stages = experiment.stages
    prices = stage_prices(experiment.make_costs(), stages)
    return prices.stages_ns(DECODES, DECODES * context, context, [(before, CHUNK)])[len(stages) // 2] / 1e9
