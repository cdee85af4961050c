"""A whole step log of a running engine as arrays, a value a step."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError
from simulator.step_log_rows import CLOCKS, COUNTS, checked_rows, chunks_of
from simulator.trace import Floats, Ints

Chunk = tuple[int, int, int]


@dataclass(frozen=True)
class LoggedSteps:
    """The steps of a log in order; all columns are as long as the log.

    Times are seconds on the scheduler's clock: `schedule()` called and returned, the step's result there, and applied.
    `num_waiting` and `num_running` are queue lengths before the step. Of its `decodes`, `decode_context` is the sum and
    `longest` the largest of the context lengths, the step's own token included. `chunks` are
    (request, context before, tokens), `preempted` request numbers, both in the order scheduled. `line` is that of the
    file, 1-based; `notes` say what was wrong with it.
    """

    path: Path
    line: Ints
    step: Ints
    schedule_start_s: Floats
    schedule_end_s: Floats
    output_ready_s: Floats
    update_end_s: Floats
    num_waiting: Ints
    num_running: Ints
    decodes: Ints
    decode_context: Ints
    longest: Ints
    chunks: tuple[tuple[Chunk, ...], ...]
    preempted: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.step)

    @cached_property
    def num_chunks(self) -> Ints:
        """Prompt chunks of each step."""
        return _sums(self.chunks, lambda _: 1)

    @cached_property
    def prefill_tokens(self) -> Ints:
        """Prompt tokens of each step."""
        return _sums(self.chunks, lambda chunk: chunk[2])

    @cached_property
    def tokens(self) -> Ints:
        """All tokens of each step: its decodes and its prompt tokens."""
        return self.decodes + self.prefill_tokens

    @cached_property
    def pipelined(self) -> NDArray[np.bool_]:
        """Of each step, whether it was scheduled before the output of the one before was applied, as asynchronous
        engines and pipeline stages do."""
        earlier = np.concatenate([[-np.inf], self.update_end_s[:-1]])
        return np.asarray(self.schedule_start_s < earlier)


def read_step_log(path: Path) -> LoggedSteps:
    """The log at `path`, gzip or plain CSV.

    A last batch that is cut off ends it, with a note. Raises InputError with file and line for a file that is no step
    log, a row that cannot be, and a log without steps.
    """
    notes: list[str] = []
    times = {name: array("d") for name in CLOCKS}
    counts = {name: array("q") for name in ("line", "step", *COUNTS)}
    chunks: list[tuple[Chunk, ...]] = []
    preempted: list[tuple[int, ...]] = []
    for line, row in checked_rows(path, notes.append):
        counts["line"].append(line)
        for name in CLOCKS:
            times[name].append(float(row[name]))
        for name in ("step", *COUNTS):
            counts[name].append(int(row[name]))
        chunks.append(tuple(chunks_of(row)))
        preempted.append(tuple(map(int, row["preempted"].split())))
    if not chunks:
        raise InputError("no steps; the log has a header only", path=path)
    ints = {name: np.array(values, dtype=np.int64) for name, values in counts.items()}
    return LoggedSteps(
        path=path,
        line=ints["line"],
        step=ints["step"],
        **{name: np.array(values, dtype=np.float64) for name, values in times.items()},
        num_waiting=ints["num_waiting"],
        num_running=ints["num_running"],
        decodes=ints["num_decodes"],
        decode_context=ints["decode_context_sum"],
        longest=ints["decode_context_max"],
        chunks=tuple(chunks),
        preempted=tuple(preempted),
        notes=tuple(notes),
    )


def _sums(chunks: Sequence[Sequence[Chunk]], value: Callable[[Chunk], int]) -> Ints:
    return np.array([sum(map(value, of_step)) for of_step in chunks], dtype=np.int64)
