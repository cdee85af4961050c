"""What one simulated policy run leaves behind; everything that is printed, plotted or written derives from it."""

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from simulator.trace import Floats, Ints

SUMMARY_METRICS = ("ttft", "tpot", "itl", "e2e", "queue")
SUMMARY_STATISTICS = ("mean", "p50", "p90", "p99")


@dataclass(frozen=True)
class TokenGaps:
    """Inter-token latencies of a run, weighted: entry i says that `count[i]` requests waited `gap_s[i]` seconds
    between two consecutive tokens, the later of which came at `end_s[i]`. Entries are in order of `end_s`."""

    end_s: Floats
    gap_s: Floats
    count: Ints


@dataclass(frozen=True)
class PolicyResult:
    """One policy's run over one trace.

    `requests` and `iterations` have the columns of `requests.csv` and `iterations.csv` (seconds as float64, times that
    do not exist NaN); `summary` has the columns of `summary.csv` in their order; `options` are the policy's.
    """

    label: str
    policy: str
    options: dict[str, Any]
    requests: pd.DataFrame
    iterations: pd.DataFrame
    gaps: TokenGaps
    summary: dict[str, Any]
    notes: tuple[str, ...] = field(default=())
