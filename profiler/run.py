"""One run of `profile-gpu`: check machine and kernels, plan, measure, write the table, sum it up."""

import gc
import shlex
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from profiler import device as machine
from profiler.attention import AttentionBackend, choose_attention
from profiler.clocks import ClockSampler
from profiler.finish import finish, folder_of
from profiler.fit import fit_aloud
from profiler.fused import Fused, check_fused, choose_fused
from profiler.grid import Limits, Point, control_points, plan
from profiler.layer import turns_us
from profiler.operators import Bench, needed_bytes
from profiler.paged import PagedAttention, check_attention, layer_bytes_per_token, require_correct
from profiler.progress import ProgressDisplay
from profiler.scan import EXPECTED_QUESTIONS, SCANNED, scan
from profiler.sweep import (
    Measured,
    Workshop,
    discard_unfinished,
    repeat_noise,
    resume,
    save_unfinished,
    sweep,
    unfinished_path,
)
from profiler.timing import QUICK, CpuTimer, CudaTimer, Effort, Timer, warm_gpu
from simulator.attention.kernels import kernel_of
from simulator.cost_table import Attention, TableMetadata, read_table, write_table
from simulator.errors import InputError
from simulator.models import ModelShape, load_model

if TYPE_CHECKING:
    import pandas as pd

WARM_GPU_S = 2.5
KV_SHARE = 0.6  # of the free memory, for the one layer's KV cache
LEAST_KV_TOKENS = 32_768
LEAST_ATTENTION_KINDS = 6  # pairs of decodes and chunks, without which there is nothing to fit
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


def profile(options: Options, started_s: float) -> None:
    """Measure and write the table. Raises InputError; KeyboardInterrupt with a message once rows are kept."""
    _require_writable(options)
    shape = load_model(options.model)
    machine.require_torch(options.device)
    setup = prepare(options, shape)
    for approximation in shape.approximations:
        _tell(options, f"note: {approximation}")
    kernel = kernel_of(setup.backend.name, setup.shape, setup.metadata.gpu.sm_count)
    points = plan(setup.limits, kernel, coarse=options.quick)
    measured = resume(options.out, setup.metadata) if options.resume else Measured()
    _tell(
        options,
        f"{len(points)} points of {shape.name} on {setup.metadata.gpu.name}, attention {setup.backend.name}",
    )
    try:
        metadata = _measure(options, setup, points, measured, started_s)
    except KeyboardInterrupt:
        if not measured.rows:
            raise
        kept = unfinished_path(options.out)
        raise KeyboardInterrupt(
            f"{len(measured.rows)} of {len(points)} points are kept in {kept}; --resume goes on from there"
        ) from None
    if not measured.rows:
        raise InputError("nothing was measured: the budget was over before the first point", key="--budget")
    rows = measured.frame()
    write_table(options.out, rows, metadata)
    discard_unfinished(options.out)
    _fit_attention(options, rows, metadata)
    _tell(options, f"{len(rows)} rows in {options.out}, {metadata.seconds:.0f} s")
    plots = None if options.no_plots else options.plots or folder_of(options.out)
    finish(read_table(options.out), options.decodes, plots, options.quiet, measured.remarks())


def _fit_attention(options: Options, rows: "pd.DataFrame", metadata: TableMetadata) -> None:
    """Add to the written table the constants of its attention kernel, if it has rows enough.

    Raises KeyboardInterrupt with what the table lacks.
    """
    kinds = rows[rows["operator"] == "attention"].groupby(["prefills", "decodes"]).ngroups
    if kinds < LEAST_ATTENTION_KINDS:
        return
    try:
        fitted = fit_aloud(read_table(options.out), "profile-gpu", options.quiet)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"all points are in {options.out}, but without the constants of its attention kernel, so prices of"
            " attention are a guess; --resume fits them"
        ) from None
    write_table(options.out, rows, replace(metadata, attention_model=fitted))


def _require_writable(options: Options) -> None:
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


