"""The cost table on disk: a CSV of measured points and a sidecar YAML that says where they come from.

One row is one measured point of one operator. Times are of one call of the operator in one layer, in microseconds
(`embedding` and `lm_head` run once a step, all others once in each layer); `simulator.table_rows` has the columns.

Above a `tensor_parallel` of 1 the times are those of one rank's shapes (`ModelShape.shard`), while `model` is the
whole. What ranks exchange is not in the table: two all-reduces of (tokens, hidden) a layer and one after the embedding,
and the all-gather of logits, of which `lm_head` samples.
"""

import csv
import hashlib
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from annotated_types import Ge, Gt
from numpy.typing import NDArray

from simulator.attention.kernel_times import KernelTimes
from simulator.bundled import bundled_files
from simulator.errors import InputError, nearest
from simulator.models import ModelShape
from simulator.power_limit import PowerLimit
from simulator.table_rows import COLUMNS, OPERATORS, PLACE_COLUMNS, checked_rows
from simulator.unpriceable import refuse_unpriceable
from simulator.validation import parse

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Gpu:
    """The GPU that was measured; memory and L2 in bytes."""

    name: str
    memory_bytes: Annotated[int, Ge(1)]
    sm_count: Annotated[int, Ge(1)]
    compute_capability: str
    l2_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention kernel that was timed, e.g. backend `flash-attn`, version `2.8.3`."""

    backend: str
    version: str


Source = Literal["measured", "imported", "modelled"]
"""Measured by `profile-gpu`; imported from measurements of others; or computed from a datasheet by a model."""


@dataclass(frozen=True, slots=True)
class Cliff:
    """The step of an operator's time from `tokens` to one more (sequences for `lm_head`).

    `growth` is relative to the time at `tokens`, 0.14 for 14 % more, `low` to `high` its 95 % interval over `rounds`
    comparisons of the two in turn. With 0 rounds the interval is the spread of two separate measurements.
    """

    operator: str
    tokens: Annotated[int, Ge(1)]
    growth: Annotated[float, Gt(-1)]
    low: float
    high: float
    rounds: Annotated[int, Ge(0)] = 0

    @property
    def error(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2


@dataclass(frozen=True, slots=True)
class TableMetadata:
    """The sidecar: what was measured, with what, when and how.

    `repeats` is the least of the rows; it is 0, and software versions are absent, where a row was not measured.
    """

    gpu: Gpu
    model: ModelShape
    attention: Attention
    dtype: str
    tensor_parallel: Annotated[int, Ge(1)]
    page_size: Annotated[int, Ge(1)]
    torch: str | None
    cuda: str | None
    driver: str | None
    date: str
    repeats: Annotated[int, Ge(0)]
    command: str
    clocks_mhz: dict[str, float | None] = field(default_factory=dict)
    noise: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: Annotated[float, Gt(0)] | None = None
    power_w: dict[str, float | None] = field(default_factory=dict)
    throttled: dict[str, float] = field(default_factory=dict)
    cliffs: tuple[Cliff, ...] = ()
    attention_model: KernelTimes | None = None
    """Constants of the attention kernel's replay, fitted to the rows."""
    power_limit: PowerLimit | None = None
    """What the GPU's power limit does to steps without rests between them."""
    source: Source = "measured"

    @property
    def origin(self) -> str | None:
        """A sentence for those who read results where the costs were not measured here; None where they were."""
        if self.source == "measured":
            return None
        how = "come from a model of its datasheet" if self.source == "modelled" else "are imported from others' figures"
        return f"costs of {self.model.name} on {self.gpu.name} {how}; the table's YAML says more"


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a long sidecar takes the other a quarter of a second


class _OneLine(dict[str, Any]):
    """A mapping that takes one line of a YAML."""


class _Dumper(yaml.SafeDumper):
    """Writes `_OneLine` so."""


_Dumper.add_representer(
    _OneLine, lambda dumper, value: dumper.represent_mapping("tag:yaml.org,2002:map", value, flow_style=True)
)


