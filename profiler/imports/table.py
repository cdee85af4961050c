"""From prices to a cost table on disk: which points, their rows, and a sidecar that says where each comes from."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from profiler import grid
from profiler.grid import LINEAR_OPERATORS, Point
from profiler.imports.datasheet import Hardware
from profiler.imports.roofline import Roofline
from profiler.imports.schedule import with_attention_model
from simulator.cost_table import Attention, Source, TableMetadata, write_table
from simulator.models import ModelShape

MAX_TOKENS = 8192
LONG_CONTEXT = 32768
MODELLED = "rows with 0 repeats were not measured: they come from a roofline model of the GPU's datasheet"
NO_ALL_REDUCE = "one GPU's share of the work; the all-reduces between the GPUs are not in this table"


@dataclass(frozen=True, slots=True)
class Price:
    """Microseconds of a point, and between which the repeats lay; `repeats` 0 where a model says so."""

    time_us: float
    low_us: float
    high_us: float
    repeats: int

    @classmethod
    def modelled(cls, time_us: float) -> "Price":
        """A time that nobody measured."""
        return cls(time_us, time_us, time_us, 0)


class PriceSource(Protocol):
    """Where times come from: the points it has to offer, their prices, and what the sidecar says of it."""

    @property
    def kind(self) -> Source:
        """Imported or modelled."""

    @property
    def dtype(self) -> str:
        """Of weights and activations, such as `bfloat16`."""

    @property
    def attention(self) -> Attention:
        """The kernel."""

    def points(self) -> Iterable[Point]:
        """The points of the table."""

    def price(self, point: Point) -> Price:
        """The price of one of them."""

    def notes(self) -> Iterable[str]:
        """What a reader of the table must know; asked for after the last price."""


@dataclass(frozen=True)
class DatasheetSource:
    """Everything from the roofline model."""

    roofline: Roofline
    kind: Source = "modelled"
    dtype: str = "bfloat16"

    @property
    def attention(self) -> Attention:
        """The kernel that the model describes."""
        return Attention(self.roofline.hardware.constants.attention.kernel, "modelled")

    def points(self) -> Iterator[Point]:
        """All operators, on both sides of each tile boundary."""
        yield from (Point(operator, tokens=tokens) for operator in LINEAR_OPERATORS for tokens in token_counts())
        yield from other_points()
        yield from attention_points(self.roofline)

    def price(self, point: Point) -> Price:
        """The model's time."""
        return Price.modelled(self.roofline.time_us(point))

    def notes(self) -> Iterator[str]:
        """That it is a model, and what of."""
        hardware = self.roofline.hardware
        yield "model, not measured: a roofline with tile and wave quantization from the GPU's datasheet"
        yield (
            f"datasheet: {hardware.sheet.peak_flops / hardware.flops_share / 1e12:g} TFLOP/s dense in 16 bits,"
            f" {hardware.sheet.memory_bandwidth / 1e12:g} TB/s; {', '.join(hardware.sheet.sources)}"
        )
        if hardware.flops_share != 1:
            yield f"what if: computed as if the GPU had {hardware.flops_share:g} of these FLOP/s; no GPU is like that"
        yield f"constants fitted: {hardware.constants.basis}"


def token_counts() -> list[int]:
    """Both sides of the multiples of 64 up to 1024 tokens, of 128 up to 4096, of 256 beyond; and small steps."""
    counts = {1, 2, 4, 8, 16, 17, 24, 32, 33, 48}
    for step, last in ((64, 1024), (128, 4096), (256, MAX_TOKENS)):
        counts |= {size + one for size in range(step, last + 1, step) for one in (0, 1)}
    return sorted(count for count in counts if count <= MAX_TOKENS)


def other_points() -> Iterator[Point]:
    """Of elementwise work, embedding and LM head."""
    yield from (point for point in grid.token_points(MAX_TOKENS) if point.operator not in LINEAR_OPERATORS)
    yield from (Point("lm_head", sequences=count) for count in grid.SEQUENCES)


def attention_points(roofline: Roofline) -> Iterator[Point]:
    """The profiler's grid without the limits of memory and time, and longer contexts.

    All decodes of a call have the same context: the roofline knows no other.
    """
    kernel = roofline.kernel
    yield from grid.prefill_points(kernel)
    for tokens in grid.chunk_sizes(kernel):
        yield Point("attention", prefills=1, prefill_tokens=tokens, prefill_context=LONG_CONTEXT)
    yield from (point for point in grid.decode_points(kernel) if not point.decode_longest)
    yield from (Point("attention", decodes=count, decode_context=LONG_CONTEXT) for count in grid.DECODES)
    yield from hybrid_points()


def hybrid_points() -> Iterator[Point]:
    """Chunks beside decodes: the profiler's grid, and up to as many decodes as alone."""
    yield from (replace(point, decode_longest=0) for point in grid.hybrid_points())
    for decodes, context, tokens in product((512, 1024), (128, 1024, 4096), (256, 1024)):
        yield Point("attention", decodes=decodes, decode_context=context, prefills=1, prefill_tokens=tokens)


def make_rows(source: PriceSource) -> pd.DataFrame:
    """The rows of the table."""
    rows: list[dict[str, Any]] = []
    for point in dict.fromkeys(source.points()):
        price = source.price(point)
        place = {name: getattr(point, name) for name in Point.__dataclass_fields__}
        times = {"time_us": price.time_us, "p10_us": price.low_us, "p90_us": price.high_us}
        rows.append({**place, **times, "repeats": price.repeats, "sm_mhz": None})
    return pd.DataFrame(rows)


def write_import(
    path: Path,
    source: PriceSource,
    shape: ModelShape,
    tensor_parallel: int,
    hardware: Hardware,
    command: str,
    quiet: bool = True,
) -> pd.DataFrame:
    """Write the table of `source` and its sidecar; returns the rows. `shape` is the whole model's.

    Unless `quiet` the progress of what takes long is shown.
    """
    rows = make_rows(source)
    notes = list(source.notes())
    if source.kind != "modelled" and (rows["repeats"] == 0).any():
        notes.append(MODELLED)
    if tensor_parallel > 1:
        notes.append(NO_ALL_REDUCE)
    metadata = TableMetadata(
        gpu=hardware.gpu,
        model=shape,
        attention=source.attention,
        dtype=source.dtype,
        tensor_parallel=tensor_parallel,
        page_size=16,
        torch=None,
        cuda=None,
        driver=None,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        repeats=int(rows["repeats"].min()),
        command=command,
        notes=tuple(notes),
        source=source.kind,
    )
    write_table(path, rows, with_attention_model(rows, metadata, quiet))
    return rows


def roofline_of(shape: ModelShape, tensor_parallel: int, hardware: Hardware) -> Roofline:
    """The model of one GPU's shard. Raises InputError where the model does not divide."""
    return Roofline(shape.shard(tensor_parallel, "--tp"), hardware, tensor_parallel)
