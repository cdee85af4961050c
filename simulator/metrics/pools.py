"""What is reported of a prefill and a decode pool: how busy each was, and what each request's KV cache waited for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.disaggregation.log import PooledRun
from simulator.metrics.quantiles import percentiles
from simulator.metrics.tokens import NS_PER_S
from simulator.pipeline.bubbles import Bubbles
from simulator.policy_runs import POOLS
from simulator.results import Columns, Table
from simulator.runlog import LoggedRun

_OF_REQUESTS = ("transfer", "decode_queue")


@dataclass(frozen=True)
class Pools:
    """The pools of `run`: policy and GPUs of each, the prefill pool first."""

    run: PooledRun
    policies: tuple[str, str]
    gpus: tuple[int, int]

    @property
    def prefill_replicas(self) -> int:
        """The first so many replicas compute prompts."""
        return self.run.prefill_replicas

    def of_requests(self, requests: int) -> dict[str, NDArray[Any]]:
        """Further columns of `requests.csv`: waiting for room in the decode pool, and from then until the KV is there;
        NaN for who did not go there."""
        sent = self.run.transfers
        columns = {name: np.full(requests, np.nan) for name in ("decode_queue_s", "transfer_s")}
        came = sent.landed_ns >= 0
        columns["decode_queue_s"][sent.request[came]] = (sent.room_ns - sent.ready_ns)[came] / NS_PER_S
        columns["transfer_s"][sent.request[came]] = (sent.landed_ns - sent.room_ns)[came] / NS_PER_S
        return columns

    def rows(self, label: str, log: LoggedRun, found: Sequence[Bubbles]) -> Columns:
        """Columns of `pools.csv`, a row a pool. Shares are of the GPUs' time from the first step of either pool to the
        end of the last; `found` are the bubbles of each replica."""
        steps = [part.iterations for part in log.replicas if len(part.iterations)]
        starts = [int(part.of_stretches("start_ns")[0]) for part in steps]
        span = max((int(part["end_ns"][-1]) for part in steps), default=0) - min(starts, default=0)
        cut = self.prefill_replicas
        rows = [
            self._row(label, place, log.replicas[part], found[part], span)
            for place, part in enumerate((slice(cut), slice(cut, None)))
        ]
        return Columns({name: np.array([row[name] for row in rows]) for name in rows[0]})

    def _row(
        self, label: str, place: int, logs: Sequence[LoggedRun], found: Sequence[Bubbles], span_ns: int
    ) -> dict[str, Any]:
        whole_ns = max(span_ns * sum(len(each.span_ns) for each in found), 1)
        busy_ns, bubble_ns = (
            sum(int(getattr(each, name).sum()) for each in found) for name in ("busy_ns", "bubble_ns")
        )
        used = [1 - int(log.iterations["free_blocks"].min()) / log.total_blocks for log in logs if len(log.iterations)]
        return {
            "label": label,
            "pool": POOLS[place],
            "policy": self.policies[place],
            "replicas": len(logs),
            "gpus": self.gpus[place],
            "iterations": sum(len(log.iterations) for log in logs),
            "preemptions": sum(int(log.requests["preemptions"].sum()) for log in logs),
            "span_s": span_ns / NS_PER_S,
            "busy_fraction": busy_ns / whole_ns,
            "bubble_fraction": bubble_ns / whole_ns,
            "idle_fraction": 1 - (busy_ns + bubble_ns) / whole_ns,
            "kv_peak_fraction": max(used, default=0.0),
        }


def pool_summary(requests: Table, rows: Table | None) -> dict[str, float]:
    """Columns of `summary.csv`; NaN without pools."""
    summary: dict[str, float] = {}
    for name in _OF_REQUESTS:
        values = requests[f"{name}_s"] if rows is not None else np.empty(0)
        values = values[~np.isnan(values)]
        summary[f"{name}_mean_s"] = float(values.mean()) if len(values) else float("nan")
        summary[f"{name}_p99_s"] = percentiles(values, (99.0,))[0]
    for place, pool in enumerate(POOLS):
        summary[f"{pool}_idle_fraction"] = float("nan") if rows is None else float(rows["idle_fraction"][place])
    return summary
