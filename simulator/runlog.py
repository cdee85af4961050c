"""What a run leaves behind, in integers: from it every token time is derived afterwards.

Nothing is written for each token. An iteration has its end and the blocks it left free; what else it ran is said once
for a *stretch*, iterations that follow each other without a pause and differ only in the passing of time. A *stay* in
the decode cohort is `(first tick, ticks)`, and tick k is the k-th iteration that decoded, so the token times of a stay
are a slice of the ticks' end times; a prompt's completion is an *emission* in one iteration. `previous` is the
iteration that gave the request its token before, -1 if none.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from struct import Struct

import numpy as np

from simulator.pipeline.log import PipelineLog, StageTimes
from simulator.trace import Ints

FINISHED, REJECTED, STALLED = range(3)
STATUS_NAMES = ("finished", "rejected", "stalled")

STRETCH_COLUMNS = {
    "iteration": "q",
    "start_ns": "q",
    "prefill_tokens": "q",
    "kv_tokens": "q",
    "num_decodes": "i",
    "num_prefills": "i",
    "running": "i",
    "waiting": "i",
}
"""Names and struct formats: a long run has millions of stretches."""
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
STAY_COLUMNS = ("request", "stream", "first_tick", "ticks", "previous")
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

PACK_STRETCH = Struct("".join(STRETCH_COLUMNS.values())).pack
PACK_STAY = Struct(f"{len(STAY_COLUMNS)}q").pack
PACK_EMISSION = Struct(f"{len(EMISSION_COLUMNS)}q").pack
PACK_REQUEST = Struct(f"{len(REQUEST_COLUMNS)}q").pack


class RunLog:
    """Columns of integers, and rows of them appended by `.frombytes(PACK_...)`, thrice as fast as `.extend` of a tuple:
    cheap growing tables that numpy reads without a copy."""

    def __init__(self, total_blocks: int) -> None:
        self.end_ns = array("q")
        self.free_blocks = array("i" if total_blocks < 2**31 else "q")
        self.stretches = array("i")
        self.stays = array("q")
        self.emissions = array("q")
        self.requests = array("q")


class Iterations:
    """The iterations of a run by column (integers): those of a stretch, `end_ns` and `free_blocks`.

    A column is made when it is asked for, since a long run has more iterations than memory should hold columns.
    `start_ns` and `kv_tokens` advance within a stretch: each iteration starts `pause_ns` (one for each stretch) after
    the one before it ends, and has the tokens more that it decodes.
    """

    def __init__(
        self, end_ns: Ints, free_blocks: Ints, stretches: dict[str, Ints], pause_ns: Ints | None = None
    ) -> None:
        self._recorded = {"end_ns": end_ns, "free_blocks": free_blocks}
        self._stretches = stretches
        self._pause_ns = pause_ns if pause_ns is not None else np.zeros(len(stretches["iteration"]), np.int64)
        self._bounds = np.append(stretches["iteration"], len(end_ns))

    @classmethod
    def one_after_the_other(cls, parts: Sequence[Iterations]) -> Iterations:
        """Those of several engines, as if they had followed each other; times are what they were."""
        firsts = np.append(0, np.cumsum([len(part) for part in parts]))[:-1]
        stretches = {name: np.concatenate([part._stretches[name] for part in parts]) for name in STRETCH_COLUMNS}
        stretches["iteration"] = np.concatenate(
            [part._stretches["iteration"] + first for part, first in zip(parts, firsts, strict=True)]
        )
        end_ns, free_blocks = (
            np.concatenate([part._recorded[name] for part in parts]) for name in ("end_ns", "free_blocks")
        )
        return cls(end_ns, free_blocks, stretches, np.concatenate([part._pause_ns for part in parts]))

    def __len__(self) -> int:
        return len(self._recorded["end_ns"])

    def __getitem__(self, name: str) -> Ints:
        if name in self._recorded:
            return self._recorded[name]
        values = np.repeat(self._stretches[name], self.of_stretches("length"))
        if name == "start_ns":
            follows = np.ones(len(values), bool)
            follows[self._bounds[:-1]] = False
            np.copyto(values[1:], self._recorded["end_ns"][:-1], where=follows[1:])
            if self._pause_ns.any():
                values[follows] += np.repeat(self._pause_ns, self.of_stretches("length") - 1)
        if name == "kv_tokens":
            grown = np.arange(len(values))
            grown -= np.repeat(self._bounds[:-1], self.of_stretches("length"))
            grown *= self["num_decodes"]
            values += grown
        return values

    def of_stretches(self, name: str) -> Ints:
        """A column that does not change within a stretch, a value a stretch; "length" is its iterations, "time_ns" how
        long it took."""
        if name == "length":
            return np.diff(self._bounds)
        if name == "time_ns":
            return np.asarray(self._recorded["end_ns"][self._bounds[1:] - 1] - self._stretches["start_ns"])
        return self._stretches[name]

    def starts_ns(self, iterations: Ints) -> Ints:
        """The start times of some iterations. O(log stretches) each."""
        stretch = np.searchsorted(self._bounds, iterations, side="right") - 1
        first = self._bounds[stretch] == iterations
        follows = self._recorded["end_ns"][iterations - 1] + self._pause_ns[stretch]
        return np.where(first, self._stretches["start_ns"][stretch], follows)


@dataclass(frozen=True)
class LoggedRun:
    """The log as numpy columns by name (int64), the reasons of requests that could not run, the blocks that could be
    handed out, and the time the GPU idled although requests were in the system: `unready_ns` is what of that lies
    behind the first step, `idle_ns` how long there was nobody to serve from then on. Clients have a token `delivery_ns`
    after the end of its iteration. `streams` says by which of several clocks the decodes of each iteration go; None
    where there is one. `pipeline` is what was logged of its stages, `replicas` the logs of several engines, whose
    iterations stand here one engine after the other."""

    iterations: Iterations
    stays: dict[str, Ints]
    emissions: dict[str, Ints]
    requests: dict[str, Ints]
    reasons: dict[int, str]
    total_blocks: int
    bubble_ns: int
    unready_ns: int = 0
    idle_ns: int = 0
    delivery_ns: int = 0
    streams: Ints | None = None
    pipeline: StageTimes | None = None
    replicas: tuple[LoggedRun, ...] = ()

    def of_pipeline(self, log: PipelineLog) -> LoggedRun:
        """The same run, with what was logged of its stages."""
        return replace(self, streams=np.array(log.streams, np.int64), pipeline=log.columns())


def narrowed(values: Ints) -> Ints:
    """The same integers in a half or a quarter of the room, if they fit."""
    for dtype in (np.int16, np.int32):
        if not len(values) or (values.min() >= np.iinfo(dtype).min and values.max() <= np.iinfo(dtype).max):
            return np.asarray(values, dtype=dtype)
    return values


def as_columns(rows: array[int], names: tuple[str, ...]) -> dict[str, Ints]:
    """The flat rows as one int64 view a column."""
    table = np.frombuffer(rows, dtype=np.int64).reshape(-1, len(names)) if rows else np.empty((0, len(names)), np.int64)
    return {name: table[:, column] for column, name in enumerate(names)}


def as_iterations(log: RunLog, pause_ns: Callable[[int], int] = lambda _: 0) -> Iterations:
    """The log's iterations; the arrays are views of it. `pause_ns` is that after an iteration by its decodes."""
    end_ns, free_blocks = (
        np.frombuffer(rows, rows.typecode) if rows else np.empty(0, rows.typecode)
        for rows in (log.end_ns, log.free_blocks)
    )
    formats = np.dtype(list(STRETCH_COLUMNS.items()))
    stretches = np.frombuffer(log.stretches, formats) if log.stretches else np.empty(0, formats)
    decodes, place = np.unique(stretches["num_decodes"], return_inverse=True)
    pauses = np.array([pause_ns(count) for count in decodes.tolist()], np.int64)[place]
    return Iterations(end_ns, free_blocks, {name: stretches[name] for name in STRETCH_COLUMNS}, pauses)
