"""What is reported about one policy's run: its tables, and the one-row summary."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from simulator.metrics.bubbles import bubble_rows, bubble_summary, request_bubbles_ns, run_bubbles
from simulator.metrics.gap_quantiles import gap_quantiles
from simulator.metrics.pools import Pools, pool_summary
from simulator.metrics.quantiles import percentiles, weighted_mean, weighted_percentiles
from simulator.metrics.tables import IterationTable, request_table
from simulator.metrics.tokens import LoggedGaps, Ticks, gap_sample
from simulator.results import PolicyResult, Table
from simulator.runlog import LoggedRun
from simulator.trace import Floats, Ints, Trace

_PERCENTS = (50.0, 90.0, 99.0)


def policy_result(
    label: str,
    policy: str,
    options: Mapping[str, Any],
    trace: Trace,
    run: LoggedRun,
    gpus: int = 1,
    pools: Pools | None = None,
) -> PolicyResult:
    """Everything reported about one policy's run over `trace`, on so many GPUs; `pools` where it had two."""
    ticks = Ticks(run)
    found = run_bubbles(run)
    met_ns = request_bubbles_ns(run, ticks, found, len(trace))
    requests = request_table(trace, run, ticks, met_ns, None if pools is None else pools.of_requests(len(trace)))
    gaps = gap_sample(run, ticks)
    del ticks  # a long run's summary needs the room
    of_bubbles = bubble_summary(found, requests["bubble_s"][requests["status"] == "finished"])
    summary = {"label": label, "policy": policy} | summary_row(requests, gaps, run, of_bubbles.pop("bubble_fraction"))
    summary |= of_bubbles
    summary |= {"gpus": gpus, "output_tokens_per_s_per_gpu": summary["output_tokens_per_s"] / gpus}
    rows = None if pools is None else pools.rows(label, run, found)
    summary |= pool_summary(requests, rows)
    return PolicyResult(
        label,
        policy,
        dict(options),
        requests,
        IterationTable(run, None if pools is None else pools.prefill_replicas),
        LoggedGaps(run),
        gap_quantiles(*gaps),
        summary,
        bubble_rows(label, found),
        run.pipeline,
        rows,
    )


def summary_row(
    requests: Table, gaps: tuple[Floats, Ints], run: LoggedRun, bubble_fraction: float = 0.0
) -> dict[str, Any]:
    """Columns of `summary.csv` in order, but for label and policy. `gaps` are the inter-token latencies in seconds
    and how often each occurs."""
    finished = requests["status"] == "finished"
    number = int(finished.sum())
    duration = float(requests["finish_s"][finished].max() - requests["arrival_s"][0]) if number else float("nan")
    output = int(requests["generated_tokens"][finished].sum())
    total = output + int(requests["prompt_tokens"][finished].sum())
    parts = [(part.iterations["free_blocks"], part.total_blocks) for part in run.replicas or (run,)]
    row: dict[str, Any] = {
        "num_requests": len(requests),
        "num_finished": number,
        "duration_s": duration,
        "requests_per_s": _rate(number, duration),
        "output_tokens_per_s": _rate(output, duration),
        "total_tokens_per_s": _rate(total, duration),
        "iterations": len(run.iterations),
        "preemptions": int(requests["preemptions"].sum()),
        "bubble_fraction": bubble_fraction,
        "kv_peak_fraction": max((float(1 - free.min() / total) for free, total in parts if len(free)), default=0.0),
    }
    for metric in ("ttft", "tpot", "itl", "e2e", "queue"):
        if metric == "itl":
            mean, spread = weighted_mean(*gaps), weighted_percentiles(*gaps, _PERCENTS)
        else:
            values: Floats = requests[f"{metric}_s"]
            values = values[~np.isnan(values)]
            mean = float(values.mean()) if len(values) else float("nan")
            spread = percentiles(values, _PERCENTS)
        row[f"{metric}_mean_s"] = mean
        row |= {f"{metric}_p{percent:.0f}_s": value for percent, value in zip(_PERCENTS, spread, strict=True)}
    return row


def _rate(count: int, duration: float) -> float:
    return count / duration if duration > 0 else float("nan")