def _measure(
    options: Options, setup: Setup, points: list[Point], measured: Measured, started_s: float
) -> TableMetadata:
    """Sweep `points` into `measured`; the metadata with what only the run could tell."""
    controls = control_points(points)
    with ClockSampler(options.device) as clocks:
        workshop = _workshop(options, setup, clocks)

        gc.collect()
        gc.freeze()  # what is imported is no garbage; without this each graph capture would search it again
        notes = setup.metadata.notes
        if options.device == "cuda":
            warm_gpu(WARM_GPU_S)
            workshop.turns_us = turns_us(workshop.bench, workshop.make_attention(), workshop.timer)
            notes += (
                f"elementwise includes {workshop.turns_us:.1f} us that kernels of a layer take in turn beyond"
                " what each takes alone",
            )

        def metadata() -> TableMetadata:
            return _with_run(replace(setup.metadata, notes=notes), measured, clocks, started_s)

        if measured.rows:
            notes += (f"resumed: {len(measured.rows)} points are of an earlier run, with its clocks and settings",)
        first = {point: workshop.measure(point) for point in controls}
        deadline_s = None if options.budget is None else started_s + options.budget
        before, after = _around_the_scan(points)
        expected = 0 if options.quick else EXPECTED_QUESTIONS[options.device]
        done = sum(point in measured.rows for point in points)
        with ProgressDisplay(len(points) + expected, done, options.quiet, deadline_s) as display:

            def save() -> None:
                save_unfinished(options.out, measured, metadata())

            def sweep_over(part: list[Point], done_before: int) -> None:
                def show(point: Point, done: int) -> None:
                    display.update(done_before + done, str(point))

                sweep(part, workshop.measure, measured, report=show, save=save, deadline_s=deadline_s)

            sweep_over(before, 0)
            asked = 0
            if not (options.quick or measured.left_out):
                asked = scan(
                    options.device,
                    workshop,
                    measured,
                    deadline_s,
                    report=lambda what, asked: display.update(len(before) + asked, what),
                    save=save,
                )
            display.expect(len(points) + asked)
            sweep_over(after, len(before) + asked)
        last = {point: workshop.measure(point) for point in controls}
        during = {point: measured.rows[point] for point in controls if point in measured.rows}
        finished = metadata()
    return replace(finished, noise=repeat_noise([first, during, last]), notes=(*finished.notes, *measured.remarks()))


def _around_the_scan(points: list[Point]) -> tuple[list[Point], list[Point]]:
    """What is measured before the scan, the coarse pass and the operators that it looks at, and after it."""
    last = max((place for place, point in enumerate(points) if point.operator in SCANNED), default=-1)
    return points[: last + 1], points[last + 1 :]


def _workshop(options: Options, setup: Setup, clocks: ClockSampler) -> Workshop:
    dtype, l2_bytes = machine.dtype_of(options.device, options.dtype), setup.metadata.gpu.l2_bytes or 0
    ranks = options.tensor_parallel
    bench = Bench(setup.shape, options.device, dtype, setup.fused, options.max_tokens, l2_bytes, ranks)
    pages = setup.limits.max_kv_tokens // setup.backend.page_size

    def make_attention() -> PagedAttention:
        return PagedAttention(setup.backend, setup.shape, options.device, dtype, pages, l2_bytes)

    timer: Timer = CpuTimer() if options.device == "cpu" else CudaTimer(QUICK if options.quick else Effort())
    return Workshop(bench, make_attention, timer, clocks)


def _with_run(metadata: TableMetadata, measured: Measured, clocks: ClockSampler, started_s: float) -> TableMetadata:
    repeats = [int(row["repeats"]) for row in measured.rows.values()]
    return replace(
        metadata,
        repeats=max(min(repeats, default=1), 1),
        clocks_mhz=clocks.seen(),
        power_w=clocks.power(),
        throttled=clocks.throttled(),
        cliffs=tuple(measured.cliffs),
        seconds=max(round(time.monotonic() - started_s, 1), 0.1),
    )


def _tell(options: Options, line: str) -> None:
    if not options.quiet:
        print(f"profile-gpu: {line}", file=sys.stderr)
