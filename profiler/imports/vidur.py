"""Profiles in the format of the Vidur simulator (github.com/microsoft/vidur, `data/profiling/compute`).

`mlp.csv` has a row a measured token count with times in milliseconds, `time_stats.<op>.{min,max,mean,median,std}`, for
`emb`, `input_layernorm`, `attn_pre_proj` (QKV), `attn_rope`, `attn_post_proj`, `post_attention_layernorm`,
`mlp_up_proj`, `mlp_act`, `mlp_down_proj` and `add`; `n_embd`, `n_head`, `n_kv_head`, `n_expanded_embd`, `use_gated_mlp`
and `num_tensor_parallel_workers` say of which model. `attention.csv` has `time_stats.attn_prefill` or
`time_stats.attn_decode`, by `is_prefill`, `batch_size`, `prefill_chunk_size` and `kv_cache_size`, the entries before
the new tokens; in newer files also `time_stats.attn_kv_cache_save`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from profiler.grid import Point
from profiler.imports.roofline import Roofline
from profiler.imports.table import Price, attention_points, other_points
from simulator.cost_table import Attention, Source
from simulator.errors import InputError, nearest
from simulator.models import ModelShape

PARTS = {
    "qkv_proj": ("attn_pre_proj",),
    "o_proj": ("attn_post_proj",),
    "mlp": ("mlp_up_proj", "mlp_act", "mlp_down_proj"),
    "elementwise": ("input_layernorm", "attn_rope", "post_attention_layernorm", "add", "add"),
    "embedding": ("emb",),
}
OPTIONAL = ("post_attention_layernorm", "attn_rope", "add")
SHAPE_COLUMNS = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_q_head": "num_attention_heads",
    "n_kv_head": "num_key_value_heads",
    "n_expanded_embd": "intermediate_size",
}
TENSOR_PARALLEL = "num_tensor_parallel_workers"
STATISTICS = ("median", "min", "max")

Times = dict[Point, Price]


@dataclass(frozen=True)
class Profiles:
    """Measured prices by point, and the attention kernel that the files name."""

    times: Times
    attention: Attention | None


@dataclass(frozen=True)
class VidurSource:
    """Prices from Vidur's profiles; what they do not hold is the roofline model's."""

    roofline: Roofline
    profiles: Profiles
    kind: Source = "imported"
    dtype: str = "float16"

    @property
    def attention(self) -> Attention:
        """The kernel that the files name, or the model's."""
        return self.profiles.attention or Attention(self.roofline.hardware.constants.attention.kernel, "modelled")

    def points(self) -> Iterator[Point]:
        """All that were measured, then what a table needs besides."""
        yield from self.profiles.times
        measured = {point.operator for point in self.profiles.times}
        for point in other_points():
            if point.operator not in measured:
                yield point
        for point in attention_points(self.roofline):
            alone = not point.prefills or not point.decodes
            if not (self.profiles.attention and alone):
                yield point

    def price(self, point: Point) -> Price:
        """As measured, or the model's."""
        measured = self.profiles.times.get(point)
        return measured or Price.modelled(self.roofline.time_us(point))

    def notes(self) -> Iterator[str]:
        """What was taken from where."""
        yield "imported from profiles in Vidur's format; p10 and p90 are the least and the longest of its repeats"
        yield "elementwise is the sum of norms, rope and two residual additions, unfused as Vidur runs them"
        if self.profiles.attention is None:
            yield "no attention.csv: attention is a roofline model"
        else:
            yield "attention of chunks beside decodes is a roofline model"


def read_vidur(path: Path, shape: ModelShape, tensor_parallel: int) -> Profiles:
    """The profiles of that model in the folder (or beside the mlp.csv) at `path`. Raises InputError."""
    folder = path if path.is_dir() else path.parent
    mlp, attention = folder / "mlp.csv", folder / "attention.csv"
    frame = _of_model(_read(mlp), mlp, shape, tensor_parallel)
    times: Times = {}
    for operator, parts in PARTS.items():
        times.update(_token_times(frame, mlp, operator, parts))
    kernel = None
    if attention.is_file():
        rows = _of_model(_read(attention), attention, shape, tensor_parallel)
        times.update(_attention_times(rows, attention))
        kernel = Attention(_backend(rows), "as profiled by Vidur")
    return Profiles(times, kernel)


