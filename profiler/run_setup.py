"""What a run of `profile-gpu` needs before it measures: its options, sound kernels, and a grid that fits the memory."""

import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from profiler import device as machine
from profiler.attention import AttentionBackend, choose_attention
from profiler.fused import Fused, check_fused, choose_fused
from profiler.grid import Limits
from profiler.operators import needed_bytes
from profiler.paged import check_attention, layer_bytes_per_token, require_correct
from profiler.sweep import discard_unfinished, unfinished_path
from profiler.timing import Effort
from simulator.cost_table import Attention, TableMetadata
from simulator.errors import InputError
from simulator.models import ModelShape

KV_SHARE = 0.6  # of the free memory, for the one layer's KV cache
LEAST_KV_TOKENS = 32_768
RANK_NOTE = "one of {} ranks, alone: the all-reduces between them and the all-gather of logits are not in these times"
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Options:
    """The command line of `profile-gpu`; `budget` in seconds."""

    model: str
    out: Path
    device: str = "cuda"
    attention: str = "auto"
    max_tokens: int = 8192
    max_kv_tokens: int = 700_000
    tensor_parallel: int = 1
    dtype: str | None = None
    budget: float | None = None
    quick: bool = False
    resume: bool = False
    force: bool = False
    quiet: bool = False
    plots: Path | None = None
    no_plots: bool = False
    decodes: int = 40
    attention_version: str | None = None

    def command(self) -> str:
        """The command that repeats the measurement; files by name only."""
        words = ["profile-gpu", "--model", Path(self.model).name, "--attention", self.attention]
        for name in (
            "device",
            "tensor_parallel",
            "dtype",
            "max_tokens",
            "max_kv_tokens",
            "budget",
            "quick",
            "resume",
        ):
            value = getattr(self, name)
            if value not in (None, False, type(self).__dataclass_fields__[name].default):
                words += [
                    f"--{name.replace('_', '-')}",
                    *([] if value is True else [f"{value:g}s" if name == "budget" else str(value)]),
                ]
        return shlex.join([*words, "--out", self.out.name])


@dataclass(frozen=True)
class Setup:
    """A machine that passed the checks: what is measured on it, and what the table will say about it.

    `shape` is that of one rank; `metadata.model` is the whole model's.
    """

    shape: ModelShape
    backend: AttentionBackend
    fused: Fused
    limits: Limits
    metadata: TableMetadata


def require_writable(options: Options) -> None:
    """Raise InputError where the table cannot be written, or would overwrite what nobody gave up."""
    if options.out.suffix != ".csv":
        raise InputError(f'a table is a .csv file, not "{options.out.name}"', key="--out")
    if options.out.is_dir():
        raise InputError(f"{options.out} is a folder; name a file", key="--out")
    if not (options.resume or options.force):
        for path in (options.out, unfinished_path(options.out)):
            if path.exists():
                raise InputError(f"{path} exists; --resume goes on with it, --force starts over", key="--out")
    try:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        if not unfinished_path(options.out).exists():  # a place that cannot be written to is better known before
            unfinished_path(options.out).touch()
            unfinished_path(options.out).unlink()
    except OSError as error:
        raise InputError(f"cannot write {options.out}: {error.strerror}", key="--out") from None
    if not options.resume:
        discard_unfinished(options.out)


def prepare(options: Options, shape: ModelShape) -> Setup:
    """Choose kernels, check that they are right and that memory suffices. Raises InputError where not."""
    import torch

    device, dtype = options.device, machine.dtype_of(options.device, options.dtype)
    whole, shape = shape, shape.shard(options.tensor_parallel, "--tp")
    torch.manual_seed(0)
    gpu = machine.describe(device)
    backend = choose_attention(options.attention, device, dtype)
    fused, fused_note = choose_fused(device)
    limits, memory_note = limits_of(options, shape, backend.page_size, gpu.l2_bytes or 0, dtype.itemsize)
    fused_error = check_fused(fused, device, dtype)
    require_correct(fused_error, "the fused elementwise work")
    attention_error = check_attention(backend, shape, device, dtype)
    require_correct(attention_error, f"the attention kernel {backend.name}")
    notes = [
        fused_note,
        "relative error against the reference, checked before timing:"
        f" elementwise {fused_error:.1e}, attention {attention_error:.1e}",
        "times are of CUDA-graph replays over rotated weights and KV pages, after settling under load with"
        f" {Effort().rest:.0%} rest between them"
        if device == "cuda"
        else "a trial on a CPU",
        *([memory_note] if memory_note else []),
        *([RANK_NOTE.format(options.tensor_parallel)] if options.tensor_parallel > 1 else []),
    ]
    version = options.attention_version if backend.version == "unknown" else None
    metadata = TableMetadata(
        gpu=gpu,
        model=whole,
        attention=Attention(backend.name, version or backend.version),
        dtype=str(dtype).removeprefix("torch."),
        tensor_parallel=options.tensor_parallel,
        page_size=backend.page_size,
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        driver=machine.driver_version(device),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        repeats=1,
        command=options.command(),
        notes=tuple(notes),
    )
    return Setup(shape, backend, fused, limits, metadata)


def limits_of(
    options: Options, shape: ModelShape, page_size: int, l2_bytes: int, element_bytes: int
) -> tuple[Limits, str | None]:
    """The grid that fits into free memory, with a note where that cuts it. InputError if nothing would."""
    free = machine.free_bytes(options.device)
    needed = needed_bytes(shape, options.max_tokens, l2_bytes, element_bytes, options.tensor_parallel)
    entry_bytes = layer_bytes_per_token(shape, element_bytes)
    room = int(KV_SHARE * free) // entry_bytes
    least = min(LEAST_KV_TOKENS, options.max_kv_tokens)
    if needed > free or room < least:
        wanted = max(needed, least * entry_bytes / KV_SHARE)
        raise InputError(
            f"too little memory: timing {shape.name} at {options.max_tokens} tokens takes about"
            f" {wanted / GIB:.1f} GiB, {free / GIB:.1f} GiB are free; a smaller --max-tokens helps"
        )
    pages = max(min(options.max_kv_tokens, room) // page_size, 1)
    limits = Limits(options.max_tokens, pages * page_size, page_size)
    cut = (
        f"memory limits attention to {limits.max_kv_tokens} KV entries a call" if room < options.max_kv_tokens else None
    )
    return limits, cut
