"""The tables of a run: a row a request, a row an iteration, and the one-row summary, as the output files hold them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from simulator.metrics.quantiles import percentiles, weighted_mean, weighted_percentiles
from simulator.metrics.tokens import NS_PER_S, longest_gaps, token_gaps
from simulator.results import PolicyResult, TokenGaps
from simulator.runlog import FINISHED, STATUS_NAMES, LoggedRun
from simulator.trace import Floats, Ints, Trace

_PERCENTS = (50.0, 90.0, 99.0)


def policy_result(label: str, policy: str, options: Mapping[str, Any], trace: Trace, run: LoggedRun) -> PolicyResult:
    """Everything reported about one policy's run over `trace`."""
    requests = request_table(trace, run)
    gaps = token_gaps(run)
    return PolicyResult(
        label,
        policy,
        dict(options),
        requests,
        iteration_table(run),
        gaps,
        summary_row(label, policy, requests, gaps, run),
    )


def iteration_table(run: LoggedRun) -> pd.DataFrame:
    """Columns of `iterations.csv`; times in seconds."""
    rows = run.iterations
    return pd.DataFrame(
        {
            "iteration": np.arange(len(rows["end_ns"])),
            "start_s": rows["start_ns"] / NS_PER_S,
            "end_s": rows["end_ns"] / NS_PER_S,
            "num_decodes": rows["num_decodes"],
            "decode_tokens": rows["num_decodes"],
            "num_prefills": rows["num_prefills"],
            "prefill_tokens": rows["prefill_tokens"],
            "kv_tokens": rows["kv_tokens"],
            "free_blocks": rows["free_blocks"],
            "running": rows["running"],
            "waiting": rows["waiting"],
        },
        copy=False,
    )


def request_table(trace: Trace, run: LoggedRun) -> pd.DataFrame:
    """Columns of `requests.csv`, a row a request in trace order; times in seconds, NaN where they do not exist.

    `output_tokens` is what the trace asked for; `generated_tokens` is less where generation was cut at the model's
    longest sequence.
    """
    logged = run.requests
    order = np.argsort(logged["request"], kind="stable")
    assert np.array_equal(logged["request"][order], np.arange(len(trace))), "every request ends exactly once"
    column = {name: values[order] for name, values in logged.items()}
    ends, starts = run.iterations["end_ns"], run.iterations["start_ns"]
    finished = column["status"] == FINISHED
    first_scheduled = _times(starts, column["first_scheduled"])
    first_token = _times(ends, column["first_token"])
    finish = np.where(finished, _times(ends, column["last_token"]), np.nan)
    generated = column["generated"]
    arrival = trace.arrival_ns * 1.0
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = np.where(finished & (generated > 1), (finish - first_token) / (generated - 1), np.nan)
    longest = longest_gaps(run, len(trace)) * 1.0
    longest[generated < 2] = np.nan
    ids = trace.request_id if trace.request_id is not None else np.arange(len(trace))
    return pd.DataFrame(
        {
            "request_id": ids,
            "arrival_s": arrival / NS_PER_S,
            "prompt_tokens": trace.prompt_tokens,
            "output_tokens": trace.output_tokens,
            "first_scheduled_s": first_scheduled / NS_PER_S,
            "first_token_s": first_token / NS_PER_S,
            "finish_s": finish / NS_PER_S,
            "ttft_s": (first_token - arrival) / NS_PER_S,
            "tpot_s": tpot / NS_PER_S,
            "itl_max_s": longest / NS_PER_S,
            "e2e_s": (finish - arrival) / NS_PER_S,
            "preemptions": column["preemptions"],
            "status": np.array(STATUS_NAMES)[column["status"]],
            "generated_tokens": generated,
            "cached_tokens": column["cached"],
            "queue_s": (first_scheduled - arrival) / NS_PER_S,
        }
    )


def summary_row(label: str, policy: str, requests: pd.DataFrame, gaps: TokenGaps, run: LoggedRun) -> dict[str, Any]:
    """Columns of `summary.csv` in order."""
    finished = requests[requests["status"] == "finished"]
    first_arrival = float(requests["arrival_s"].iloc[0])
    duration = float(finished["finish_s"].max()) - first_arrival if len(finished) else float("nan")
    output = int(finished["generated_tokens"].sum())
    total = output + int(finished["prompt_tokens"].sum())
    free = run.iterations["free_blocks"]
    row: dict[str, Any] = {
        "label": label,
        "policy": policy,
        "num_requests": len(requests),
        "num_finished": len(finished),
        "duration_s": duration,
        "requests_per_s": _rate(len(finished), duration),
        "output_tokens_per_s": _rate(output, duration),
        "total_tokens_per_s": _rate(total, duration),
        "iterations": len(free),
        "preemptions": int(requests["preemptions"].sum()),
        "bubble_fraction": bubble_fraction(run),
        "kv_peak_fraction": float(1 - free.min() / run.total_blocks) if len(free) else 0.0,
    }
    samples = {"ttft": "ttft_s", "tpot": "tpot_s", "e2e": "e2e_s", "queue": "queue_s"}
    for metric in ("ttft", "tpot", "itl", "e2e", "queue"):
        if metric == "itl":
            mean = weighted_mean(gaps.gap_s, gaps.count)
            spread = weighted_percentiles(gaps.gap_s, gaps.count, _PERCENTS)
        else:
            values: Floats = requests[samples[metric]].dropna().to_numpy()
            mean = float(values.mean()) if len(values) else float("nan")
            spread = percentiles(values, _PERCENTS)
        row[f"{metric}_mean_s"] = mean
        row |= {f"{metric}_p{percent:.0f}_s": value for percent, value in zip(_PERCENTS, spread, strict=True)}
    return row


def bubble_fraction(run: LoggedRun) -> float:
    """Share of the time from first to last work in which the GPU idled although a request was in the system.

    On one GPU the simulated engine works whenever it can, so this is 0 unless the policy itself leaves it idle;
    waiting for arrivals is not a bubble.
    """
    starts, ends = run.iterations["start_ns"], run.iterations["end_ns"]
    return run.bubble_ns / int(ends[-1] - starts[0]) if len(ends) and ends[-1] > starts[0] else 0.0


def _times(times_ns: Ints, iterations: Ints) -> Floats:
    """Nanoseconds of the given iterations as float64, NaN where the iteration is -1."""
    if not len(times_ns):
        return np.full(len(iterations), np.nan)
    return np.where(iterations >= 0, times_ns[iterations], np.nan)


def _rate(count: int, duration: float) -> float:
    return count / duration if duration > 0 else float("nan")
