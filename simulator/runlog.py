"""What a run leaves behind, in integers: from it every token time is derived afterwards.

Nothing is written for each token. An iteration has its times; a *stay* in the decode cohort is `(first tick, ticks)`,
and tick k is the k-th iteration that decoded, so the token times of a stay are a slice of the ticks' end times; a
prompt's completion is an *emission* in one iteration. `previous` is the iteration that gave the request its token
before, -1 if none.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FINISHED, REJECTED, STALLED = range(3)
STATUS_NAMES = ("finished", "rejected", "stalled")

ITERATION_COLUMNS = (
    "start_ns",
    "end_ns",
    "num_decodes",
    "num_prefills",
    "prefill_tokens",
    "kv_tokens",
    "free_blocks",
    "running",
    "waiting",
)
STAY_COLUMNS = ("request", "first_tick", "ticks", "previous")
EMISSION_COLUMNS = ("request", "iteration", "previous")
REQUEST_COLUMNS = (
    "request",
    "first_scheduled",
    "first_token",
    "last_token",
    "generated",
    "preemptions",
    "status",
    "cached",
)


class RunLog:
    """Rows of integers, appended by `.extend` of a tuple: a cheap growing table that numpy reads without a copy."""

    def __init__(self) -> None:
        self.iterations = array("q")
        self.stays = array("q")
        self.emissions = array("q")
        self.requests = array("q")


@dataclass(frozen=True)
class LoggedRun:
    """The log as numpy columns by name (int64), the reasons of requests that could not run, the blocks that could be
    handed out, and the time the GPU idled although requests were in the system."""

    iterations: dict[str, NDArray[np.int64]]
    stays: dict[str, NDArray[np.int64]]
    emissions: dict[str, NDArray[np.int64]]
    requests: dict[str, NDArray[np.int64]]
    reasons: dict[int, str]
    total_blocks: int
    bubble_ns: int


def as_columns(rows: array[int], names: tuple[str, ...]) -> dict[str, NDArray[np.int64]]:
    """The flat rows as one int64 view a column."""
    table = np.frombuffer(rows, dtype=np.int64).reshape(-1, len(names)) if rows else np.empty((0, len(names)), np.int64)
    return {name: table[:, column] for column, name in enumerate(names)}
