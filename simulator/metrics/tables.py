"""The tables of a run as the output files hold them: a row a request, a row an iteration."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.metrics.tokens import NS_PER_S, Ticks, longest_gaps
from simulator.results import Columns
from simulator.runlog import FINISHED, STATUS_NAMES, Iterations, LoggedRun, narrowed
from simulator.trace import Floats, Ints, Trace


class IterationTable:
    """Columns of `iterations.csv`, times in seconds; each is made from the log when it is asked for."""

    columns = (
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

    def __init__(self, iterations: Iterations) -> None:
        self._iterations = iterations

    def __len__(self) -> int:
        return len(self._iterations)

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name == "iteration":
            return narrowed(np.arange(len(self)))
        if name in ("start_s", "end_s"):
            return np.asarray(self._iterations[name.removesuffix("s") + "ns"] / NS_PER_S)
        return self._iterations["num_decodes" if name == "decode_tokens" else name]


def request_table(trace: Trace, run: LoggedRun, ticks: Ticks) -> Columns:
    """Columns of `requests.csv`, a row a request in trace order; times in seconds, NaN where they do not exist.

    `output_tokens` is what the trace asked for; `generated_tokens` is less where generation was cut at the model's
    longest sequence.
    """
    logged = run.requests
    order = np.argsort(logged["request"], kind="stable")
    assert np.array_equal(logged["request"][order], np.arange(len(trace))), "every request ends exactly once"
    column = {name: values[order] for name, values in logged.items()}
    ends, starts = run.iterations["end_ns"], run.iterations["start_ns"]
    finished = column["status"] == FINISHED
    first_scheduled = _times(starts, column["first_scheduled"])
    first_token = _times(ends, column["first_token"])
    finish = np.where(finished, _times(ends, column["last_token"]), np.nan)
    generated = column["generated"]
    arrival = trace.arrival_ns * 1.0
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = np.where(finished & (generated > 1), (finish - first_token) / (generated - 1), np.nan)
    longest = longest_gaps(run, ticks, len(trace)) * 1.0
    longest[generated < 2] = np.nan
    ids = np.array(trace.request_id, dtype=object) if trace.request_id is not None else np.arange(len(trace))
    return Columns(
        {
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
        }
    )


def _times(times_ns: Ints, iterations: Ints) -> Floats:
    """Nanoseconds of the given iterations as float64, NaN where the iteration is -1."""
    if not len(times_ns):
        return np.full(len(iterations), np.nan)
    return np.where(iterations >= 0, times_ns[iterations], np.nan)
