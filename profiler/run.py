"""One run of `profile-gpu`: check machine and kernels, plan, measure, write the table, sum it up."""

import gc
import sys
import time
from dataclasses import replace

from profiler import device as machine
from profiler.clocks import ClockSampler
from profiler.finish import finish, folder_of
from profiler.fit import fit_aloud
from profiler.grid import Point, control_points, plan
from profiler.layer import turns_us
from profiler.operators import Bench
from profiler.paged import PagedAttention
from profiler.power_stage import LIMIT_S, POWER_NOTE, Rank, cycles_for, find_power_limit, noted
from profiler.progress import ProgressDisplay
from profiler.run_setup import Options, Setup, prepare, require_writable
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
from simulator.cost_table import TableMetadata, read_table, write_metadata, write_table
from simulator.errors import InputError
from simulator.models import load_model

WARM_GPU_S = 2.5
POWER_SHARE = 0.2  # of a budget, for the power limit
LEAST_ATTENTION_KINDS = 6  # pairs of decodes and chunks, without which there is nothing to fit


def profile(options: Options, started_s: float) -> None:
    """Measure and write the table. Raises InputError; KeyboardInterrupt with a message once rows are kept."""
    require_writable(options)
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
    metadata = _find_power_limit(options, setup, measured, metadata, started_s)
    write_metadata(options.out.with_suffix(".yaml"), metadata)
    _fit_attention(options, metadata)
    _tell(options, f"{len(rows)} rows in {options.out}, {metadata.seconds:.0f} s")
    plots = None if options.no_plots else options.plots or folder_of(options.out)
    finish(read_table(options.out), options.decodes, plots, options.quiet, measured.remarks())


def _find_power_limit(
    options: Options, setup: Setup, measured: Measured, metadata: TableMetadata, started_s: float
) -> TableMetadata:
    """`metadata` of the written table with the constants of the GPU's power limit, or a note why it has none.

    Raises KeyboardInterrupt with what the table lacks.
    """
    if measured.power_limit is not None:
        return replace(metadata, notes=(*metadata.notes, f"{POWER_NOTE}that of an earlier run"))
    if options.device == "cpu":
        return replace(metadata, notes=(*metadata.notes, f"{POWER_NOTE}not looked for on a CPU"))
    rank = Rank(
        setup.shape,
        setup.backend,
        setup.fused,
        options.device,
        machine.dtype_of(options.device, options.dtype),
        options.tensor_parallel,
    )
    cycles = cycles_for(options.max_tokens, options.quick)
    deadline_s = None if options.budget is None else started_s + options.budget
    _tell(options, "whole steps in duty cycles, for the GPU's power limit")
    try:
        fit = find_power_limit(rank, read_table(options.out), cycles, deadline_s=deadline_s, quiet=options.quiet)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"all points are in {options.out}, but without what the GPU's power limit does to steps and the constants"
            " of its attention kernel; --resume adds them"
        ) from None
    _tell(options, f"{POWER_NOTE}{fit.note}")
    seconds = round(time.monotonic() - started_s, 1)
    return replace(metadata, power_limit=fit.limit, notes=noted(fit, metadata.notes), seconds=seconds)


def _fit_attention(options: Options, metadata: TableMetadata) -> None:
    """Add to the written table the constants of its attention kernel, if it has rows enough.

    Raises KeyboardInterrupt with what the table lacks.
    """
    table = read_table(options.out)
    rows = table.frame()
    kinds = rows[rows["operator"] == "attention"].groupby(["prefills", "decodes"]).ngroups
    if kinds < LEAST_ATTENTION_KINDS:
        return
    try:
        fitted = fit_aloud(table, "profile-gpu", options.quiet)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"all points are in {options.out}, but without the constants of its attention kernel, so prices of"
            " attention are a guess; --resume fits them"
        ) from None
    write_metadata(options.out.with_suffix(".yaml"), replace(metadata, attention_model=fitted))


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
        deadline_s = _deadline_s(options, measured, started_s)
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


def _deadline_s(options: Options, measured: Measured, started_s: float) -> float | None:
    """When the sweep must end so that the budget has time left for what comes after it."""
    if options.budget is None:
        return None
    nothing_after = options.device == "cpu" or measured.power_limit is not None
    return started_s + options.budget - (0.0 if nothing_after else min(LIMIT_S, POWER_SHARE * options.budget))


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
        power_limit=measured.power_limit,
        cliffs=tuple(measured.cliffs),
        seconds=max(round(time.monotonic() - started_s, 1), 0.1),
    )


def _tell(options: Options, line: str) -> None:
    if not options.quiet:
        print(f"profile-gpu: {line}", file=sys.stderr)
