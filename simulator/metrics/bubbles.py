"""Bubbles of a run as they are reported: the rows of `bubbles.csv`, what each request met, columns of the summary."""

from typing import Any

import numpy as np

from simulator.metrics.quantiles import percentiles
from simulator.metrics.tokens import NS_PER_S, Ticks
from simulator.pipeline.bubbles import CAUSES, HOSTED, IDLE, UNREADY, Bubbles, bubbles
from simulator.results import Columns
from simulator.runlog import LoggedRun
from simulator.trace import Ints


def run_bubbles(run: LoggedRun) -> Bubbles:
    """The bubbles of each stage; one GPU, or one tensor-parallel group, is one stage."""
    if run.pipeline is not None:
        rows = run.iterations
        return bubbles(run.pipeline.columns(), rows["prefill_tokens"], rows["num_decodes"])
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
    return Bubbles(np.array([span]), np.array([busy]), caused, outside, outside, np.zeros(0, np.int64))


def bubble_rows(label: str, found: Bubbles) -> Columns:
    """Columns of `bubbles.csv`, a row a stage, seconds."""
    stages = len(found.span_ns)
    columns: dict[str, Any] = {
        "label": np.array([label] * stages, dtype=object),
        "stage": np.arange(stages),
        "span_s": found.span_ns / NS_PER_S,
        "busy_s": found.busy_ns / NS_PER_S,
        "bubble_s": found.bubble_ns / NS_PER_S,
        "idle_s": found.idle_ns / NS_PER_S,
    }
    columns |= {f"{cause}_s": found.caused_ns[:, place] / NS_PER_S for place, cause in enumerate(CAUSES)}
    columns |= {"before_s": found.before_ns / NS_PER_S, "after_s": found.after_ns / NS_PER_S}
    return Columns(columns)


def request_bubbles_ns(run: LoggedRun, ticks: Ticks, found: Bubbles, requests: int) -> Ints:
    """Bubbles before the micro-batches of each request, summed over stages and over all of its micro-batches
    (SARATHI's metric); 0 without a pipeline."""
    total = np.zeros(requests, np.int64)
    if run.pipeline is None:
        return total
    of_batch, times = found.of_batch_ns, run.pipeline.columns()
    up_to = np.append(0, np.cumsum(of_batch[ticks.iteration]))
    met = up_to[ticks.first + run.stays["ticks"]] - up_to[ticks.first]
    np.add.at(total, run.stays["request"], met)
    np.add.at(total, times.chunk_request, of_batch[times.chunk_iteration])
    return total


def bubble_summary(found: Bubbles, of_requests_s: Any) -> dict[str, float]:
    """Columns of the summary: shares of the stages' spans, and what requests met (`of_requests_s`, seconds)."""
    whole = max(int(found.span_ns.sum()), 1)
    row = {
        "bubble_fraction": float(found.bubble_ns.sum() / whole),
        "idle_fraction": float(found.idle_ns.sum() / whole),
    }
    row |= {
        f"bubble_{cause}_fraction": float(ns / whole)
        for cause, ns in zip(CAUSES, found.caused_ns.sum(axis=0)[:IDLE], strict=True)
    }
    row["request_bubble_mean_s"] = float(of_requests_s.mean()) if len(of_requests_s) else float("nan")
    spread = percentiles(of_requests_s, (50.0, 90.0, 99.0))
    return row | {f"request_bubble_p{p}_s": value for p, value in zip((50, 90, 99), spread, strict=True)}
