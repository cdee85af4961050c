"""One benchmark of GuideLLM's `benchmarks.json`.

Fields as written by GuideLLM 0.8.1. From each successful request: TTFT in ms, latency in s, and its
`inter_token_latency_ms` = (last - first token) / (output tokens - 1), which is our TPOT; gaps are not kept. Its
`time_per_output_token_ms` includes the TTFT and is not used. Where the file keeps no requests, or a sample of them
(`sample_size`), only aggregates count: percentiles there are values of the sample, not interpolated; the mean
`inter_token_latency_ms` is weighted by tokens, so it is the mean gap, while its percentiles are of requests' means.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simulator.compare.readers._given import Given
from simulator.compare.readers._numbers import mapping, number
from simulator.compare.run import NAN, Requests, Run
from simulator.errors import InputError
from simulator.trace import Floats

NAME = "GuideLLM"
DESCRIPTION = "benchmarks.json; of several benchmarks the last, or --index"
NO_GAPS = "GuideLLM keeps one mean gap a request, not the gaps"
REMARKS = {"itl": "mean only, weighted by tokens", "e2e": "until the response ends"}
NEAREST = "percentiles are not interpolated there"


def recognises(given: Given) -> bool:
    """By the list of benchmarks."""
    return len(given.documents) == 1 and isinstance(given.documents[0].content.get("benchmarks"), list)


def read(given: Given) -> Run:
    """See `Reader.read`."""
    benchmarks = given.documents[0].content["benchmarks"]
    if not benchmarks:
        raise InputError("no benchmarks", path=given.path, key="benchmarks")
    place, note = given.chosen(len(benchmarks), "benchmark")
    where = f"benchmarks[{place}]"
    content = mapping(benchmarks[place], given.path, None, where)
    metrics = mapping(content.get("metrics"), given.path, None, f"{where}.metrics")
    totals = _nested(metrics, "request_totals")
    successful = number(totals, "successful", given.path)
    if successful == 0:
        raise InputError("no successful request", path=given.path, key=where)
    kept = _nested(content, "requests").get("successful")
    entries = kept if isinstance(kept, list) else []
    whole = bool(entries) and not len(entries) < successful
    requests = _requests(entries, given.path, f"{where}.requests.successful") if whole else None
    figures = _figures(metrics, given.path) | {"duration_s": number(content, "duration", given.path)}
    count = successful if requests is None else float(len(requests))
    extra = int(count - successful)
    return Run(
        name=given.name if len(benchmarks) == 1 else f"{given.name}#{place + 1}",
        format=NAME,
        path=given.path,
        requests=requests,
        figures=figures,
        not_comparable={"itl": NO_GAPS} if whole else {"itl": NO_GAPS, "tpot": "no value a request in the file"},
        remarks=REMARKS if whole else {"ttft": NEAREST, **REMARKS, "e2e": f"{REMARKS['e2e']}; {NEAREST}"},
        facts=_facts(content),
        num_requests=count,
        prompt_tokens=_total(metrics, "prompt", requests, given.path),
        output_tokens=_total(metrics, "output", requests, given.path),
        notes=(
            *([note] if note else []),
            *(() if whole else (f"{len(entries)} of {successful:.0f} requests are kept: aggregate figures only",)),
            *((f"{extra} requests of warm-up and cool-down are in the file and counted",) if extra > 0 else ()),
        ),
    )


def _nested(content: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """The object under these keys, one in the other; empty where there is none."""
    inner: Any = content
    for key in keys:
        inner = inner.get(key) if isinstance(inner, dict) else None
    return inner if isinstance(inner, dict) else {}


def _requests(entries: list[Any], path: Path, key: str) -> Requests:
    rows = [_request(mapping(entry, path, None, f"{key}[{index}]"), path) for index, entry in enumerate(entries)]
    table = np.array(rows)
    table = table[np.argsort(table[:, 0], kind="stable")]
    if np.isnan(table[:, 5]).all():
        raise InputError("no request has a latency", path=path, key=key)
    return Requests(*table[~np.isnan(table[:, 5])].T)


def _request(entry: Mapping[str, Any], path: Path) -> list[float]:
    """Columns of `Requests`."""
    start = number(entry, "request_start_time", path)
    if np.isnan(start):
        start = number(_nested(entry, "info", "timings"), "request_start", path)
    ttft, tpot = (number(entry, name, path) / 1e3 for name in ("time_to_first_token_ms", "inter_token_latency_ms"))
    prompt, output = (number(entry, name, path) for name in ("prompt_tokens", "output_tokens"))
    return [start, prompt, output, ttft, tpot, number(entry, "request_latency", path)]


def _figures(metrics: Mapping[str, Any], path: Path) -> dict[str, float]:
    figures = {}
    for latency, named, scale in (("ttft", "time_to_first_token_ms", 1e-3), ("e2e", "request_latency", 1.0)):
        entry = _nested(metrics, named, "successful")
        figures[f"{latency}_mean_s"] = number(entry, "mean", path) * scale
        for statistic in ("p50", "p90", "p99"):
            figures[f"{latency}_{statistic}_s"] = number(_nested(entry, "percentiles"), statistic, path) * scale
    gap = number(_nested(metrics, "inter_token_latency_ms", "successful"), "mean", path)
    figures["itl_mean_s"] = gap / 1e3
    return figures


def _total(metrics: Mapping[str, Any], side: str, requests: Requests | None, path: Path) -> float:
    """Prompt or output tokens of the requests that count."""
    if requests is not None:
        values: Floats = getattr(requests, f"{side}_tokens")
        return float(values.sum())
    total = number(_nested(metrics, f"{side}_token_count", "successful"), "total_sum", path)
    return NAN if total == 0 else total


def _facts(content: Mapping[str, Any]) -> dict[str, str]:
    strategy = _nested(content, "config", "strategy")
    return {key: str(value) for key, value in strategy.items() if isinstance(value, str | int | float)}
