"""One run of `measure-batches`: check machine and kernels, build the model, run each batch, write its row."""

import gc
import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np

from profiler import device as machine
from profiler.batch import pages_of, share_pages
from profiler.clocks import ClockSampler
from profiler.forward import Model, scheduled_of
from profiler.measure_setup import Options, Session, prepare, require_writable
from profiler.measured_rows import Row, RowWriter, kept_rows, row_of, write_sidecar
from profiler.progress import ProgressDisplay
from profiler.room import GIB, Room
from profiler.step_timing import CpuStepTimer, CudaStepTimer, StepTimer
from profiler.timing import warm_gpu
from profiler.verify import verify
from simulator.batch_file import ListedBatch, read_batches
from simulator.models import load_model

WARM_GPU_S = 2.0


def measure(options: Options, started_s: float) -> None:
    """Measure and write the rows. Raises InputError; VerificationError; KeyboardInterrupt with what is kept."""
    file = read_batches(options.batches)
    shape = load_model(options.model)
    require_writable(options)
    machine.require_torch(options.device, "measure-batches")
    for approximation in shape.approximations:
        _tell(options, f"note: {approximation}")
    session = prepare(options, shape, file)
    kept = kept_rows(options.out, session.made, file.batches) if options.resume else []
    done = {row[0] for row in kept}
    skipped = {name: reason for name, reason in session.skipped.items() if name not in done}
    todo = [batch for batch in session.batches if batch.id not in done]
    where = f"{shape.name} on {session.made['gpu']['name']}, attention {session.place.backend.name}"
    for name, reason in skipped.items():
        _tell_skipped(options, name, reason)
    _tell(options, f"{len(todo)} batches with {where}")
    model = Model(session.place)
    if options.verify:
        _verify(options, model, session)
        session.require_attention()
    measured = len(done)
    write_sidecar(options.sidecar, session.made)
    with RowWriter(options.out, kept) as writer, ClockSampler(options.device) as clocks:
        try:
            for row in _rows(options, model, session.room, todo, skipped, clocks, started_s):
                writer.write(row)
                measured += 1
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"{measured} of {len(file.batches)} batches are in {options.out}; --resume goes on from there"
            ) from None
        finally:
            seconds = round(time.monotonic() - started_s, 1)
            counts = {"measured": measured, "of_an_earlier_run": len(done), "skipped": skipped}
            seen = {"clocks_mhz": clocks.seen(), "seconds": seconds}
            write_sidecar(options.sidecar, {**session.made, **counts, **seen})
    _tell(options, _closing_line(options, measured, skipped, len(file.batches), seconds))


def _closing_line(options: Options, measured: int, skipped: dict[str, str], batches: int, seconds: float) -> str:
    left = batches - measured - len(skipped)
    line = f"{measured} of {batches} batches in {options.out}, {len(skipped)} skipped"
    if skipped:
        line += f" ({', '.join(list(skipped)[:5])}{', ...' if len(skipped) > 5 else ''})"
    if left:
        line += f", {left} left when the budget was over (--resume goes on)"
    return f"{line}, {seconds:.0f} s"


def _verify(options: Options, model: Model, session: Session) -> None:
    checks = verify(model)
    for check in checks:
        _tell(options, f"verified: {check}")
    session.made["notes"].append("verified: " + "; ".join(map(str, checks)))


def _rows(
    options: Options,
    model: Model,
    room: Room,
    todo: Sequence[ListedBatch],
    skipped: dict[str, str],
    clocks: ClockSampler,
    started_s: float,
) -> Iterator[Row]:
    """A row for each of `todo` that fits, until the budget is over; the reason why others do not goes to `skipped`."""
    timer = timer_of(options)
    gc.collect()
    gc.freeze()  # what is imported is no garbage; without this each graph capture would search it again
    if options.device == "cuda":
        warm_gpu(WARM_GPU_S)
    with ProgressDisplay(len(todo), 0, options.quiet, things="batches") as display:
        for place, batch in enumerate(todo):
            if options.budget is not None and time.monotonic() - started_s > options.budget:
                return
            display.update(place, batch.id)
            outcome = _row_or_reason(model, room, batch, timer, clocks)
            if isinstance(outcome, str):
                skipped[batch.id] = outcome
                _tell_skipped(options, batch.id, outcome)
            else:
                yield outcome


def timer_of(options: Options) -> StepTimer:
    """The clock of the device."""
    return CpuStepTimer() if options.device == "cpu" else CudaStepTimer(eager=options.eager)


def _row_or_reason(model: Model, room: Room, batch: ListedBatch, timer: StepTimer, clocks: ClockSampler) -> Row | str:
    """The row of a batch, or why memory does not suffice for it."""
    needed = room.step_bytes(batch)
    if _free_for(needed, model.place.device) < needed:
        return f"out of memory: its activations take about {needed / GIB:.1f} GiB"
    try:
        return _row(model, batch, timer, clocks)
    except RuntimeError as error:  # torch's out-of-memory error is one
        if isinstance(error.__context__, KeyboardInterrupt):  # it broke off a graph's capture
            raise error.__context__ from None
        if "out of memory" not in str(error).lower():
            raise
    return "out of memory"


def _free_for(needed: int, device: str) -> int:
    """Free memory; where that is short of `needed`, what earlier steps leave cached is given back first."""
    if device == "cuda" and machine.free_bytes(device) < needed:
        import torch

        torch.cuda.empty_cache()
    return machine.free_bytes(device)


def _row(model: Model, batch: ListedBatch, timer: StepTimer, clocks: ClockSampler) -> Row:
    """The batch's time, its sequences on pages drawn at random, the same in each run."""
    scheduled, page_size = scheduled_of(batch), model.place.backend.page_size
    drawn = np.random.default_rng([0, batch.line]).permutation(model.place.pages)
    pages = share_pages(scheduled, page_size, drawn[: sum(pages_of(scheduled, page_size))].tolist())
    step = model.step(scheduled, pages)
    measured_from_s = time.monotonic()
    timing = timer.time_step(step)
    return row_of(batch, timing, clocks.since(measured_from_s))


def _tell_skipped(options: Options, name: str, reason: str) -> None:
    _tell(options, f"skipped {name}: {reason}")


def _tell(options: Options, line: str) -> None:
    if not options.quiet:
        print(f"measure-batches: {line}", file=sys.stderr)
