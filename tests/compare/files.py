"""One small run, known to the last token, written as each of the tools would have written it."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

REQUESTS = (
    (0.0, 100, (0.5, 0.6, 0.8)),
    (1.0, 50, (1.2,)),
    (2.0, 30, (2.25, 2.35, 2.45, 2.75)),
)
"""(arrival, prompt tokens, time of each token): TTFT 0.5, 0.2, 0.25; gaps 0.1, 0.2, 0.1, 0.1, 0.3; duration 2.75 s."""
FIGURES = {
    "duration_s": 2.75,
    "requests_per_s": 3 / 2.75,
    "output_tokens_per_s": 8 / 2.75,
    "total_tokens_per_s": 188 / 2.75,
    "ttft_mean_s": 0.95 / 3,
    "ttft_p50_s": 0.25,
    "ttft_p90_s": 0.45,
    "tpot_p50_s": (0.15 + 0.5 / 3) / 2,
    "itl_mean_s": 0.16,
    "itl_p50_s": 0.1,
    "itl_p90_s": 0.26,
    "e2e_mean_s": 1.75 / 3,
    "e2e_p50_s": 0.75,
    "e2e_p99_s": 0.799,
}
"""Worked out by hand, under the names of `summary.csv`."""
EPOCH_NS = 1_759_813_207_532_900_000


def samples() -> dict[str, list[float]]:
    """Every value of each latency."""
    found: dict[str, list[float]] = {"ttft": [], "tpot": [], "itl": [], "e2e": []}
    for arrival, _, times in REQUESTS:
        found["ttft"].append(times[0] - arrival)
        found["e2e"].append(times[-1] - arrival)
        found["itl"] += list(np.diff(times))
        if len(times) > 1:
            found["tpot"].append((times[-1] - times[0]) / (len(times) - 1))
    return found


def gaps(times: tuple[float, ...]) -> list[float]:
    """Between the tokens of one request."""
    return [float(gap) for gap in np.diff(times)]


def write_json(path: Path, *documents: dict[str, Any]) -> Path:
    """An object a line."""
    path.write_text("".join(json.dumps(document) + "\n" for document in documents), encoding="utf-8")
    return path


def write_csv(path: Path, header: str, rows: list[tuple[Any, ...]]) -> None:
    """Comma-separated."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header.split(","), *rows])


