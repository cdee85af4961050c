"""Policy results made by hand: a toy token-budget scheduler, so that all tables of a result agree."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from simulator.metrics.bubbles import bubble_rows, bubble_summary
from simulator.metrics.gap_quantiles import gap_quantiles
from simulator.pipeline.bubbles import IDLE, Bubbles, bubbles
from simulator.pipeline.log import ARRIVALS, FULL, StageTimes
from simulator.results import SUMMARY_METRICS, SUMMARY_STATISTICS, PolicyResult, TokenGaps
from simulator.trace import Ints


@dataclass
class Job:
    arrival: float
    prompt: int
    output: int
    left: int
    scheduled: float = np.nan
    tokens: list[float] = field(default_factory=list)


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
    steps: list[dict[str, float]] = []
    gaps: list[tuple[float, float, int]] = []
    while coming or waiting or running:
        if not waiting and not running:
            now = max(now, coming[0].arrival)
        while coming and coming[0].arrival <= now:
            waiting.append(coming.pop(0))
        budget = chunk
        prefilled: list[Job] = []
        while waiting and budget and len(running) + len(prefilled) < seats:
            job = waiting[0]
            piece = min(budget, job.left)
            job.scheduled = now if np.isnan(job.scheduled) else job.scheduled
            job.left -= piece
            budget -= piece
            if job.left:
                break
            prefilled.append(waiting.pop(0))
        prefill = chunk - budget
        decoding = [] if prefill and not batched else list(running)
        end = now + 0.007 + 3.2e-5 * prefill + 6e-5 * len(decoding) + 1.1e-8 * kv
        kv += prefill + len(decoding)
        steps.append(
            {
                "iteration": len(steps),
                "start_s": now,
                "end_s": end,
                "num_decodes": len(decoding),
                "decode_tokens": len(decoding),
                "num_prefills": len(prefilled) or int(prefill > 0),
                "prefill_tokens": prefill,
                "kv_tokens": kv,
                "free_blocks": blocks - kv // 16,
                "running": len(running) + len(prefilled),
                "waiting": len(waiting),
            }
        )
        now = end
        seen: dict[float, int] = {}
        for job in decoding:
            gap = now - job.tokens[-1]
            seen[gap] = seen.get(gap, 0) + 1
        gaps += [(now, gap, many) for gap, many in seen.items()]
        for job in decoding + prefilled:
            job.tokens.append(now)
        running = [job for job in running + prefilled if len(job.tokens) < job.output]
        kv = sum(job.prompt + len(job.tokens) for job in running) + sum(job.prompt - job.left for job in waiting)
    return assemble(label, jobs, steps, gaps)


def assemble(
    label: str,
    jobs: Sequence[Job],
    steps: Sequence[dict[str, float]],
    gaps: Sequence[tuple[float, float, int]],
) -> PolicyResult:
    """The result with its summary computed from the tables."""
    requests = pd.DataFrame([request(number, job) for number, job in enumerate(jobs)])
    ends, lengths, counts = zip(*gaps, strict=True) if gaps else ((), (), ())
    pooled = TokenGaps(np.array(ends, float), np.array(lengths, float), np.array(counts, np.int64))
    policy = label.split("-")[0]
    quantiles = gap_quantiles(pooled.gap_s, pooled.count)
    options = {"chunk_size": 512}
    no_stage = bubble_rows(label, [_no_bubbles(1)])
    result = PolicyResult(label, policy, options, requests, pd.DataFrame(steps), pooled, quantiles, {}, no_stage)
    return replace(result, summary=summary(result))


def pipelined(result: PolicyResult, stages: int) -> PolicyResult:
    """The same steps through a pipeline, each stage as long over a step as the whole was, the last a tenth longer.

    As many are under way as there are stages; a step that did not follow another waits for its arrival here, too.
    """
    steps = result.iterations
    prefill = np.asarray(steps["prefill_tokens"], np.int64)
    begins, ends = (np.asarray(steps[name] * 1e9).round().astype(np.int64) for name in ("start_s", "end_s"))
    times = stage_times(begins, np.outer(ends - begins, [10] * (stages - 1) + [11]) // 10)
    decodes = np.asarray(steps["num_decodes"], np.int64)
    found = bubbles(times, prefill, decodes) if len(prefill) else _no_bubbles(stages)
    met = [
        found.of_batch_ns[(begins >= first * 1e9 - 1) & (ends <= last * 1e9 + 1)].sum() / 1e9
        for first, last in zip(result.requests["first_scheduled_s"], result.requests["finish_s"], strict=True)
    ]
    requests = result.requests.assign(bubble_s=met)  # type: ignore[attr-defined]
    row = result.summary | bubble_summary([found], np.array(met)[requests["status"] == "finished"])
    rows = bubble_rows(result.label, [found])
    return replace(result, requests=requests, summary=row, bubbles=rows, stages=times)


def stage_times(ready_ns: Ints, took_ns: Ints) -> StageTimes:
    """A pipeline without transfers that runs micro-batches of `took_ns` (micro-batches, stages) as soon as they are
    ready and there are fewer under way than stages."""
    count, stages = took_ns.shape
    start, end = np.zeros_like(took_ns), np.zeros_like(took_ns)
    planned, states = np.zeros(count, np.int64), []
    for k in range(count):
        idle_from = int(end[:k].max(initial=-1))
        planned[k] = at = max(ready_ns[k], end[k - stages, -1] if k >= stages else 0)
        if idle_from < at:
            states += [(idle_from, ARRIVALS)] * (k > 0) + [(at, FULL)]
        for stage in range(stages):
            start[k, stage] = at = max(at, end[k - 1, stage] if k else 0)
            end[k, stage] = at = at + took_ns[k, stage]
    none, why = np.zeros(0, np.int64), np.array(states, np.int64).reshape(-1, 2)
    ahead = np.zeros(count, np.int64), np.zeros(count, bool)
    return StageTimes(start, end, end.copy(), planned, *ahead, why[:, 0], why[:, 1], none, none)


def _no_bubbles(stages: int) -> Bubbles:
    none = np.zeros(stages, np.int64)
    return Bubbles(none, none, np.zeros((stages, IDLE + 1), np.int64), none, none, np.zeros(0, np.int64))


def request(number: int, job: Job) -> dict[str, Any]:
    """A row of requests.csv."""
    first, last, many = job.tokens[0], job.tokens[-1], job.output > 1
    return {
        "request_id": str(number),
        "arrival_s": job.arrival,
        "prompt_tokens": job.prompt,
        "output_tokens": job.output,
        "first_scheduled_s": job.scheduled,
        "first_token_s": first,
        "finish_s": last,
        "ttft_s": first - job.arrival,
        "tpot_s": (last - first) / (job.output - 1) if many else np.nan,
        "itl_max_s": float(np.max(np.diff(job.tokens))) if many else np.nan,
        "e2e_s": last - job.arrival,
        "preemptions": 0,
        "generated_tokens": job.output,
        "bubble_s": 0.0,
        "status": "finished",
    }


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
