"""`profile-gpu --add-power-limit`: what the GPU's power limit does to steps, for a table that was measured without."""

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from profiler import device as machine
from profiler.attention import choose_attention
from profiler.fused import choose_fused
from profiler.paged import check_attention, require_correct
from profiler.power_stage import POWER_NOTE, Rank, cycles_for, find_power_limit, noted
from profiler.timing import warm_gpu
from simulator.cost_table import CostTable, TableMetadata, read_table, write_metadata
from simulator.errors import InputError
from simulator.named_tables import SHORT_BACKENDS
from simulator.power_limit import PowerLimit

KEY = "--add-power-limit"
WARM_GPU_S = 1.0


@dataclass(frozen=True, slots=True)
class Options:
    """The command line; `attention` `auto` is the kernel of the table, `budget` in seconds."""

    table: Path
    device: str = "cuda"
    attention: str = "auto"
    budget: float | None = None
    quick: bool = False
    quiet: bool = False


def add_power_limit(options: Options, started_s: float) -> None:
    """Measure duty cycles, fit the constants and put them into the sidecar, of which all else is kept.

    Raises InputError where the file is no measured table or of another GPU, and where nothing could be measured.
    """
    table = _table_to_complete(options.table)
    if options.device == "cpu":
        raise InputError("a CPU's power limit is not looked for", key="--device")
    machine.require_torch(options.device)
    _require_same_gpu(table, options)
    warm_gpu(WARM_GPU_S)
    measure(options, table, started_s)


def measure(options: Options, table: CostTable, started_s: float) -> None:
    """The same, once the table is known to be of this device."""
    then = table.metadata
    deadline_s = None if options.budget is None else started_s + options.budget
    cycles = cycles_for(int(table.rows["tokens"].max()), options.quick)
    _tell(options, f"whole steps of {then.model.name} on {then.gpu.name} in duty cycles, for the GPU's power limit")
    fit = find_power_limit(_rank(options, then), table, cycles, deadline_s=deadline_s, quiet=options.quiet)
    if not fit.measured:
        raise InputError(f"{fit.note}; the table is as it was", path=options.table, key=KEY)
    sidecar = options.table.with_suffix(".yaml")
    write_metadata(sidecar, replace(then, power_limit=fit.limit, notes=noted(fit, then.notes)))
    _tell(options, f"{POWER_NOTE}{fit.note}")
    seconds = time.monotonic() - started_s
    _tell(options, f"{_described(fit.limit)} (before: {_described(then.power_limit)}) in {sidecar}, {seconds:.0f} s")


def _table_to_complete(path: Path) -> CostTable:
    if path.suffix != ".csv" or not path.is_file():
        raise InputError(f'a table is a .csv file with its .yaml beside it; there is none at "{path}"', key=KEY)
    table = read_table(path)
    if table.metadata.source != "measured":
        raise InputError(f"the table is {table.metadata.source}, not measured on a GPU", path=path, key=KEY)
    return table


def _require_same_gpu(table: CostTable, options: Options) -> None:
    then, now = table.metadata.gpu, machine.describe(options.device)
    if (then.name, then.sm_count) != (now.name, now.sm_count):
        raise InputError(
            f"the table is of a {then.name} ({then.sm_count} SMs), this is a {now.name} ({now.sm_count} SMs)",
            path=options.table,
            key=KEY,
        )


def _rank(options: Options, then: TableMetadata) -> Rank:
    """The table's shapes and kernels on this device. Raises InputError where a kernel is missing or wrong."""
    dtype = machine.dtype_of(options.device, then.dtype)
    of_the_table = SHORT_BACKENDS.get(then.attention.backend, then.attention.backend)
    wanted = of_the_table if options.attention == "auto" else options.attention
    backend = choose_attention(wanted, options.device, dtype)
    shape = then.model.shard(then.tensor_parallel)
    error = check_attention(backend, shape, options.device, dtype)
    require_correct(error, f"the attention kernel {backend.name}")
    fused, _ = choose_fused(options.device)
    return Rank(shape, backend, fused, options.device, dtype, then.tensor_parallel)


def _described(limit: PowerLimit | None) -> str:
    if limit is None:
        return "none"
    return (
        f"slowdown {limit.slowdown:g}, time constant {limit.time_constant_s * 1e3:.1f} ms,"
        f" decode intensity {limit.decode_intensity:g}"
    )


def _tell(options: Options, line: str) -> None:
    if not options.quiet:
        print(f"profile-gpu: {line}", file=sys.stderr)
