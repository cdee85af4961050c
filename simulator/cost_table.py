"""The cost table on disk: a CSV of measured points and a sidecar YAML that says where they come from.

One row is one measured point of one operator. Times are of one call of the operator in one layer, in microseconds
(`embedding` and `lm_head` run once a step, all others once in each layer).

| operator | columns that place the point |
| --- | --- |
| `qkv_proj`, `o_proj`, `mlp`, `elementwise`, `embedding` | `tokens` of the step |
| `lm_head` (final norm, LM head, greedy sampling) | `sequences` |
| `attention` | `prefills` sequences of `prefill_tokens` new tokens each after `prefill_context` cached ones, and `decodes` sequences that each attend to `decode_context` entries, their own new token included; `decode_longest` the longest of them where they differ (`simulator.attention.contexts`), `decode_context` being their mean |
| `whole_layer` | `tokens` of one prompt: a whole layer, in a run as long as the step of all layers |

`mlp` is the whole gated (or plain) MLP. `elementwise` is everything else of a layer, fused as engines fuse it: norms
with their residual adds, rotary embedding and the KV-cache write. Learned positions belong to `embedding`.

Above a `tensor_parallel` of 1 the times are those of one rank's shapes (`ModelShape.shard`), while `model` is the whole.
What ranks exchange is not in the table: two all-reduces of (tokens, hidden) a layer and one after the embedding, and
the all-gather of logits, of which `lm_head` samples.
"""

import csv
import hashlib
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import yaml
from annotated_types import Ge, Gt
from numpy.typing import NDArray

from simulator.attention.kernel_times import KernelTimes
from simulator.bundled import bundled_files
from simulator.errors import InputError, nearest
from simulator.models import ModelShape
from simulator.power_limit import PowerLimit
from simulator.unpriceable import refuse_unpriceable
from simulator.validation import parse

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
TOKEN_OPERATORS = ("qkv_proj", "o_proj", "mlp", "elementwise", "embedding")
OPERATORS = (*TOKEN_OPERATORS, "lm_head", "attention", "whole_layer")
PLACE_COLUMNS = (
    "tokens",
    "sequences",
    "prefills",
    "prefill_tokens",
    "prefill_context",
    "decodes",
    "decode_context",
    "decode_longest",
)
TIME_COLUMNS = ("time_us", "p10_us", "p90_us")
COLUMNS = ("operator", *PLACE_COLUMNS, *TIME_COLUMNS, "repeats", "sm_mhz")
OPTIONAL_COLUMNS = ("decode_longest", "repeats", "sm_mhz")


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
    """Write `rows` (columns COLUMNS) to `path` (.csv) and `metadata` beside it (.yaml), each whole or not at all."""
    rows = rows.reindex(columns=list(COLUMNS))
    for column in (*PLACE_COLUMNS, "repeats"):
        rows[column] = rows[column].fillna(0).astype(int)
    raw = {"schema": SCHEMA, **asdict(metadata)}
    raw["notes"] = list(metadata.notes)
    raw["cliffs"] = [_OneLine(_rounded(asdict(cliff))) for cliff in metadata.cliffs]
    _replace(path, rows.to_csv(index=False, float_format="%.4f", lineterminator="\n"))
    _replace(path.with_suffix(".yaml"), yaml.dump(raw, Dumper=_Dumper, sort_keys=False, width=110))


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
    rows = _checked_rows(numbered[0][1], numbered[1:], path)
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
    cliffs = _parse_cliffs(raw.pop("cliffs", None) or [], path)
    made = replace(parse(TableMetadata, raw, path=path), cliffs=cliffs)
    errors = made.attention_model.error if made.attention_model else {}
    for key, figures in (("noise", made.noise), ("attention_model.error", errors)):
        for name, value in figures.items():
            if not 0 <= value < float("inf"):
                raise InputError(f"should be a number from 0 on, not {value}", path=path, key=f"{key}.{name}")
    return made


def _parse_cliffs(raw: Any, path: Path) -> tuple[Cliff, ...]:
    if not (isinstance(raw, list) and all(isinstance(entry, dict) for entry in raw)):
        raise InputError("should be a list of mappings", path=path, key="cliffs")
    cliffs = tuple(parse(Cliff, entry, path=path, prefix=f"cliffs[{place}].") for place, entry in enumerate(raw))
    for place, cliff in enumerate(cliffs):
        if cliff.operator not in OPERATORS:
            hint = nearest(cliff.operator, OPERATORS, "operators")
            raise InputError(f'unknown operator "{cliff.operator}"; {hint}', path=path, key=f"cliffs[{place}].operator")
    return cliffs


