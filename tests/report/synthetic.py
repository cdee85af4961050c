"""Policy results made by hand: a toy token-budget scheduler, so that every table is consistent with every other."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from simulator.results import SUMMARY_METRICS, SUMMARY_STATISTICS, PolicyResult, TokenGaps

REQUEST_COLUMNS = (
    "request_id arrival_s prompt_tokens output_tokens first_scheduled_s first_token_s finish_s ttft_s tpot_s "
    "itl_max_s e2e_s preemptions status"
).split()
ITERATION_COLUMNS = (
    "iteration start_s end_s num_decodes decode_tokens num_prefills prefill_tokens kv_tokens free_blocks running "
    "waiting"
).split()


@dataclass
class Job:
    arrival: float
    prompt: int
    output: int
    left: int
    scheduled: float = np.nan
    tokens: tuple[float, ...] = ()


def workload(requests: int, rate: float, seed: int = 0) -> list[tuple[float, int, int]]:
    """(arrival in seconds, prompt tokens, output tokens) of a bursty day in miniature."""
    random = np.random.default_rng(seed)
    gaps = random.gamma(0.6, 1 / (0.6 * rate), requests)
    gaps[requests // 3 : requests // 2] /= 2.2
    prompts = np.clip(random.lognormal(6.6, 1.1, requests), 8, 12000).astype(int)
    outputs = np.clip(random.lognormal(4.6, 0.9, requests), 1, 1500).astype(int)
    return list(zip(np.cumsum(gaps).tolist(), prompts.tolist(), outputs.tolist(), strict=True))


def simulate(
    label: str,
    requests: Sequence[tuple[float, int, int]],
    *,
    chunk: int = 512,
    seats: int = 128,
    batched: bool = True,
    blocks: int = 20000,
) -> PolicyResult:
    """Serves `requests` in order with at most `chunk` prompt tokens a step beside all decodes.

    `batched` false: a step with prompt tokens runs no decode (prefill first).
    """
    coming = [Job(arrival, prompt, output, prompt) for arrival, prompt, output in requests]
    jobs = list(coming)
    waiting: list[Job] = []
    running: list[Job] = []
    now, kv = 0.0, 0
    steps: list[tuple[float, ...]] = []
    gaps: list[tuple[float, float, int]] = []
    while coming or waiting or running:
        if not waiting and not running:
            now = max(now, coming[0].arrival)
        while coming and coming[0].arrival <= now:
            waiting.append(coming.pop(0))
        budget, prefilled = chunk, []
        while waiting and budget and len(running) + len(prefilled) < seats:
            job = waiting[0]
            piece = min(budget, job.left)
            job.scheduled = now if np.isnan(job.scheduled) else job.scheduled
            job.left -= piece
            budget -= piece
            if job.left:
                break
            prefilled.append(waiting.pop(0))
        prefill = chunk - budget if budget >= 0 else chunk
        decoding = [] if prefill and not batched else list(running)
        end = now + 0.007 + 3.2e-5 * prefill + 6e-5 * len(decoding) + 1.1e-8 * kv
        kv += prefill + len(decoding)
        steps.append(
            (len(steps), now, end, len(decoding), len(decoding), len(prefilled) or bool(prefill), prefill, kv)
            + (blocks - kv // 16, len(running) + len(prefilled), len(waiting))
        )
        now = end
        seen: dict[float, int] = {}
        for job in decoding:
            gap = now - job.tokens[-1]
            seen[gap] = seen.get(gap, 0) + 1
        gaps += [(now, gap, many) for gap, many in seen.items()]
        for job in decoding + prefilled:
            job.tokens = (*job.tokens[-1:], now) if False else (*job.tokens, now)
        running = [job for job in running + prefilled if len(job.tokens) < job.output]
        kv = sum(job.prompt + len(job.tokens) for job in running) + sum(job.prompt - job.left for job in waiting)
    return assemble(label, jobs, steps, gaps)


def assemble(
    label: str, jobs: Sequence[Job], steps: Sequence[tuple[float, ...]], gaps: Sequence[tuple[float, float, int]]
) -> PolicyResult:
    """The result with its summary computed from the tables."""
    rows = []
    for number, job in enumerate(jobs):
        first, last = job.tokens[0], job.tokens[-1]
        tpot = (last - first) / (job.output - 1) if job.output > 1 else np.nan
        worst = float(np.max(np.diff(job.tokens))) if job.output > 1 else np.nan
        rows.append(
            (str(number), job.arrival, job.prompt, job.output, job.scheduled, first, last, first - job.arrival)
            + (tpot, worst, last - job.arrival, 0, "finished")
        )
    pooled = TokenGaps(
        np.array([gap[0] for gap in gaps], dtype=np.float64),
        np.array([gap[1] for gap in gaps], dtype=np.float64),
        np.array([gap[2] for gap in gaps], dtype=np.int64),
    )
    frame = pd.DataFrame(rows, columns=REQUEST_COLUMNS)
    iterations = pd.DataFrame(steps, columns=ITERATION_COLUMNS)
    result = PolicyResult(label, label.split("-")[0], {"chunk_size": 512}, frame, iterations, pooled, {})
    return replace(result, summary=summary(result))


def summary(result: PolicyResult) -> dict[str, Any]:
    """The columns of summary.csv."""
    requests, steps = result.requests, result.iterations
    done = requests[requests["status"] == "finished"]
    length = float(done["finish_s"].max() - requests["arrival_s"].min()) if len(done) else np.nan
    outputs = float(done["output_tokens"].sum())
    row: dict[str, Any] = {
        "label": result.label,
        "policy": result.policy,
        "num_requests": len(requests),
        "num_finished": len(done),
        "duration_s": length,
        "requests_per_s": len(done) / length,
        "output_tokens_per_s": outputs / length,
        "total_tokens_per_s": (outputs + float(done["prompt_tokens"].sum())) / length,
        "iterations": len(steps),
        "preemptions": int(requests["preemptions"].sum()),
        "bubble_fraction": 0.0,
        "kv_peak_fraction": float(steps["kv_tokens"].max()) / 320000 if len(steps) else np.nan,
    }
    queue = requests["first_scheduled_s"] - requests["arrival_s"]
    pools = {
        "ttft": requests["ttft_s"],
        "tpot": requests["tpot_s"],
        "itl": pd.Series(np.repeat(result.gaps.gap_s, result.gaps.count), dtype=np.float64),
        "e2e": requests["e2e_s"],
        "queue": queue,
    }
    for metric in SUMMARY_METRICS:
        pool = pools[metric].dropna()
        for statistic in SUMMARY_STATISTICS:
            value = pool.mean() if statistic == "mean" else pool.quantile(int(statistic[1:]) / 100)
            row[f"{metric}_{statistic}_s"] = float(value)
    return row
