"""The last stage of a table: run whole steps in duty cycles and fit what the GPU's power limit does to them.

That needs the whole model with its KV cache on the GPU, where the sweep before needs one operator at a time.
"""

import gc
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from profiler import device as machine
from profiler.attention import AttentionBackend
from profiler.batch import pages_of, share_pages
from profiler.clocks import ClockSampler
from profiler.duty_cycles import CYCLES, KINDS, DutyCycle, Marks, StepRow, play
from profiler.forward import Model, Place, Step, scheduled_of
from profiler.fused import Fused
from profiler.marks import CudaMarks, HostMarks, captured
from profiler.power_fit import PowerFit, fit_power_limit
from profiler.progress import ProgressDisplay
from profiler.room import GIB, Room, longest
from profiler.sweep import reason_of
from profiler.timing import Call
from simulator.batch_file import ListedBatch
from simulator.cost_table import CostTable
from simulator.models import ModelShape
from simulator.regression import has_scipy
from simulator.table_costs import token_prices
from simulator.table_rows import TOKEN_OPERATORS

if TYPE_CHECKING:
    import torch

LIMIT_S = 40.0
"""For the whole stage; an H200 takes that long for the cycles of a model of 8 to 13 billion weights."""
LEAST_CYCLES = 8
QUICK_CYCLES = 12


@dataclass(frozen=True)
class Rank:
    """What steps are of: the shape of one of `ranks` ranks, kernels, device and type."""

    shape: ModelShape
    backend: AttentionBackend
    fused: Fused
    device: str
    dtype: "torch.dtype"
    ranks: int = 1

    @property
    def room(self) -> Room:
        """Memory of its steps."""
        return Room(self.shape, self.dtype.itemsize, self.backend.page_size, self.device, self.ranks)


def cycles_for(most_tokens: int, quick: bool = False) -> list[DutyCycle]:
    """The duty cycles of steps of at most `most_tokens`."""
    chosen = CYCLES[:QUICK_CYCLES] if quick else CYCLES
    return [duty for duty in chosen if all(KINDS[kind].tokens <= most_tokens for kind in duty.kinds)]


def find_power_limit(
    rank: Rank,
    table: CostTable,
    cycles: Sequence[DutyCycle],
    *,
    deadline_s: float | None = None,
    quiet: bool = True,
    kinds: Mapping[str, ListedBatch] = KINDS,
) -> PowerFit:
    """The constants of the power limit, or why there are none: too little memory, too little time, nothing to see.

    `table` has the prices of the same model. Until `deadline_s` (`time.monotonic`), but for LIMIT_S at most.
    """
    if not has_scipy():
        return _not_measured("scipy, which fits them, is not installed")
    lacking = [operator for operator in TOKEN_OPERATORS if operator not in table.rows["operator"]]
    if lacking:
        return _not_measured(f"the table has no {lacking[0]}")
    if len(cycles) < LEAST_CYCLES:
        return _not_measured("steps of so few tokens tell too little")
    batches, shortage = _fitting(rank, [kinds[name] for name in _kinds_of(cycles)])
    cycles = [duty for duty in cycles if {*duty.kinds} <= {batch.id for batch in batches}]
    if len(cycles) < LEAST_CYCLES:
        return _not_measured(shortage)
    now_s = time.monotonic()
    until_s = now_s + LIMIT_S if deadline_s is None else min(now_s + LIMIT_S, deadline_s)
    try:
        with ClockSampler(rank.device) as clocks:
            rows, played = _played(rank, batches, cycles, until_s, quiet)
    except RuntimeError as error:  # torch's out-of-memory error is one, and so is a kernel's refusal
        if isinstance(error.__context__, KeyboardInterrupt):  # it broke off a graph's capture
            raise error.__context__ from None
        return _not_measured(reason_of(error))
    if played < LEAST_CYCLES:
        return _not_measured(f"there was time for {played} duty cycles only")
    fit = fit_power_limit(rows, {batch.id: batch.tokens for batch in batches}, token_prices(table))
    return replace(fit, note=fit.note + _said_by(clocks))


