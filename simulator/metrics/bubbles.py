"""Bubbles of a run as they are reported: the rows of `bubbles.csv`, what each request met, columns of the summary."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from simulator.metrics.quantiles import percentiles
from simulator.metrics.tokens import NS_PER_S, Ticks
from simulator.pipeline.bubbles import CAUSES, HOSTED, IDLE, UNREADY, Bubbles, bubbles
from simulator.results import Columns
from simulator.runlog import LoggedRun
from simulator.trace import Ints


def run_bubbles(run: LoggedRun) -> list[Bubbles]:
    """The bubbles of each stage of each replica; one GPU, or one tensor-parallel group, is one stage."""
    return [_of_replica(replica) for replica in run.replicas or (run,)]


def _of_replica(run: LoggedRun) -> Bubbles:
    if run.pipeline is not None:
        rows = run.iterations
        return bubbles(run.pipeline, rows["prefill_tokens"], rows["num_decodes"])
    return _of_one_stage(run)


def _of_one_stage(run: LoggedRun) -> Bubbles:
    """Between steps there is the engine's host, a policy that schedules nothing, or nobody to serve. What a step waits
    for the host once it has begun counts as busy."""
    iterations = run.iterations
    count = len(iterations)
    caused = np.zeros((1, IDLE + 1), np.int64)
    span = busy = 0
    if count:
        span = int(iterations["end_ns"][-1] - iterations.of_stretches("start_ns")[0])
        busy = int((iterations["end_ns"] - iterations["start_ns"]).sum())
        caused[0, UNREADY], caused[0, IDLE] = run.unready_ns, run.idle_ns
        caused[0, HOSTED] = span - busy - run.unready_ns - run.idle_ns
    outside = np.zeros(1, np.int64)
    return Bubbles(np.array([span]), np.array([busy]), caused, outside, outside, np.zeros(count, np.int64))


def bubble_rows(label: str, replicas: Sequence[Bubbles]) -> Columns:
    """Columns of `bubbles.csv`, a row a replica and stage, seconds."""
    tables = [_rows(label, replica, found) for replica, found in enumerate(replicas)]
    return Columns({name: np.concatenate([table[name] for table in tables]) for name in tables[0]})


def _rows(label: str, replica: int, found: Bubbles) -> dict[str, Any]:
    stages = len(found.span_ns)
    columns: dict[str, Any] = {
        "label": np.array([label] * stages, dtype=object),
        "replica": np.full(stages, replica),
        "stage": np.arange(stages),
        "span_s": found.span_ns / NS_PER_S,
        "busy_s": found.busy_ns / NS_PER_S,
        "bubble_s": found.bubble_ns / NS_PER_S,
        "idle_s": found.idle_ns / NS_PER_S,
    }
    columns |= {f"{cause}_s": found.caused_ns[:, place] / NS_PER_S for place, cause in enumerate(CAUSES)}
    return columns | {"before_s": found.before_ns / NS_PER_S, "after_s": found.after_ns / NS_PER_S}


def request_bubbles_ns(run: LoggedRun, ticks: Ticks, replicas: Sequence[Bubbles], requests: int) -> Ints:
    """Bubbles before the micro-batches of each request, summed over stages and over all of its micro-batches
    (SARATHI's metric); 0 without a pipeline."""
    total = np.zeros(requests, np.int64)
    parts = run.replicas or (run,)
    if all(part.pipeline is None for part in parts):
        return total
    of_batch = np.concatenate([found.of_batch_ns for found in replicas])
    up_to = np.append(0, np.cumsum(of_batch[ticks.iteration]))
    met = up_to[ticks.first + run.stays["ticks"]] - up_to[ticks.first]
    np.add.at(total, run.stays["request"], met)
    for part, found in zip(parts, replicas, strict=True):
        stages = part.pipeline
        if stages is not None:
            np.add.at(total, stages.chunk_request, found.of_batch_ns[stages.chunk_iteration])
    return total


def bubble_summary(replicas: Sequence[Bubbles], of_requests_s: Any) -> dict[str, float]:
    """Columns of the summary: shares of the stages' spans, and what requests met (`of_requests_s`, seconds)."""
    whole = max(sum(int(found.span_ns.sum()) for found in replicas), 1)
    caused = sum((found.caused_ns.sum(axis=0) for found in replicas), np.zeros(IDLE + 1, np.int64)) / whole
    row = {"bubble_fraction": float(caused[:IDLE].sum()), "idle_fraction": float(caused[IDLE])}
    row |= {f"bubble_{cause}_fraction": float(caused[place]) for place, cause in enumerate(CAUSES)}
    row["request_bubble_mean_s"] = float(of_requests_s.mean()) if len(of_requests_s) else float("nan")
    spread = percentiles(of_requests_s, (50.0, 90.0, 99.0))
    return row | {f"request_bubble_p{p}_s": value for p, value in zip((50, 90, 99), spread, strict=True)}
