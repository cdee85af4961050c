"""What the result files of `vllm bench serve` and SGLang's bench_serving have in common: SGLang's began as vLLM's.

Aggregate figures are milliseconds under `STATISTIC_METRIC_ms`. Arrays, where the run kept them, are seconds, an entry a
request in order of sending; a request that failed is in them with `ttft` 0 and no `itls`, and in no aggregate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from simulator.compare.readers._given import Given
from simulator.compare.readers._json import Document
from simulator.compare.readers._numbers import number, numbers, shown
from simulator.compare.run import Pool, Requests, Run
from simulator.errors import InputError
from simulator.trace import Floats

ARRAYS = ("input_lens", "output_lens", "ttfts", "itls")
RATES = {
    "duration_s": "duration",
    "requests_per_s": "request_throughput",
    "output_tokens_per_s": "output_throughput",
    "total_tokens_per_s": "total_token_throughput",
}
MERGED = 0.02
"""The share of a run's gaps that may be missing because tokens came together, before gaps are no longer compared."""


def client_run(
    document: Document, path: Path, name: str, format_name: str, names: Mapping[str, str], facts: Sequence[str]
) -> Run:
    """The run that `document` describes; `names` are the file's own for ttft, tpot, itl and e2e."""
    content, line = document.content, document.line
    completed = number(content, "completed", path, line)
    if completed == 0:
        raise InputError("no request completed", path=path, line=line, key="completed")
    figures = _figures(content, path, line, names)
    latency = _latencies(content, path, line, len(content.get("latencies") or ()))
    if latency is not None and (latency > 0).any():
        pool = Pool.of(latency[latency > 0])
        figures |= {"e2e_mean_s": pool.mean}
        figures |= {f"e2e_p{p}_s": float(pool.at(np.array([p / 100]))[0]) for p in (50, 90, 99)}
    detail = _detail(content, path, line) if all(key in content for key in ARRAYS) else None
    run = Run(
        name=name,
        format=format_name,
        path=path,
        figures=figures,
        remarks={"itl": "gaps between chunks"},
        facts={key: str(content[key]) for key in facts if content.get(key) not in (None, "")},
        num_requests=completed,
        prompt_tokens=number(content, "total_input_tokens", path, line),
        output_tokens=number(content, "total_output_tokens", path, line),
    )
    return run if detail is None else _with_detail(run, detail)


def _figures(content: Mapping[str, Any], path: Path, line: int, names: Mapping[str, str]) -> dict[str, float]:
    statistics = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}
    figures = {
        f"{latency}_{ours}_s": number(content, f"{theirs}_{named}_ms", path, line) / 1e3
        for latency, named in names.items()
        for ours, theirs in statistics.items()
    }
    return figures | {ours: number(content, theirs, path, line) for ours, theirs in RATES.items()}


def _detail(content: Mapping[str, Any], path: Path, line: int) -> tuple[Requests, Floats, int]:
    """The requests that succeeded, their gaps pooled, and how many failed."""
    prompt, output, ttft = (numbers(content[key], path, line, key) for key in ARRAYS[:3])
    lists = content["itls"]
    lengths = {key: len(content[key]) for key in ARRAYS if isinstance(content[key], list)}
    if not isinstance(lists, list) or len(set(lengths.values())) != 1:
        raise InputError(f"arrays of different lengths: {lengths}", path=path, line=line)
    if not lists:
        raise InputError("empty arrays: no requests", path=path, line=line)
    gaps = [numbers(values, path, line, f"itls[{index}]") for index, values in enumerate(lists)]
    errors = content.get("errors")
    failed = [bool(error) for error in errors] if isinstance(errors, list) and len(errors) == len(lists) else None
    good = (ttft > 0) & (output > 0) & ~np.array(failed if failed is not None else [False] * len(lists))
    if not good.any():
        raise InputError(f"none of {len(lists)} requests succeeded", path=path, line=line)
    sent = content.get("start_times")
    arrival = numbers(sent, path, line, "start_times") if sent else np.full(len(lists), np.nan)
    if len(arrival) != len(lists):
        raise InputError(f"{len(arrival)} entries for {len(lists)} requests", path=path, line=line, key="start_times")
    order = np.flatnonzero(good)
    order = order[np.argsort(arrival[order], kind="stable")]
    latency = _latencies(content, path, line, len(lists))
    e2e = ttft + np.array([values.sum() for values in gaps]) if latency is None else latency
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = np.where(output > 1, (e2e - ttft) / (output - 1), np.nan)
    requests = Requests(*(values[order] for values in (arrival, prompt, output, ttft, tpot, e2e)))
    return requests, np.concatenate([gaps[index] for index in order]), len(lists) - len(order)


def _latencies(content: Mapping[str, Any], path: Path, line: int, requests: int) -> Floats | None:
    """Newer files have the whole latency of each request, 0 or less of one that failed."""
    if not content.get("latencies"):
        return None
    latency = numbers(content["latencies"], path, line, "latencies")
    return latency if len(latency) == requests else None


def _with_detail(run: Run, detail: tuple[Requests, Floats, int]) -> Run:
    requests, gaps, failed = detail
    expected = float(np.maximum(requests.output_tokens - 1, 0).sum())
    merged = 1 - len(gaps) / expected if expected else 0.0
    reason = f"{100 * merged:.1f} % of the tokens came together with others: the gaps are between chunks"
    apart = merged <= MERGED
    notes = [f"{failed} requests failed and are left out"] if failed else []
    if apart and merged > 0:
        notes.append(reason)
    figures = run.figures if apart else {k: v for k, v in run.figures.items() if not k.startswith("itl_")}
    return Run(
        name=run.name,
        format=run.format,
        path=run.path,
        requests=requests,
        itl=Pool.of(gaps) if apart and len(gaps) else None,
        figures=figures,
        not_comparable={} if apart else {"itl": reason},
        facts=run.facts,
        num_requests=len(requests),
        prompt_tokens=float(requests.prompt_tokens.sum()),
        output_tokens=float(requests.output_tokens.sum()),
        notes=tuple(notes),
    )


def chosen_run(given: Given, format_name: str, names: Mapping[str, str], facts: Sequence[str], detail: str) -> Run:
    """The run of the file that was asked for, or its last; `detail` is the option that keeps each request."""
    for document in given.documents:
        if "completed" not in document.content:
            keys = shown(list(document.content))
            raise InputError(f'no "completed" in {keys}', path=given.path, line=document.line)
    number = len(given.documents)
    place, note = given.chosen(number, "run")
    name = given.name if number == 1 else f"{given.name}#{place + 1}"
    run = client_run(given.documents[place], given.path, name, format_name, names, facts)
    notes = [note] if note else []
    if run.requests is None:
        notes.append(f"no detail in the file ({detail}): aggregate figures only")
    return replace(run, notes=(*notes, *run.notes))
