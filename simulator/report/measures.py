"""The measures that policies are compared by: their place in a summary, unit, and which way is better."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from simulator.report.comparable import keep_up, served_alike, unlike_gpus
from simulator.report.wording import duration, significant
from simulator.results import SUMMARY_METRICS, SUMMARY_STATISTICS, PolicyResult

Kind = Literal["seconds", "rate", "count", "fraction"]
Better = Literal["lower", "higher", ""]
TIE = 0.005  # the relative difference up to which two values are equally good, whatever their digits


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

    @property
    def title(self) -> str:
        """Group and statistic on one line."""
        return f"{self.group} {self.statistic}".strip()

    def of(self, result: PolicyResult) -> float:
        """The value, NaN where the run has none."""
        value = result.summary.get(self.key)
        return math.nan if value is None else float(value)

    def text(self, value: float) -> str:
        """The value with its unit, as in a sentence."""
        if self.kind == "seconds":
            return duration(value)
        if self.kind == "rate" and math.isfinite(value):
            return f"{significant(value)} {self.statistic}"
        return bare(value, self.kind)


GROUPS = {"queue": "Queue", "transfer": "Transfer", "decode_queue": "Queue for room"}


def _latency(name: str, statistic: str, noun: str = "") -> Measure:
    return Measure(f"{name}_{statistic}_s", GROUPS.get(name, name.upper()), statistic, "seconds", "lower", noun)


OUTPUT_RATE = Measure("output_tokens_per_s", "Output", "tokens/s", "rate", "higher", "output throughput")
REQUEST_RATE = Measure("requests_per_s", "Requests", "requests/s", "rate", "higher", "request throughput")
TTFT_P50 = _latency("ttft", "p50", "median TTFT")
TTFT_P99 = _latency("ttft", "p99", "p99 TTFT")
ITL_P50 = _latency("itl", "p50", "median ITL")
ITL_P99 = _latency("itl", "p99", "p99 ITL")
E2E_P50 = _latency("e2e", "p50", "median end-to-end latency")
PREEMPTIONS = Measure("preemptions", "Preemptions", "", "count", "lower")
BUBBLES = Measure("bubble_fraction", "Bubbles", "", "fraction", "lower", "share of bubbles")
REQUEST_BUBBLES_P50 = Measure(
    "request_bubble_p50_s", "Request bubbles", "p50", "seconds", "lower", "median of the bubbles that a request meets"
)
GPUS = Measure("gpus", "GPUs", "", "count", "")
KV_PEAK = Measure("kv_peak_fraction", "KV", "peak", "fraction", "")

TERMINAL = (OUTPUT_RATE, TTFT_P50, TTFT_P99, ITL_P50, ITL_P99, E2E_P50, PREEMPTIONS, KV_PEAK)
HEADLINE = (OUTPUT_RATE, TTFT_P50, TTFT_P99, ITL_P50, ITL_P99, E2E_P50)
PAGE = (
    Measure("duration_s", "Duration", "", "seconds", ""),
    REQUEST_RATE,
    OUTPUT_RATE,
    Measure("output_tokens_per_s_per_gpu", "Output per GPU", "tokens/s", "rate", "higher"),
    *(_latency(name, statistic) for name in SUMMARY_METRICS for statistic in SUMMARY_STATISTICS),
    Measure("iterations", "Steps", "", "count", ""),
    PREEMPTIONS,
    BUBBLES,
    KV_PEAK,
)
OF_POOLS = (
    Measure("prefill_idle_fraction", "Idle prefill pool", "", "fraction", ""),
    Measure("decode_idle_fraction", "Idle decode pool", "", "fraction", ""),
    *(_latency("transfer", statistic) for statistic in ("mean", "p99")),
    *(_latency("decode_queue", statistic) for statistic in ("mean", "p99")),
)


def pipelined(results: Sequence[PolicyResult]) -> bool:
    """Whether any run has pipeline stages."""
    return any(result.stages is not None for result in results)


def with_pipeline(measures: Sequence[Measure], results: Sequence[PolicyResult], added: Measure) -> tuple[Measure, ...]:
    """`measures`, and behind them the one `added` where it says something: in pipelines."""
    return (*measures, added) if pipelined(results) else tuple(measures)


def with_gpus_first(measures: Sequence[Measure], results: Sequence[PolicyResult]) -> tuple[Measure, ...]:
    """`measures`, and before them the GPUs where they differ."""
    return (GPUS, *measures) if unlike_gpus(results) else tuple(measures)


def page_measures(results: Sequence[PolicyResult]) -> tuple[Measure, ...]:
    """All that is told of `results`: of pools and pipelines only where there are any."""
    pools = OF_POOLS if any(result.pools is not None for result in results) else ()
    return with_gpus_first(with_pipeline((*PAGE, *pools), results, REQUEST_BUBBLES_P50), results)


def bare(value: float, kind: Kind) -> str:
    """A value without its unit: three significant digits, whole counts, per cent for fractions."""
    if not math.isfinite(value):
        return "-"
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

    All statistics of a latency share one unit. What is within TIE of the best wins with it; nobody wins where all are
    within TIE, alone, where neither way is better, or where the policies did not finish the same requests. Who does not
    keep up is left out.
    """
    values = [measure.of(result) for result in results]
    group = [other for other in TERMINAL if other.group == measure.group and other.kind == measure.kind] or [measure]
    unit, factor = shared_unit(measure, [other.of(result) for other in {measure, *group} for result in results])
    texts = [bare(factor * value, measure.kind) for value in values]
    if not served_alike(results):
        return unit, texts, [False] * len(values)
    kept = [value if kept else math.nan for value, kept in zip(values, keep_up(results), strict=True)]
    return unit, texts, winners(measure, kept)


def winners(measure: Measure, values: Sequence[float]) -> list[bool]:
    """Which of `values` (NaN: none) is the best, as in `column`."""
    finite = [value for value in values if math.isfinite(value)]
    if not measure.better or not finite or math.isclose(min(finite), max(finite), rel_tol=TIE):
        return [False] * len(values)
    best = min(finite) if measure.better == "lower" else max(finite)
    return [math.isclose(value, best, rel_tol=TIE) for value in values]


def finished(result: PolicyResult) -> tuple[int, int]:
    """(requests finished, all requests)."""
    return int(result.summary["num_finished"]), int(result.summary["num_requests"])
