"""Running a system, and what is kept of the run."""

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

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
    """Seconds throughout. `busy_s`, `bubbles_s` (by cause) and `outside_s` (before its first work or after its last)
    are of a stage, the mean over stages and replicas; `finish_s` and `request_bubbles_s` are of each request,
    ascending. `hybrids` of the `micro_batches` of all replicas ran prompt tokens beside decodes. `took_s`: how long the
    simulation ran."""

    label: str
    requests: int
    duration_s: float
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
    def busy_share(self) -> float:
        """Of the duration, the mean over stages and replicas."""
        return self.busy_s / self.duration_s

    @property
    def median_bubble_s(self) -> float:
        """Of the bubbles that a request met, summed over stages and iterations."""
        return float(np.median(self.request_bubbles_s)) if len(self.request_bubbles_s) else float("nan")


def run_system(system: System) -> SystemRun:
    """Simulate it."""
    began = time.perf_counter()
    experiment = system.experiment
    result = run_policy(experiment, experiment.policies[0], load_trace(experiment))
    return summed_up(result, time.perf_counter() - began)


def summed_up(result: PolicyResult, took_s: float) -> SystemRun:
    """What is kept of a run; requests that have not finished are left out, and its notes count them."""
    finished = result.requests["status"] == "finished"
    duration_s = float(result.summary["duration_s"])
    busy_s = float(floats(result.bubbles, "busy_s").mean())
    bubbles_s = {cause: float(floats(result.bubbles, f"{cause}_s").mean()) for cause in CAUSES}
    prompts, decodes = result.iterations["prefill_tokens"] > 0, result.iterations["num_decodes"] > 0
    return SystemRun(
        label=result.label,
        requests=len(result.requests),
        duration_s=duration_s,
        busy_s=busy_s,
        bubbles_s=bubbles_s,
        outside_s=duration_s - busy_s - sum(bubbles_s.values()),
        finish_s=np.sort(floats(result.requests, "finish_s")[finished]),
        request_bubbles_s=np.sort(floats(result.requests, "bubble_s")[finished]),
        micro_batches=len(result.iterations),
        hybrids=int((prompts & decodes).sum()),
        took_s=took_s,
        notes=result.notes,
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
