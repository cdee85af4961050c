"""Measured batches on disk: a CSV that grows by a row as each batch is measured, and a YAML that says how.

A killed run leaves whole rows, at worst a last line cut short, which `kept_rows` leaves out.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from profiler.step_timing import StepTiming
from simulator.batch_file import ListedBatch
from simulator.errors import InputError

COLUMNS = (
    "id",
    "tokens",
    "num_prefills",
    "num_decodes",
    "gpu_s",
    "gpu_p10_s",
    "gpu_p90_s",
    "host_s",
    "repeats",
    "sm_mhz",
)
SAME_ON_RESUME = (
    "gpu",
    "model",
    "attention",
    "dtype",
    "tensor_parallel",
    "page_size",
    "launch",
    "torch",
    "driver",
    "batches",
)

Row = tuple[str, ...]


def row_of(batch: ListedBatch, timing: StepTiming, sm_mhz: float) -> Row:
    """A row of the CSV. `sm_mhz`: NaN where nobody tells."""
    gpu = timing.gpu
    times = (f"{us / 1e6:.9f}" for us in (gpu.time_us, gpu.p10_us, gpu.p90_us, timing.host_us))
    clock = "" if sm_mhz != sm_mhz else f"{sm_mhz:.0f}"
    return (*_counts(batch), *times, str(gpu.repeats), clock)


def _counts(batch: ListedBatch) -> Row:
    return batch.id, str(batch.tokens), str(len(batch.prefills)), str(len(batch.decodes))


class RowWriter:
    """The CSV, with `rows` to begin with; each further row is on disk when `write` returns."""

    def __init__(self, path: Path, rows: Sequence[Row]):
        partial = path.with_name(f"{path.name}.partial")
        partial.write_text(_lines([COLUMNS, *rows]), encoding="utf-8", newline="")
        partial.replace(path)
        self._file = path.open("a", encoding="utf-8", newline="")

    def write(self, row: Row) -> None:
        """Append a row."""
        self._file.write(_lines([row]))
        self._file.flush()

    def __enter__(self) -> "RowWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _lines(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def kept_rows(path: Path, made: Mapping[str, Any], batches: Sequence[ListedBatch]) -> list[Row]:
    """The whole rows of an earlier run, none where there is no file; `made` is what the sidecar will say.

    Raises InputError where they were measured on another GPU, model, kernel, software or file of batches.
    """
    if not path.exists():
        return []
    _require_same(path.with_suffix(".yaml"), made)
    try:
        content = path.read_text(encoding="utf-8")
        whole = content[: content.rfind("\n") + 1]
        header, *rows = list(csv.reader(io.StringIO(whole, newline=""), strict=True)) or [[]]
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"--resume cannot read it: {' '.join(str(error).split())}", path=path) from None
    if tuple(header) != COLUMNS:
        raise InputError(f"--resume goes on with a file of columns {','.join(COLUMNS)}", path=path, line=1)
    counts = {batch.id: _counts(batch) for batch in batches}
    for line, row in enumerate(rows, 2):
        if len(row) != len(COLUMNS) or tuple(row[:4]) != counts.pop(row[0], None):
            raise InputError("not a row of these batches; --force starts over", path=path, line=line)
    return [tuple(row) for row in rows]


def _require_same(path: Path, made: Mapping[str, Any]) -> None:
    """InputError where the sidecar is of another measurement."""
    then = read_sidecar(path)
    for key in SAME_ON_RESUME:
        if then.get(key) != made[key]:
            raise InputError(
                f"--resume would mix measurements: {then.get(key)} then, {made[key]} now", path=path, key=key
            )


def read_sidecar(path: Path) -> dict[str, Any]:
    """What the YAML says. Raises InputError."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise InputError(
            f"the sidecar, which says what was measured, is not readable: {' '.join(str(error).split())}", path=path
        ) from None
    return raw if isinstance(raw, dict) else {}


def write_sidecar(path: Path, made: Mapping[str, Any]) -> None:
    """Write the YAML, whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(yaml.safe_dump(dict(made), sort_keys=False, width=110), encoding="utf-8")
    partial.replace(path)