def write_table(path: Path, rows: "pd.DataFrame", metadata: TableMetadata) -> None:
    """Write `rows` (columns COLUMNS) to `path` (.csv) and `metadata` beside it, each whole or not at all."""
    rows = rows.reindex(columns=list(COLUMNS))
    for column in (*PLACE_COLUMNS, "repeats"):
        rows[column] = rows[column].fillna(0).astype(int)
    _replace(path, rows.to_csv(index=False, float_format="%.4f", lineterminator="\n"))
    write_metadata(path.with_suffix(".yaml"), metadata)


def write_metadata(path: Path, metadata: TableMetadata) -> None:
    """Write the sidecar of a table, whole or not at all."""
    raw = {"schema": SCHEMA, **asdict(metadata)}
    raw["notes"] = list(metadata.notes)
    raw["cliffs"] = [_OneLine(_rounded(asdict(cliff))) for cliff in metadata.cliffs]
    if metadata.power_limit is not None:
        errors = metadata.power_limit.error
        raw["power_limit"]["error"] = {cycle: _OneLine(of_cycle) for cycle, of_cycle in errors.items()}
    _replace(path, yaml.dump(raw, Dumper=_Dumper, sort_keys=False, width=110))


def _rounded(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {key: round(value, 5) if isinstance(value, float) else value for key, value in raw.items()}


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


@dataclass(frozen=True)
class CostTable:
    """A table in memory: `rows` (arrays by name, those of COLUMNS), where it came from, and the SHA-256 of its CSV."""

    name: str
    rows: Mapping[str, NDArray[Any]]
    metadata: TableMetadata
    sha256: str

    def frame(self) -> "pd.DataFrame":
        """The rows as a data frame."""
        import pandas as pd

        return pd.DataFrame(dict(self.rows))


def read_table(path: Path, name: str | None = None) -> CostTable:
    """Read the CSV at `path` and the YAML beside it.

    Raises InputError naming file, line and column where a row is not a measurement, and where the sidecar is missing
    or describes a model whose costs these are not (mixture of experts, quantized).
    """
    metadata = read_metadata(path.with_suffix(".yaml"))
    if not path.is_file():
        raise InputError("no such file", path=path)
    content = path.read_bytes()
    try:
        records = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True))
    except (ValueError, csv.Error) as error:
        raise InputError(f"not a CSV table: {' '.join(str(error).split())}", path=path) from None
    numbered = [(line, fields) for line, fields in enumerate(records, 1) if fields]
    if not numbered:
        raise InputError("the file is empty", path=path)
    rows = checked_rows(numbered[0][1], numbered[1:], path)
    return CostTable(name or str(path), rows, metadata, hashlib.sha256(content).hexdigest())


def read_metadata(path: Path) -> TableMetadata:
    """The sidecar of a table. Raises InputError."""
    if not path.is_file():
        raise InputError("the sidecar of the cost table is missing; it says which GPU and model were timed", path=path)
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), _LOADER)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise InputError(f"not readable: {' '.join(str(error).split())}", path=path) from None
    if not isinstance(raw, dict):
        raise InputError("should be a mapping", path=path)
    if raw.pop("schema", None) != SCHEMA:
        raise InputError(f"this version reads cost tables of schema {SCHEMA}", path=path, key="schema")
    if isinstance(raw.get("model"), dict):
        refuse_unpriceable(raw["model"], path)
    made = parse(TableMetadata, raw, path=path)
    _require_operators(made.cliffs, path)
    errors = made.attention_model.error if made.attention_model else {}
    for key, figures in (("noise", made.noise), ("attention_model.error", errors)):
        for name, value in figures.items():
            if not 0 <= value < float("inf"):
                raise InputError(f"should be a number from 0 on, not {value}", path=path, key=f"{key}.{name}")
    return made


def _require_operators(cliffs: tuple[Cliff, ...], path: Path) -> None:
    for place, cliff in enumerate(cliffs):
        if cliff.operator not in OPERATORS:
            hint = nearest(cliff.operator, OPERATORS, "operators")
            raise InputError(f'unknown operator "{cliff.operator}"; {hint}', path=path, key=f"cliffs[{place}].operator")


def load_gpu(name: str) -> Gpu:
    """Facts of a GPU from `profiler/gpus/NAME.yaml`; its `datasheet` is read by `profiler.imports`."""
    path = next(path for path in bundled_files("profiler", "gpus", "*.yaml") if path.stem == name)
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    return parse(Gpu, {key: value for key, value in raw.items() if key != "datasheet"}, path=path)
