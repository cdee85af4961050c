"""Cost tables by name: those that ship with the project, the tensor-parallel degree in a name, and paths.

A table that ships is `GPU/MODEL`; `@` and the attention kernel select another kernel's, `@tp` and their number the
table of one of several tensor-parallel ranks: `h200/llama-3.1-8b@fa2@tp2`.
"""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from simulator.bundled import bundled_files, resolve
from simulator.cost_table import CostTable, read_metadata, read_table
from simulator.errors import InputError, nearest

SHORT_BACKENDS = {"flash-attn": "fa2", "vllm-flash-attn": "fa3", "torch": "torch"}


def table_names() -> dict[str, Path]:
    """The CSV of every name; a file without a kernel in its name has a second name, with it."""
    named: dict[str, Path] = {}
    for path in bundled_files("simulator", "tables", "*/*.csv"):
        named[f"{path.parent.name}/{path.stem}"] = path
        stem, degree = split_degree(path.stem)
        if "@" not in stem:
            backend = _bundled_backend(path.with_suffix(".yaml"))
            kernel = SHORT_BACKENDS.get(backend, backend)
            named[f"{path.parent.name}/{stem}@{kernel}{'' if degree is None else f'@tp{degree}'}"] = path
    return named


@cache
def _bundled_backend(sidecar: Path) -> str:
    """The attention backend of a bundled table; names are asked for again and again, reading them takes 0.1 s."""
    return read_metadata(sidecar).attention.backend


def split_degree(name: str) -> tuple[str, int | None]:
    """`h200/llama-3.1-8b@fa2@tp2` as (`h200/llama-3.1-8b@fa2`, 2); None where no degree is named."""
    stem, marked, degree = name.rpartition("@tp")
    return (stem, int(degree)) if marked and re.fullmatch("[1-9][0-9]{0,3}", degree) else (name, None)


def find_table(name_or_path: str, beside: Path | None = None, tensor_parallel: int | None = None) -> CostTable:
    """The bundled table of that name, or the one at that path.

    `tensor_parallel` is the degree of the experiment: of a name without `@tpN` it chooses the table, and any other
    has to be of that degree; None takes a table as it is named. Raises InputError with the nearest name, with the
    degrees that were measured, or with the degree of a table that does not fit.
    """
    named = table_names()
    name = _with_degree(name_or_path, tensor_parallel, named)
    if name in named:
        return read_table(named[name], name)
    path = resolve(name_or_path, beside)
    if path is not None and path.is_file():
        table = read_table(path if path.suffix == ".csv" else path.with_suffix(".csv"))
        _require_degree(table.name, table.metadata.tensor_parallel, tensor_parallel)
        return table
    hint = nearest(name_or_path, named, "tables")
    raise InputError(f'no cost table "{name_or_path}"; {hint}, or the path of a CSV', key="costs")


def _with_degree(name: str, tensor_parallel: int | None, named: Iterable[str]) -> str:
    """The name of the table of that degree, if `name` is that of a table at any."""
    stem, degree = split_degree(name)
    measured = {split_degree(known)[1] or 1: known for known in named if split_degree(known)[0] == stem}
    if not measured:
        return name
    wanted = degree or tensor_parallel or 1
    if wanted not in measured:
        raise InputError(
            f"no cost table {stem} of a tensor-parallel degree of {wanted}; there is one of"
            f" {', '.join(map(str, sorted(measured)))}, and `profile-gpu --tp {wanted}` measures another",
            key="costs",
        )
    _require_degree(measured[wanted], wanted, tensor_parallel)
    return measured[wanted]


def _require_degree(name: str, degree: int, wanted: int | None) -> None:
    if wanted not in (None, degree):
        raise InputError(
            f"cost table {name} was measured for a tensor-parallel degree of {degree}, parallel.tensor is {wanted}",
            key="costs",
        )
