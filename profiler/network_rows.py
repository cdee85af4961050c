"""Readings of exchanges between ranks: what one is, the CSV of all, and the fastest kernel at each size.

Bytes are those of the message: of the sum in an all-reduce, of what each rank has afterwards in an all-gather, of what
one rank gives another in a send. That is how `simulator.network` counts them.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from profiler.timing import Timing

NCCL, ONE_SHOT, GLOO = "nccl", "one-shot", "gloo"
KERNELS = {NCCL: "NCCL", ONE_SHOT: "PyTorch's one-shot kernel on symmetric memory", GLOO: "gloo"}
COLUMNS = ("exchange", "kernel", "ranks", "bytes", "time_us", "p10_us", "p90_us", "repeats", "calls", "fastest")
_UNITS = ((2**30, "GB"), (2**20, "MB"), (2**10, "KB"))


@dataclass(frozen=True, slots=True)
class Reading:
    """Time of one exchange of `size` bytes: `all_reduce`, `all_gather` or `send`; `calls` of it make one sample."""

    exchange: str
    kernel: str
    ranks: int
    size: int
    timing: Timing
    calls: int


def fastest(readings: Iterable[Reading]) -> list[Reading]:
    """Of each exchange and size the reading of the fastest kernel, sizes ascending."""
    ordered = sorted(readings, key=_place)
    return [min(same, key=lambda reading: reading.timing.time_us) for _, same in groupby(ordered, key=_place)]


def _place(reading: Reading) -> tuple[str, int]:
    return reading.exchange, reading.size


def kernels_by_size(chosen: Sequence[Reading]) -> str:
    """Which kernel is used at which sizes, in words; `chosen` are one exchange's, sizes ascending."""
    spans = [list(same) for _, same in groupby(chosen, key=lambda reading: reading.kernel)]
    return ", ".join(f"{KERNELS[span[0].kernel]} {_span(span[0].size, span[-1].size)}" for span in spans)


def _span(first: int, last: int) -> str:
    return f"at {shown(first)}" if first == last else f"from {shown(first)} to {shown(last)}"


def shown(size: int) -> str:
    """`8 KB` of 1024 bytes, `256 MB`, plain bytes where it is no whole number of either."""
    return next((f"{size // unit} {name}" for unit, name in _UNITS if not size % unit), f"{size} bytes")


def csv_of(readings: Sequence[Reading]) -> str:
    """The CSV: a row a reading, sizes ascending, `fastest` where the network has that time."""
    chosen = {(reading.exchange, reading.size, reading.kernel) for reading in fastest(readings)}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for reading in sorted(readings, key=_place):
        timing = reading.timing
        times = [f"{us:.3f}" for us in (timing.time_us, timing.p10_us, timing.p90_us)]
        what = (reading.exchange, reading.kernel, reading.ranks, reading.size)
        is_fastest = "yes" if (reading.exchange, reading.size, reading.kernel) in chosen else "no"
        writer.writerow([*what, *times, timing.repeats, reading.calls, is_fastest])
    return text.getvalue()
