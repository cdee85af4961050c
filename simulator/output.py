"""The output folder: every file appears whole or not at all, and nothing of the user's is overwritten unasked."""

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import yaml

from simulator.errors import InputError
from simulator.results import Columns, PolicyResult, Table
from simulator.runlog import narrowed

CSV_ROWS = 1_000_000
"""Iteration logs longer than this are written as Parquet."""

_PLOTS = ("ttft", "itl", "throughput", "timeline", "itl_over_time", "queue", "bubbles", "stages", "request_bubbles")
_RUN_FILES = ("requests.csv", "iterations.csv", "iterations.parquet", "itl_quantiles.csv")


def prepare_folder(folder: Path, labels: Sequence[str], inputs: Sequence[Path], *, force: bool) -> None:
    """Make the output folder. Raises InputError if it holds anything and `force` is not given.

    With `force` the files of an earlier run are removed, so that none of them is mistaken for one of this run, and
    nothing else: a file of the user's that stands where this run would write, or that it reads, is refused.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f'"{folder}" is a file; give a folder', key="--out")
    if folder.is_dir() and any(folder.iterdir()):
        if not force:
            raise InputError(f'folder "{folder}" is not empty; choose another or pass --force', key="--out")
        _make_way(folder, labels, inputs)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f'cannot make folder "{folder}": {error.strerror}', key="--out") from None


def _make_way(folder: Path, labels: Sequence[str], inputs: Sequence[Path]) -> None:
    earlier = _files_of(folder, _earlier_labels(folder))
    ours = _files_of(folder, labels)
    read = {path.resolve() for path in inputs}
    for path in [*earlier, *ours]:
        if path.resolve() in read:
            raise InputError(
                f'"{path}" is an input of this run and would be overwritten; choose another folder', key="--out"
            )
    for path in [*ours, *(folder / label for label in labels)]:
        if path not in earlier and (path.is_file() or path.is_symlink()):
            raise InputError(f'"{path}" is not of an earlier run; move it or choose another folder', key="--out")
    for path in earlier:
        path.unlink(missing_ok=True)
    for run in {path.parent for path in earlier if path.parent != folder}:
        if run.is_dir() and not any(run.iterdir()):
            run.rmdir()


def _earlier_labels(folder: Path) -> list[str] | None:
    """Labels of the run whose `experiment.yaml` lies in `folder`; None if there is none that a run has written."""
    try:
        keys = yaml.safe_load((folder / "experiment.yaml").read_text(encoding="utf-8"))
        return [str(run["label"]) for run in keys["policies"]] if "versions" in keys["provenance"] else None
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError, RecursionError):
        return None


def _files_of(folder: Path, labels: Sequence[str] | None) -> list[Path]:
    if labels is None:
        return []
    names = ["experiment.yaml", "summary.csv", "bubbles.csv", "pools.csv", "report.html"]
    names += [f"{stem}.{kind}" for stem in _PLOTS for kind in ("png", "svg")]
    return [folder / name for name in names] + [folder / label / name for label in labels for name in _RUN_FILES]


def write_run(folder: Path, result: PolicyResult) -> None:
    """`<label>/requests.csv`, `<label>/iterations.csv` (Parquet when long) and `<label>/itl_quantiles.csv`."""
    run = folder / result.label
    run.mkdir(exist_ok=True)
    write_csv(run / "requests.csv", result.requests)
    write_csv(run / "itl_quantiles.csv", result.itl_quantiles)
    if len(result.iterations) > CSV_ROWS:
        _copy(run / "iterations.parquet", result.iterations, "FORMAT parquet, COMPRESSION zstd")
    else:
        write_csv(run / "iterations.csv", result.iterations)


def write_summary(folder: Path, results: Sequence[PolicyResult]) -> None:
    """`summary.csv`, a row a policy, `bubbles.csv`, a row a policy and stage, and where there are any `pools.csv`."""
    write_csv(folder / "bubbles.csv", _below_each_other([result.bubbles for result in results]))
    pools = [result.pools for result in results if result.pools is not None]
    if pools:
        write_csv(folder / "pools.csv", _below_each_other(pools))
    rows = [result.summary for result in results]
    write_csv(folder / "summary.csv", Columns({name: np.array([row[name] for row in rows]) for name in rows[0]}))


def _below_each_other(tables: Sequence[Table]) -> Columns:
    return Columns({name: np.concatenate([table[name] for table in tables]) for name in tables[0].columns})


def write_csv(path: Path, rows: Table) -> None:
    """Comma-separated with a header line; floats in the shortest form that reads back equal, NaN empty."""
    _copy(path, rows, "FORMAT csv, HEADER")


def write_experiment(folder: Path, keys: Mapping[str, Any]) -> None:
    """`experiment.yaml`."""
    with _whole_file(folder / "experiment.yaml") as partial:
        partial.write_text(yaml.safe_dump(dict(keys), sort_keys=False, width=110, allow_unicode=True), encoding="utf-8")


def _copy(path: Path, rows: Table, options: str) -> None:
    values, expressions = {}, []
    for name in rows.columns:
        column, divisor = rows.stored(name)
        values[name] = narrowed(column) if column.dtype.kind == "i" and divisor == 1 else column
        expressions.append(f'{_in_sql(name, column.dtype.kind, divisor)} AS "{name}"')
    with _whole_file(path) as partial, _connection().cursor() as connection:
        connection.register("rows", values)
        quoted = str(partial.absolute()).replace("'", "''")  # DuckDB would expand a ~ or a scheme of its own
        try:
            connection.execute(f"COPY (SELECT {', '.join(expressions)} FROM rows) TO '{quoted}' ({options})")
        except (duckdb.InterruptException, RuntimeError) as error:
            if "interrupt" not in str(error).lower():
                raise
            raise KeyboardInterrupt from error
        except duckdb.IOException as error:  # a full disk, as any other writer reports it
            raise OSError(f"cannot write {path}: {' '.join(str(error).split())}") from None


def _in_sql(name: str, kind: str, divisor: float) -> str:
    """A column as it is written: integers of 64 bits however they are held, NaN as NULL."""
    if divisor != 1:
        return f'"{name}" / {divisor!r}::DOUBLE'
    return {"f": f"nullif(\"{name}\", 'NaN'::DOUBLE)", "i": f'"{name}"::BIGINT'}.get(kind, f'"{name}"')


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    """One for all files: opening a database takes longer than writing a short one.

    With more threads the writer keeps many times as much in memory and needs more CPU time, for little less wall time.
    """
    return duckdb.connect(config={"threads": 1})


@contextmanager
def _whole_file(path: Path) -> Any:
    """A path to write to; it takes the place of `path` only once everything is written."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
