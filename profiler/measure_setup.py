"""What a run of `measure-batches` needs before it measures: its options, sound kernels, and a plan of the memory."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from profiler import device as machine
from profiler.attention import choose_attention
from profiler.forward import Place
from profiler.fused import check_fused, choose_fused
from profiler.paged import check_attention, require_correct
from profiler.room import Room, cache_pages, longest
from profiler.step_timing import STEP
from profiler.verify import PROMPT, RIDERS, needed_pages
from simulator.batch_file import BatchFile, ListedBatch
from simulator.errors import InputError
from simulator.models import ModelShape


@dataclass(frozen=True, slots=True)
class Options:
    """The command line of `measure-batches`; `budget` in seconds."""

    batches: Path
    model: str
    out: Path
    device: str = "cuda"
    attention: str = "auto"
    tensor_parallel: int = 1
    dtype: str | None = None
    eager: bool = False
    max_kv_tokens: int | None = None
    budget: float | None = None
    resume: bool = False
    force: bool = False
    quiet: bool = False
    verify: bool = False

    @property
    def sidecar(self) -> Path:
        """Beside the CSV."""
        return self.out.with_suffix(".yaml")

    def command(self) -> str:
        """The command that repeats the measurement; files by name only."""
        words = ["measure-batches", self.batches.name, "--model", Path(self.model).name, "--attention", self.attention]
        for name in ("device", "tensor_parallel", "dtype", "eager", "max_kv_tokens", "budget", "resume", "verify"):
            value = getattr(self, name)
            if value not in (None, False, type(self).__dataclass_fields__[name].default):
                shown = f"{value:g}" if name == "budget" else str(value)
                words += [f"--{name.replace('_', '-')}", *([] if value is True else [shown])]
        return shlex.join([*words, "--out", self.out.name])


@dataclass(frozen=True)
class Session:
    """A machine that passed the checks: what to build on it, the batches that fit, and what the sidecar will say.

    `skipped`: batches left out, each with the reason.
    """

    place: Place
    room: Room
    batches: Sequence[ListedBatch]
    made: dict[str, Any]
    skipped: dict[str, str]
    attention_error: float

    def require_attention(self) -> None:
        """InputError where the attention kernel differs from the reference."""
        require_correct(self.attention_error, f"the attention kernel {self.place.backend.name}")


def require_writable(options: Options) -> None:
    """Raise InputError where the rows or their sidecar cannot be written, or would overwrite what nobody gave up."""
    out = options.out
    if out.suffix != ".csv":
        raise InputError(f'the rows go to a .csv file, not "{out.name}"', key="--out")
    for path in (out, options.sidecar):
        for read in (options.batches, Path(options.model)):
            if path.exists() and read.exists() and path.samefile(read):
                raise InputError(f"{path} would be overwritten, but is read in this run", key="--out")
        if path.exists() and not options.force and not (options.resume and out.exists()):
            raise InputError(f"{path} exists; --resume goes on with it, --force starts over", key="--out")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        probe = out.with_name(f"{out.name}.partial")  # a place that cannot be written to is better known before
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}", key="--out") from None


def prepare(options: Options, shape: ModelShape, file: BatchFile) -> Session:
    """Choose kernels, check that they are right and that memory suffices. Raises InputError."""
    import torch

    device, dtype = options.device, machine.dtype_of(options.device, options.dtype)
    whole, shape = shape, shape.shard(options.tensor_parallel, "--tp")
    torch.manual_seed(0)
    backend = choose_attention(options.attention, device, dtype)
    fused, fused_note = choose_fused(device)
    room = Room(shape, dtype.itemsize, backend.page_size, device, options.tensor_parallel)
    batches, skipped = _within_limit(options, room, file)
    least = needed_pages(backend.page_size) if options.verify else 1
    pages, batches, too_large = cache_pages(room, batches, machine.free_bytes(device), file.path, least)
    fused_error, attention_error = check_fused(fused, device, dtype), check_attention(backend, shape, device, dtype)
    require_correct(fused_error, "the fused elementwise work")
    positions = max(PROMPT, *(longest(batch) for batch in batches))
    sequences = max(len(RIDERS) + 1, *(batch.sequences for batch in batches))
    place = Place(shape, backend, fused, device, dtype, pages, positions, sequences, options.tensor_parallel)
    notes = _notes(options, fused_note, fused_error, attention_error)
    made = _made(options, whole, place, file, notes)
    session = Session(place, room, batches, made, skipped | too_large, attention_error)
    if not options.verify:  # which is told first, and tells more
        session.require_attention()
    return session


def _made(options: Options, whole: ModelShape, place: Place, file: BatchFile, notes: list[str]) -> dict[str, Any]:
    """What the sidecar says before the run."""
    import torch

    return {
        "gpu": asdict(machine.describe(place.device)),
        "model": {**asdict(whole), "approximations": list(whole.approximations)},
        "attention": {"backend": place.backend.name, "version": place.backend.version},
        "dtype": str(place.dtype).removeprefix("torch."),
        "tensor_parallel": options.tensor_parallel,
        "page_size": place.backend.page_size,
        "kv_tokens": place.pages * place.backend.page_size,
        "launch": "eager" if options.eager or place.device == "cpu" else "CUDA graph of the whole step",
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "driver": machine.driver_version(place.device),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": options.command(),
        "batches": {"file": file.path.name, "sha256": file.sha256},
        "notes": notes,
    }


def _notes(options: Options, fused_note: str, fused_error: float, attention_error: float) -> list[str]:
    notes = [
        fused_note,
        "relative error against the reference, checked before timing:"
        f" elementwise {fused_error:.1e}, attention {attention_error:.1e}",
    ]
    if options.device == "cpu":
        notes.append("a trial on a CPU")
    elif not options.eager:
        notes.append(f"the GPU rests for {STEP.rest:.0%} of a step's time before each replay")
    if options.tensor_parallel > 1:
        notes.append(
            f"one of {options.tensor_parallel} ranks, alone: all-reduces and the all-gather of logits are not in"
            " these times"
        )
    return notes


def _within_limit(options: Options, room: Room, file: BatchFile) -> tuple[list[ListedBatch], dict[str, str]]:
    """The batches within --max-kv-tokens, and why others are left out. InputError if none is left."""
    limit = options.max_kv_tokens
    entries = {batch.id: room.pages(batch) * room.page_size for batch in file.batches}
    fitting = [batch for batch in file.batches if limit is None or entries[batch.id] <= limit]
    if not fitting:
        least = min(entries.values())
        raise InputError(f"no batch is that small; the smallest needs {least}", key="--max-kv-tokens")
    larger = {name: f"{count} KV entries, over --max-kv-tokens" for name, count in entries.items()}
    return fitting, {name: larger[name] for name in entries if limit is not None and entries[name] > limit}