def _said_by(clocks: ClockSampler) -> str:
    """What the clock did meanwhile; nothing where nobody tells."""
    lowest, highest = (clocks.seen()[f"sm_{name}"] for name in ("min", "max"))
    if lowest is None or highest is None:
        return ""
    capped = clocks.throttled().get("power cap")
    share = "" if capped is None else f", lowered by the power cap in {capped:.0%} of the readings"
    return f"; SM clock {lowest:.0f} to {highest:.0f} MHz{share}"


def _not_measured(reason: str) -> PowerFit:
    return PowerFit(None, f"not measured: {reason}", measured=False)


def _kinds_of(cycles: Iterable[DutyCycle]) -> list[str]:
    return list(dict.fromkeys(kind for duty in cycles for kind in duty.kinds))


def _fitting(rank: Rank, batches: list[ListedBatch]) -> tuple[list[ListedBatch], str]:
    """(the steps that memory suffices for, without the largest where it does not; what all need and what is free)."""
    _give_back(rank.device)
    room, free = rank.room, machine.free_bytes(rank.device)
    by_size = sorted(batches, key=room.pages)
    shortage = f"the model and its steps need {_needed(room, by_size) / GIB:.1f} GiB, {free / GIB:.1f} GiB are free"
    while by_size and _needed(room, by_size) > free:
        by_size.pop()
    return by_size, shortage


def _needed(room: Room, by_size: Sequence[ListedBatch]) -> int:
    """Bytes of the model, a KV cache for the largest step, and the activations of each, whose graph has its own."""
    activations = sum(room.step_bytes(batch) for batch in by_size)
    return room.fixed_bytes(by_size) + room.pages(by_size[-1]) * room.page_bytes + activations


def _give_back(device: str) -> None:
    """Free what the sweep held."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()  # without this each graph capture would search what is no garbage again
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()


def _played(
    rank: Rank, batches: Sequence[ListedBatch], cycles: Sequence[DutyCycle], until_s: float, quiet: bool
) -> tuple[list[StepRow], int]:
    """(the steps of the `cycles` that there was time for, how many cycles these are)."""
    rows: list[StepRow] = []
    with _launching(rank, batches) as (launch, marks):
        origin = marks.mark()
        with ProgressDisplay(len(cycles), quiet=quiet, deadline_s=until_s, things="duty cycles") as display:
            for place, duty in enumerate(cycles):
                if time.monotonic() > until_s:
                    return rows, place
                display.update(place, duty.name)
                rows += play(duty, launch, marks, origin)
    return rows, len(cycles)


@contextmanager
def _launching(rank: Rank, batches: Sequence[ListedBatch]) -> Iterator[tuple[dict[str, Call], Marks]]:
    """What starts a step of each kind, and the marks of the device; on a GPU in a stream of its own."""
    pages = max(map(rank.room.pages, batches))
    positions, sequences = max(map(longest, batches)), max(batch.sequences for batch in batches)
    place = Place(
        rank.shape, rank.backend, rank.fused, rank.device, rank.dtype, pages, positions, sequences, rank.ranks
    )
    if rank.device == "cpu":
        yield dict(_steps(Model(place), batches)), HostMarks()
        return
    import torch

    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        yield {kind: captured(step, stream) for kind, step in _steps(Model(place), batches)}, CudaMarks()


def _steps(model: Model, batches: Sequence[ListedBatch]) -> Iterator[tuple[str, Step]]:
    """A step of each kind, its sequences on pages drawn at random."""
    random, page_size = np.random.default_rng(0), model.place.backend.page_size
    for batch in batches:
        scheduled = scheduled_of(batch)
        drawn = random.permutation(model.place.pages)[: sum(pages_of(scheduled, page_size))]
        yield batch.id, model.step(scheduled, share_pages(scheduled, page_size, drawn.tolist()))


POWER_NOTE = "power limit: "


def noted(fit: PowerFit, notes: Sequence[str]) -> tuple[str, ...]:
    """`notes` with what `fit` says in place of what an earlier one said."""
    return (*(note for note in notes if not note.startswith(POWER_NOTE)), f"{POWER_NOTE}{fit.note}")