def _read(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise InputError("no such file; a folder in Vidur's format holds mlp.csv", path=path)
    try:
        return pd.read_csv(path)
    except (ValueError, OSError) as error:
        raise InputError(f"not readable: {' '.join(str(error).split())}", path=path) from None


def _of_model(frame: pd.DataFrame, path: Path, shape: ModelShape, tensor_parallel: int) -> pd.DataFrame:
    """The rows of that degree; InputError where the file is of another model or has none."""
    for column, key in SHAPE_COLUMNS.items():
        if column in frame and not (frame[column] == getattr(shape, key)).all():
            found, wanted = frame[column].iloc[0], getattr(shape, key)
            raise InputError(f"{found} where {shape.name} has {wanted}: another model's profile", path=path, key=column)
    degrees = _column(frame, TENSOR_PARALLEL, path)
    rows = frame[degrees == tensor_parallel]
    if rows.empty:
        held = ", ".join(str(degree) for degree in sorted(degrees.unique()))
        raise InputError(f"no rows of {tensor_parallel}; held: {held}", path=path, key=TENSOR_PARALLEL)
    return rows


def _column(frame: pd.DataFrame, column: str, path: Path) -> pd.Series:
    if column not in frame:
        hint = nearest(column, map(str, frame.columns), "columns")
        raise InputError(f"column missing; {hint}", path=path, key=column)
    return frame[column]


def _statistic(frame: pd.DataFrame, part: str, statistic: str, path: Path) -> pd.Series:
    """A statistic of an operation in microseconds; nothing for the operations that some models lack."""
    column = f"time_stats.{part}.{statistic}"
    if part in OPTIONAL and column not in frame:
        return pd.Series(0.0, index=frame.index)
    return pd.to_numeric(_column(frame, column, path), errors="coerce") * 1000


def _token_times(frame: pd.DataFrame, path: Path, operator: str, parts: tuple[str, ...]) -> Times:
    places = [Point(operator, tokens=tokens) for tokens in _counts(frame, "num_tokens", path)]
    return _times(places, frame, path, parts)


def _attention_times(frame: pd.DataFrame, path: Path) -> Times:
    prefilling = _column(frame, "is_prefill", path).astype(str).str.lower() == "true"
    prefill, decode = frame[prefilling], frame[~prefilling]
    return {
        **_times(_chunks(prefill, path), prefill, path, ("attn_prefill",)),
        **_times(_decodes(decode, path), decode, path, ("attn_decode",)),
    }


def _times(places: list[Point], frame: pd.DataFrame, path: Path, parts: tuple[str, ...]) -> Times:
    """The sum of the parts at each place that was timed; of repeated rows the median."""
    if not places:
        return {}
    sums = {name: sum(_statistic(frame, part, name, path) for part in parts) for name in STATISTICS}
    rows = pd.DataFrame(sums).reset_index(drop=True)
    timed: dict[Point, list[int]] = {}
    for row, place in enumerate(places):
        if rows["median"][row] > 0:  # neither blank nor below the resolution of a microsecond
            timed.setdefault(place, []).append(row)
    medians = {place: rows.loc[held].median() for place, held in timed.items()}
    return {place: Price(row["median"], row["min"], row["max"], 1) for place, row in medians.items()}


def _counts(frame: pd.DataFrame, column: str, path: Path) -> list[int]:
    """A column of counts. Raises InputError naming the line that holds none."""
    fields = _column(frame, column, path)
    numbers = pd.to_numeric(fields, errors="coerce").tolist()
    for row, field, number in zip(frame.index.tolist(), fields.tolist(), numbers, strict=True):
        if not number >= 0 or number % 1:
            raise InputError(f"not a count: {field!r}", path=path, line=row + 2, key=column)
    return [int(number) for number in numbers]


def _chunks(frame: pd.DataFrame, path: Path) -> list[Point]:
    columns = [_counts(frame, name, path) for name in ("batch_size", "prefill_chunk_size", "kv_cache_size")]
    places = zip(*columns, strict=True)
    return [Point("attention", prefills=batch, prefill_tokens=new, prefill_context=old) for batch, new, old in places]


def _decodes(frame: pd.DataFrame, path: Path) -> list[Point]:
    """A decode also attends to its own token."""
    places = zip(_counts(frame, "batch_size", path), _counts(frame, "kv_cache_size", path), strict=True)
    return [Point("attention", decodes=batch, decode_context=before + 1) for batch, before in places]


def _backend(frame: pd.DataFrame) -> str:
    """`AttentionBackend.FLASH_ATTENTION` as `flash-attention`."""
    if "attention_backend" not in frame:
        return "unknown"
    return str(frame["attention_backend"].iloc[0]).rpartition(".")[2].lower().replace("_", "-")
