"""The tables of a validation: errors of figures, of step times, and the parts of the error of the mean ITL."""

from collections.abc import Iterator, Sequence
from math import isnan
from pathlib import Path
from typing import Any

from simulator.compare.figures import Figure
from simulator.compare.limits import METRICS, limit_of, within
from simulator.compare.output import write_csv
from simulator.compare.validated_run import ValidatedRun

COLUMNS = {
    "errors.csv": ("run", "metric", "measured", "simulated", "error_percent", "limit_percent", "within"),
    "held_out.csv": ("run", "metric", "measured", "simulated", "error_percent", "limit_percent", "within"),
    "steps.csv": (
        *("run", "mode", "part", "kind", "steps"),
        *("median_percent", "median_absolute_percent", "p95_absolute_percent"),
    ),
    "parts.csv": ("run", "part", "seconds", "percent_of_measured"),
    "overlap.csv": ("run", "kind", "figure", "measured", "simulated", "error_percent"),
}


def figures(run: ValidatedRun) -> Iterator[Figure]:
    """Those of METRICS that the comparison has, in their order."""
    by_name = {figure.name: figure for figure in run.comparison.figures}
    yield from (by_name[name] for name in METRICS if name in by_name)


def write_tables(runs: Sequence[ValidatedRun], folder: Path, held_out: Sequence[ValidatedRun] = ()) -> None:
    """All of COLUMNS; `held_out` are runs with a profile fitted to others.

    Digits are few enough to be the same on every machine.
    """
    for name, rows in (
        ("errors.csv", _errors(runs)),
        ("held_out.csv", _errors(held_out)),
        ("steps.csv", _steps(runs)),
        ("parts.csv", _parts(runs)),
        ("overlap.csv", _overlaps(runs)),
    ):
        write_csv(folder / name, COLUMNS[name], rows)


def _errors(runs: Sequence[ValidatedRun]) -> Iterator[tuple[Any, ...]]:
    for run in runs:
        for figure in figures(run):
            judged = {None: "", True: "yes", False: "no"}[within(figure, run.gpus)]
            error = f"{figure.error_percent:.2f}"
            limit = limit_of(figure.name, run.gpus)
            values = (f"{figure.reference:.6g}", f"{figure.other:.6g}", error, "" if limit is None else limit)
            yield run.name, figure.name, *values, judged


def _steps(runs: Sequence[ValidatedRun]) -> Iterator[tuple[Any, ...]]:
    for run in runs:
        for row in run.steps:
            errors = row.errors
            sizes = (f"{value:.2f}" for value in (errors.bias, errors.median, errors.p95))
            yield run.name, run.mode, row.part, errors.kind.removeprefix("- "), errors.steps, *sizes


def _parts(runs: Sequence[ValidatedRun]) -> Iterator[tuple[Any, ...]]:
    for run in runs:
        for part in run.comparison.parts:
            yield run.name, part.name, f"{part.seconds:.3e}", f"{part.percent:.2f}"


def _overlaps(runs: Sequence[ValidatedRun]) -> Iterator[tuple[Any, ...]]:
    for run in runs:
        for name, kind, measured, simulated in () if run.overlap is None else run.overlap.figures():
            error = 100 * (simulated / measured - 1) if measured > 0 else float("nan")
            cells = ["" if isnan(value) else f"{value:.6g}" for value in (measured, simulated)]
            yield run.name, kind, name, *cells, "" if isnan(error) else f"{error:.2f}"
