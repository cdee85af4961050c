"""AIPerf: `profile_export.jsonl` (a line a request) or `profile_export_aiperf.json` (aggregates), or their folder.

Fields as written by AIPerf 0.13.0, schema 1.4. Its `inter_token_latency` is one value a request,
(latency - TTFT) / (output tokens - 1): our TPOT. Its `inter_chunk_latency` are the gaps between chunks: our ITL as far
as a chunk holds one token. `request_latency` ends with the last content. Each metric names its unit. Percentiles are
numpy's; those of the chunk gaps come from a t-digest there, so they are approximate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from simulator.compare.readers._client import MERGED
from simulator.compare.readers._given import Given
from simulator.compare.readers._json import Document
from simulator.compare.readers._numbers import mapping, number, numbers, shown
from simulator.compare.run import NAN, Pool, Requests, Run
from simulator.errors import InputError
from simulator.trace import Floats

NAME = "AIPerf"
DESCRIPTION = "profile_export.jsonl, or profile_export_aiperf.json (aggregates), or the folder of both"
DETAIL, AGGREGATE = "profile_export.jsonl", "profile_export_aiperf.json"
NAMES = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "itl": "inter_chunk_latency",
    "e2e": "request_latency",
}
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}


def recognises(given: Given) -> bool:
    """By the metadata of a request's line, or a latency with its unit."""
    if given.is_folder:
        return not given.holds("run.json") and (given.holds(DETAIL) or given.holds(AGGREGATE))
    return _is_detail(given.documents) or _is_aggregate(given.documents)


def read(given: Given) -> Run:
    """See `Reader.read`."""
    if given.is_folder:
        inner = Given(given.path / (DETAIL if given.holds(DETAIL) else AGGREGATE))
        return replace(read(inner), name=given.name)
    if _is_detail(given.documents):
        return _read_detail(given)
    return _read_aggregate(given)


def _is_detail(documents: Sequence[Document]) -> bool:
    if not documents:
        return False
    metadata = documents[0].content.get("metadata")
    return isinstance(metadata, dict) and "request_start_ns" in metadata


def _is_aggregate(documents: Sequence[Document]) -> bool:
    latency = documents[0].content.get("request_latency") if len(documents) == 1 else None
    return isinstance(latency, dict) and "unit" in latency


def _read_aggregate(given: Given) -> Run:
    content, path, line = given.documents[0].content, given.path, given.documents[0].line
    figures: dict[str, float] = {}
    for latency, named in NAMES.items():
        entry = mapping(content.get(named) or {"unit": "ms"}, path, line, named)
        scale = _scale(entry, path, line, named)
        for ours, theirs in (("mean", "avg"), ("p50", "p50"), ("p90", "p90"), ("p99", "p99")):
            figures[f"{latency}_{ours}_s"] = number(entry, theirs, path, line) * scale
    duration = mapping(content.get("benchmark_duration") or {"unit": "s"}, path, line, "benchmark_duration")
    figures["duration_s"] = number(duration, "avg", path, line) * _scale(duration, path, line, "benchmark_duration")
    for ours, theirs in (("requests_per_s", "request_throughput"), ("output_tokens_per_s", "output_token_throughput")):
        figures[ours] = _average(content, theirs, path, line)
    count = _average(content, "request_count", path, line)
    if count == 0:
        raise InputError("no request succeeded", path=path, line=line, key="request_count")
    chunks = mapping(content.get(NAMES["itl"]) or {}, path, line, NAMES["itl"])
    output = _average(content, "total_osl", path, line)
    merged = 1 - number(chunks, "count", path, line) / max(output - count, 1)
    if merged > MERGED:
        figures = {name: value for name, value in figures.items() if not name.startswith("itl_")}
    return Run(
        name=given.name,
        format=NAME,
        path=path,
        figures=figures,
        not_comparable={"itl": _merged(merged)} if merged > MERGED else {},
        remarks={"itl": "gaps between chunks; percentiles from a t-digest"},
        facts={key: str(content[key]) for key in ("aiperf_version", "benchmark_id") if content.get(key)},
        num_requests=count,
        prompt_tokens=_average(content, "total_isl", path, line),
        output_tokens=output,
        notes=(f"aggregate figures only; {DETAIL} has each request",),
    )


