"""The measures that policies are compared by: where each is in a summary, its unit, and which way is better."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from simulator.report.wording import duration, significant
from simulator.results import PolicyResult

Kind = Literal["seconds", "rate", "count", "fraction"]
Better = Literal["lower", "higher", ""]


@dataclass(frozen=True)
class Measure:
    """A number of `PolicyResult.summary`: `group` and `statistic` head its column, `better` says what wins
    (empty: neither), `noun` names it in a sentence."""

    key: str
    group: str
    statistic: str
    kind: Kind
    better: Better
    noun: str = ""

    def of(self, result: PolicyResult) -> float:
        """The value, NaN where the run has none."""
        value = result.summary.get(self.key)
        return math.nan if value is None else float(value)

    def text(self, value: float) -> str:
        """The value with its unit, as in a sentence."""
        if self.kind == "seconds":
            return duration(value)
        if self.kind == "rate":
            return f"{significant(value)} {self.statistic}"
        return bare(value, self.kind)


def _latency(name: str, statistic: str, noun: str = "") -> Measure:
    return Measure(f"{name}_{statistic}_s", name.upper(), statistic, "seconds", "lower", noun)


OUTPUT_RATE = Measure("output_tokens_per_s", "Output", "tokens/s", "rate", "higher", "output throughput")
REQUEST_RATE = Measure("requests_per_s", "Requests", "requests/s", "rate", "higher", "request throughput")
TTFT_P50 = _latency("ttft", "p50", "median TTFT")
TTFT_P99 = _latency("ttft", "p99", "p99 TTFT")
ITL_P50 = _latency("itl", "p50", "median ITL")
ITL_P99 = _latency("itl", "p99", "p99 ITL")
E2E_P50 = _latency("e2e", "p50", "median end-to-end latency")
PREEMPTIONS = Measure("preemptions", "Preemp-", "tions", "count", "lower", "number of preemptions")
KV_PEAK = Measure("kv_peak_fraction", "KV", "peak", "fraction", "")

TERMINAL = (OUTPUT_RATE, TTFT_P50, TTFT_P99, ITL_P50, ITL_P99, E2E_P50, PREEMPTIONS, KV_PEAK)
HEADLINE = (OUTPUT_RATE, TTFT_P50, TTFT_P99, ITL_P50, ITL_P99, E2E_P50)
PAGE = (
    Measure("duration_s", "Duration", "", "seconds", ""),
    REQUEST_RATE,
    OUTPUT_RATE,
    *(_latency("ttft", statistic) for statistic in ("mean", "p50", "p90", "p99")),
    *(_latency("tpot", statistic) for statistic in ("mean", "p50", "p90", "p99")),
    *(_latency("itl", statistic) for statistic in ("mean", "p50", "p90", "p99")),
    *(_latency("e2e", statistic) for statistic in ("mean", "p50", "p90", "p99")),
    *(_latency("queue", statistic) for statistic in ("mean", "p50", "p90", "p99")),
    Measure("iterations", "Steps", "", "count", ""),
    Measure("preemptions", "Preemptions", "", "count", "lower"),
    Measure("bubble_fraction", "Bubbles", "", "fraction", "lower"),
    Measure("kv_peak_fraction", "KV peak", "", "fraction", ""),
)


def bare(value: float, kind: Kind) -> str:
    """A value without its unit: three significant digits, whole counts, per cent for fractions."""
    if not math.isfinite(value):
        return "–"
    if kind == "count":
        return f"{value:,.0f}"
    return f"{100 * value:.1f}%" if kind == "fraction" else significant(value)


def shared_unit(measure: Measure, values: Sequence[float]) -> tuple[str, float]:
    """(unit, factor) for a column of `values`: milliseconds as long as all are below a second."""
    if measure.kind != "seconds":
        return "", 1.0
    finite = [value for value in values if math.isfinite(value)]
    return ("s", 1.0) if finite and max(finite) >= 1 else ("ms", 1e3)


def column(measure: Measure, results: Sequence[PolicyResult]) -> tuple[str, list[str], list[bool]]:
    """A table's column: its unit (empty if none), a text a policy, and whether it is the best.

    Equal texts win together; nobody wins where all are alike, alone, or where neither way is better.
    """
    values = [measure.of(result) for result in results]
    unit, factor = shared_unit(measure, values)
    texts = [bare(factor * value, measure.kind) for value in values]
    return unit, texts, _winners(measure.better, values, texts)


def _winners(better: Better, values: Sequence[float], texts: Sequence[str]) -> list[bool]:
    comparable = [value for value in values if math.isfinite(value)]
    if not better or len(comparable) < 2:
        return [False] * len(values)
    winner = texts[values.index(min(comparable) if better == "lower" else max(comparable))]
    won = [text == winner for text in texts]
    return won if sum(won) < len(comparable) else [False] * len(values)


def finished(result: PolicyResult) -> tuple[int, int]:
    """(requests finished, all requests)."""
    return int(result.summary["num_finished"]), int(result.summary["num_requests"])