def _checked_rows(
    header: Sequence[str], numbered: Sequence[tuple[int, Sequence[str]]], path: Path
) -> dict[str, NDArray[Any]]:
    """The columns; InputError where one is missing or twice there, or a field is not what it should be.

    `numbered` are the rows with their lines.
    """
    for column in COLUMNS:
        if column not in header and column not in OPTIONAL_COLUMNS:
            raise InputError(f"column missing; {nearest(column, header, 'columns')}", path=path, key=column)
        if header.count(column) > 1:
            raise InputError("the column is there twice; remove one", path=path, key=column)
    if not numbered:
        raise InputError("no rows", path=path)
    for line, fields in numbered:
        if len(fields) != len(header):
            raise InputError(f"{len(fields)} fields where the header has {len(header)}", path=path, line=line)
    lines, texts = zip(*numbered, strict=True)
    fields_of = dict(zip(header, zip(*texts, strict=True), strict=True))
    for line, operator in zip(lines, fields_of["operator"], strict=True):
        if operator not in OPERATORS:
            hint = nearest(operator, OPERATORS, "operators")
            shown = " ".join(operator.split())[:60]
            raise InputError(f'unknown operator "{shown}"; {hint}', path=path, line=line, key="operator")
    rows: dict[str, NDArray[Any]] = {"operator": np.array(fields_of["operator"])}
    for column in (*PLACE_COLUMNS, *TIME_COLUMNS):
        if column not in header:
            rows[column] = np.zeros(len(numbered), dtype=np.int64)
            continue
        numbers = _measures(zip(lines, fields_of[column], strict=True), column, path)
        rows[column] = np.array(numbers, dtype=np.int64 if column in PLACE_COLUMNS else np.float64)
    _require_work(rows, lines, path)
    for column in ("repeats", "sm_mhz"):
        if column in header:
            rows[column] = np.array([_number(field) for field in fields_of[column]])
    return rows


def _require_work(rows: Mapping[str, NDArray[Any]], lines: Sequence[int], path: Path) -> None:
    """InputError at the first row that measured nothing: no tokens, or sequences without any."""
    operator, attention = rows["operator"], rows["operator"] == "attention"
    of_tokens = np.isin(operator, (*TOKEN_OPERATORS, "whole_layer"))
    for wrong, column in (
        (of_tokens & (rows["tokens"] == 0), "tokens"),
        ((operator == "lm_head") & (rows["sequences"] == 0), "sequences"),
        (attention & (rows["prefills"] + rows["decodes"] == 0), "prefills"),
        (attention & (rows["prefills"] > 0) & (rows["prefill_tokens"] == 0), "prefill_tokens"),
        (attention & (rows["decodes"] > 0) & (rows["decode_context"] == 0), "decode_context"),
    ):
        if wrong.any():
            line = lines[int(np.flatnonzero(wrong)[0])]
            raise InputError("should be above 0 in this row", path=path, line=line, key=column)


_LARGEST_PLACE = 10**8
_LONGEST_US = 1e12
_PLAIN_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")


def _number(field: str) -> float:
    """The number in a field, NaN if it is none; unlike float() it takes no underscores and no foreign digits."""
    return float(field) if _PLAIN_NUMBER.fullmatch(field) else float("nan")


def _measures(fields: Iterable[tuple[int, str]], column: str, path: Path) -> list[float]:
    """The numbers of a column: finite, not negative, places whole, and times above 0."""
    numbers, place, known = [], column in PLACE_COLUMNS, dict[str, float]()
    for line, text in fields:
        if text in known:  # places are few and come again in row after row
            numbers.append(known[text])
            continue
        number = _number(text)
        fits = number <= _LARGEST_PLACE and number.is_integer() if place else number <= _LONGEST_US
        if not fits or number < 0 or (number == 0 and column == "time_us"):
            raise InputError(f"not a measurement: {text!r}", path=path, line=line, key=column)
        known[text] = number
        numbers.append(number)
    return numbers


def load_gpu(name: str) -> Gpu:
    """Facts of a GPU from `profiler/gpus/NAME.yaml`; its `datasheet` is read by `profiler.imports`."""
    path = next(path for path in bundled_files("profiler", "gpus", "*.yaml") if path.stem == name)
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    return parse(Gpu, {key: value for key, value in raw.items() if key != "datasheet"}, path=path)