def measured_folder(folder: Path) -> Path:
    """`run.json`, `requests.csv` and `token_times.jsonl.gz`."""
    folder.mkdir(parents=True)
    write_json(folder / "run.json", {"mode": "sync", "engine": "vllm 0.23.0", "summary": {"itl_p50_s": 0.1}})
    header = "request_id,arrival_s,prompt_tokens,output_tokens,first_token_s,finish_s"
    rows = [(i, arrival, prompt, len(t), t[0], t[-1]) for i, (arrival, prompt, t) in enumerate(REQUESTS)]
    write_csv(folder / "requests.csv", header, rows)
    with gzip.open(folder / "token_times.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(list(times)) + "\n" for _, _, times in REQUESTS)
    return folder


def simulated_folder(folder: Path, labels: tuple[str, ...] = ("vllm",)) -> Path:
    """`summary.csv`, `requests.csv` and `itl_quantiles.csv` of each label."""
    write_csv(folder / "summary.csv", "label,itl_mean_s", [(label, 0.16) for label in labels])
    header = "arrival_s,prompt_tokens,output_tokens,first_token_s,finish_s,ttft_s,tpot_s,e2e_s,status,generated_tokens"
    rows: list[tuple[Any, ...]] = []
    for arrival, prompt, times in REQUESTS:
        n, ends = len(times), (times[0], times[-1], times[0] - arrival)
        tpot = (times[-1] - times[0]) / (n - 1) if n > 1 else ""
        rows.append((arrival, prompt, n, *ends, tpot, times[-1] - arrival, "finished", n))
    rows.append((3.0, 10**6, 5, "", "", "", "", "", "rejected", 0))
    shares = np.linspace(0, 1, 1001)
    for label in labels:
        write_csv(folder / label / "requests.csv", header, rows)
        quantiles = np.quantile(samples()["itl"], shares)
        write_csv(folder / label / "itl_quantiles.csv", "probability,itl_s", list(zip(shares, quantiles, strict=True)))
    return folder


def client_document(names: dict[str, str], detail: bool = True, failed: int = 0, **more: Any) -> dict[str, Any]:
    """What `vllm bench serve` and SGLang have in common; `failed` requests are in the arrays only."""
    prompts, outputs = [p for _, p, _ in REQUESTS], [len(t) for *_, t in REQUESTS]
    document: dict[str, Any] = {
        "backend": "vllm", "request_rate": "inf", "duration": 3.0, "completed": len(REQUESTS),
        "total_input_tokens": sum(prompts), "total_output_tokens": sum(outputs),
        "request_throughput": 1.0, "output_throughput": 8 / 3, "total_token_throughput": 188 / 3,
    }  # fmt: skip
    for latency, values in samples().items():
        named = names[latency]
        document |= {f"mean_{named}_ms": 1e3 * float(np.mean(values))}
        document |= {f"median_{named}_ms": 1e3 * float(np.median(values))}
        document |= {f"p99_{named}_ms": 1e3 * float(np.percentile(values, 99))}
    if detail:
        document |= {
            "input_lens": prompts + [7] * failed,
            "output_lens": outputs + [0] * failed,
            "ttfts": [times[0] - arrival for arrival, _, times in REQUESTS] + [0.0] * failed,
            "itls": [gaps(times) for *_, times in REQUESTS] + [[] for _ in range(failed)],
            "errors": [""] * len(REQUESTS) + ["refused"] * failed,
        }
    return document | more


def vllm_document(detail: bool = True, failed: int = 0, **more: Any) -> dict[str, Any]:
    """Of vLLM; `duration` begins a quarter of a second early."""
    names = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
    starts = {"start_times": [500 + arrival for arrival, *_ in REQUESTS] + [502.5] * failed} if detail else {}
    return client_document(names, detail, failed, endpoint_type="openai", model_id="m", **starts, **more)


def sglang_document(detail: bool = True, failed: int = 0, **more: Any) -> dict[str, Any]:
    """Of SGLang: no sending times."""
    names = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2e_latency"}
    return client_document(names, detail, failed, total_output_tokens_retokenized=8, dataset_name="random", **more)


def aiperf_lines() -> list[dict[str, Any]]:
    """`profile_export.jsonl`: one of the warm-up, the three, and one that failed."""
    lines = []
    for number, (arrival, prompt, times) in enumerate(REQUESTS):
        ms = {"time_to_first_token": 1e3 * (times[0] - arrival), "request_latency": 1e3 * (times[-1] - arrival)}
        if len(times) > 1:
            ms["inter_token_latency"] = 1e3 * (times[-1] - times[0]) / (len(times) - 1)
        metrics: dict[str, Any] = {name: {"value": value, "unit": "ms"} for name, value in ms.items()}
        metrics |= {"input_sequence_length": {"value": prompt, "unit": "tokens"}}
        metrics |= {"output_sequence_length": {"value": len(times), "unit": "tokens"}}
        if len(times) > 1:
            metrics["inter_chunk_latency"] = {"value": [1e3 * gap for gap in gaps(times)], "unit": "ms"}
        metadata = {"session_num": number, "request_start_ns": EPOCH_NS + round(arrival * 1e9)}
        lines.append({"metadata": metadata | {"benchmark_phase": "profiling"}, "metrics": metrics, "error": None})
    warmup = json.loads(json.dumps(lines[0]))
    warmup["metadata"]["benchmark_phase"] = "warmup"
    failed = {"metadata": lines[0]["metadata"] | {"was_cancelled": True}, "metrics": {}, "error": {"code": 499}}
    return [warmup, *lines[::-1], failed]


def aiperf_document() -> dict[str, Any]:
    """`profile_export_aiperf.json`."""
    names = {
        "ttft": "time_to_first_token",
        "tpot": "inter_token_latency",
        "itl": "inter_chunk_latency",
        "e2e": "request_latency",
    }
    document: dict[str, Any] = {"schema_version": "1.4", "aiperf_version": "0.13.0"}
    for latency, values in samples().items():
        p50, p90, p99 = (1e3 * float(q) for q in np.percentile(values, [50, 90, 99]))
        document[names[latency]] = {"unit": "ms", "avg": 1e3 * np.mean(values), "p50": p50, "p90": p90, "p99": p99}
    document["inter_chunk_latency"]["count"] = len(samples()["itl"])
    scalars = {"benchmark_duration": ("sec", 2.75), "request_throughput": ("requests/sec", 3 / 2.75)}
    scalars |= {"output_token_throughput": ("tokens/sec", 8 / 2.75), "request_count": ("requests", 3)}
    scalars |= {"total_isl": ("tokens", 180), "total_osl": ("tokens", 8)}
    return document | {name: {"unit": unit, "avg": value} for name, (unit, value) in scalars.items()}


def guidellm_document(kept: bool = True, benchmarks: int = 1) -> dict[str, Any]:
    """`benchmarks.json`; without its requests aggregates are left."""
    entries = []
    for arrival, prompt, times in REQUESTS:
        entry: dict[str, Any] = {"request_start_time": EPOCH_NS / 1e9 + arrival, "prompt_tokens": prompt}
        entry |= {"output_tokens": len(times), "request_latency": times[-1] - arrival}
        entry |= {"time_to_first_token_ms": 1e3 * (times[0] - arrival)}
        entry |= {"time_per_output_token_ms": 1e3 * (times[-1] - arrival) / len(times)}
        many = len(times) > 1
        entry["inter_token_latency_ms"] = 1e3 * (times[-1] - times[0]) / (len(times) - 1) if many else None
        entries.append(entry)
    metrics: dict[str, Any] = {"request_totals": {"successful": 3, "errored": 0}}
    for name, latency, scale in (("time_to_first_token_ms", "ttft", 1e3), ("request_latency", "e2e", 1.0)):
        values = scale * np.array(samples()[latency])
        p50, p90, p99 = (float(q) for q in np.percentile(values, [50, 90, 99], method="inverted_cdf"))
        percentiles = {"p50": p50, "p90": p90, "p99": p99}
        metrics[name] = {"successful": {"mean": float(values.mean()), "percentiles": percentiles}}
    metrics["inter_token_latency_ms"] = {"successful": {"mean": 160.0, "percentiles": {"p50": 150.0}}}
    metrics |= {f"{side}_token_count": {"successful": {"total_sum": n}} for side, n in (("prompt", 180), ("output", 8))}
    benchmark = {"duration": 2.8, "metrics": metrics, "requests": {"successful": entries if kept else []}}
    return {"metadata": {"version": 2}, "config": {}, "benchmarks": [benchmark] * benchmarks}
