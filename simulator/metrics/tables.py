"""The tables of a run as the output files hold them: a row a request, a row an iteration."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.metrics.tokens import NS_PER_S, Ticks, longest_gaps
from simulator.policy_runs import POOLS
from simulator.results import Columns
from simulator.runlog import FINISHED, STATUS_NAMES, LoggedRun
from simulator.trace import Floats, Ints, Trace


class IterationTable:
    """Columns of `iterations.csv`, times in seconds; each is made from the log when it is asked for.

    Those of several replicas stand one replica after the other, and `replica` says whose they are; with a prefill and a
    decode pool (the first so many replicas are the former, `prefill_replicas`) `pool` does as well.
    """

    _columns = (
        "iteration",
        "start_s",
        "end_s",
        "num_decodes",
        "decode_tokens",
        "num_prefills",
        "prefill_tokens",
        "kv_tokens",
        "free_blocks",
        "running",
        "waiting",
    )

    def __init__(self, run: LoggedRun, prefill_replicas: int | None = None) -> None:
        self._iterations = run.iterations
        self._lengths = [len(replica.iterations) for replica in run.replicas]
        self._prefill_replicas = prefill_replicas

    @property
    def columns(self) -> tuple[str, ...]:
        """Names in order."""
        columns = (*self._columns, "replica") if self._lengths else self._columns
        return columns if self._prefill_replicas is None else (*columns, "pool")

    def __len__(self) -> int:
        return len(self._iterations)

    def __getitem__(self, name: str) -> NDArray[Any]:
        values, divisor = self.stored(name)
        return values if divisor == 1 else np.asarray(values / divisor)

    def stored(self, name: str) -> tuple[NDArray[Any], float]:
        """See `Table.stored`: times are integer nanoseconds."""
        if name == "iteration":
            return np.concatenate([np.arange(length) for length in self._lengths or [len(self)]]), 1
        if name == "replica":
            return np.repeat(np.arange(len(self._lengths)), self._lengths), 1
        if name == "pool":
            assert self._prefill_replicas is not None
            return np.array(POOLS)[(self.stored("replica")[0] >= self._prefill_replicas).astype(int)], 1
        if name in ("start_s", "end_s"):
            return self._iterations[name.removesuffix("s") + "ns"], NS_PER_S
        return self._iterations["num_decodes" if name == "decode_tokens" else name], 1


def request_table(
    trace: Trace, run: LoggedRun, ticks: Ticks, bubbles_ns: Ints, of_pools: Mapping[str, NDArray[Any]] | None = None
) -> Columns:
    """Columns of `requests.csv`, a row a request in trace order; times in seconds, NaN where they do not exist.

    `of_pools` are further columns where there is a prefill and a decode pool, `bubbles_ns` those that each request met.
    `output_tokens` is what the trace asked for; `generated_tokens` is less where generation was cut at the model's
    longest sequence.
    """
    logged = run.requests
    order = np.argsort(logged["request"], kind="stable")
    assert np.array_equal(logged["request"][order], np.arange(len(trace))), "every request ends exactly once"
    column = {name: values[order] for name, values in logged.items()}
    ends = run.iterations["end_ns"]
    finished = column["status"] == FINISHED
    first_scheduled = _where_some(run.iterations.starts_ns, column["first_scheduled"])
    first_token = _where_some(ends.take, column["first_token"]) + run.delivery_ns
    finish = np.where(finished, _where_some(ends.take, column["last_token"]) + run.delivery_ns, np.nan)
    generated = column["generated"]
    arrival = trace.arrival_ns * 1.0
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = np.where(finished & (generated > 1), (finish - first_token) / (generated - 1), np.nan)
    longest = longest_gaps(run, ticks, len(trace)) * 1.0
    longest[generated < 2] = np.nan
    ids = np.array(trace.request_id, dtype=object) if trace.request_id is not None else np.arange(len(trace))
    columns: dict[str, NDArray[Any]] = {
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
        "bubble_s": bubbles_ns / NS_PER_S,
    }
    replica = {name: column[name] for name in ("replica", "decode_replica") if name in column}
    return Columns(columns | replica | dict(of_pools or {}))


def _where_some(times_ns: Callable[[Ints], Ints], iterations: Ints) -> Floats:
    """Times of the given iterations as float64, NaN where the iteration is -1."""
    times = np.full(len(iterations), np.nan)
    some = iterations >= 0
    times[some] = times_ns(iterations[some])
    return times