def _merged(share: float) -> str:
    return f"{100 * share:.1f} % of the tokens came together with others: inter_chunk_latency is between chunks"


def _average(content: Mapping[str, Any], name: str, path: Path, line: int) -> float:
    return number(mapping(content.get(name) or {}, path, line, name), "avg", path, line)


def _scale(entry: Mapping[str, Any], path: Path, line: int, name: str) -> float:
    unit = entry.get("unit")
    if not isinstance(unit, str) or unit not in SECONDS:
        raise InputError(f"unknown unit {shown(unit)}; known: {', '.join(SECONDS)}", path=path, line=line, key=name)
    return SECONDS[unit]


def _read_detail(given: Given) -> Run:
    path, rows, gaps = given.path, [], []
    left_out = warmup = 0
    for document in given.documents:
        metadata = mapping(document.content.get("metadata"), path, document.line, "metadata")
        if metadata.get("benchmark_phase", "profiling") != "profiling":
            warmup += 1
        elif document.content.get("error") or metadata.get("was_cancelled"):
            left_out += 1
        else:
            row, of_request = _request(document, metadata, path)
            rows.append(row)
            gaps.append(of_request)
    if not rows:
        raise InputError(f"no request succeeded; {left_out} failed, {warmup} of the warm-up", path=path)
    table = np.array(rows)
    order = np.argsort(table[:, 0], kind="stable")
    requests = Requests(*table[order].T)
    pooled = np.concatenate(gaps)
    merged = 1 - len(pooled) / max(1.0, float(np.maximum(requests.output_tokens - 1, 0).sum()))
    apart = merged <= MERGED and len(pooled) > 0
    counts = ((left_out, "requests failed or were cancelled and are"), (warmup, "requests of the warm-up are"))
    return Run(
        name=given.name,
        format=NAME,
        path=path,
        requests=requests,
        itl=Pool.of(pooled) if apart else None,
        not_comparable={} if apart else {"itl": _merged(merged)},
        num_requests=len(requests),
        prompt_tokens=float(requests.prompt_tokens.sum()),
        output_tokens=float(requests.output_tokens.sum()),
        notes=tuple(f"{number_of} {what} left out" for number_of, what in counts if number_of),
    )


def _request(document: Document, metadata: Mapping[str, Any], path: Path) -> tuple[list[float], Floats]:
    """Columns of `Requests`, and the gaps between chunks."""
    line = document.line
    metrics = mapping(document.content.get("metrics"), path, line, "metrics")
    ttft, tpot, e2e = (_value(metrics, NAMES[name], path, line) for name in ("ttft", "tpot", "e2e"))
    lengths = [_length(metrics, f"{side}_sequence_length", path, line) for side in ("input", "output")]
    start = number(metadata, "request_start_ns", path, line) / 1e9
    entry = metrics.get(NAMES["itl"])
    gaps: Floats = np.empty(0)
    if entry is not None:
        values = numbers(mapping(entry, path, line, NAMES["itl"]).get("value"), path, line, NAMES["itl"])
        gaps = values * _scale(entry, path, line, NAMES["itl"])
    return [start, *lengths, ttft, tpot, e2e], gaps


def _value(metrics: Mapping[str, Any], name: str, path: Path, line: int) -> float:
    """Seconds; NaN where the request has no such metric."""
    if metrics.get(name) is None:
        return NAN
    entry = mapping(metrics[name], path, line, name)
    return number(entry, "value", path, line) * _scale(entry, path, line, name)


def _length(metrics: Mapping[str, Any], name: str, path: Path, line: int) -> float:
    return NAN if metrics.get(name) is None else number(mapping(metrics[name], path, line, name), "value", path, line)
