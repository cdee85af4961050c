"""From planned points to rows: measure in order, keep what is measured, go on where an earlier run stopped.

What is measured so far is a valid table at every moment: `NAME.unfinished.csv` beside the table to be,
rewritten every few seconds and when the sweep is interrupted.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from profiler.clocks import ClockSampler
from profiler.grid import Point
from profiler.layer import Layers
from profiler.operators import BUILDERS, Bench, Operator
from profiler.paged import PagedAttention
from profiler.timing import Timer, Timing
from simulator.cost_table import Cliff, TableMetadata, read_table, write_table
from simulator.errors import InputError
from simulator.power_limit import PowerLimit
from simulator.table_rows import COLUMNS, PLACE_COLUMNS

SAVE_EVERY_S = 5.0
MOST_FAILURES_IN_A_ROW = 3

Row = dict[str, Any]


@dataclass
class Workshop:
    """Times one point at a time, holding the weights of one operator at a time.

    `turns_us` is added to each `elementwise` point; see `profiler.layer`.
    """

    bench: Bench
    make_attention: Callable[[], PagedAttention]
    timer: Timer
    clocks: ClockSampler
    turns_us: float = 0.0
    _name: str = ""
    _operator: Operator | None = None

    def measure(self, point: Point) -> Row:
        """A row of the cost table."""
        start_s = time.monotonic()
        timing = self.timer.time(self._operator_of(point).calls(point))
        if point.operator == "elementwise":
            timing = timing.plus(self.turns_us)
        return row_of(point, timing, self.clocks.since(start_s))

    def compare(self, first: Point, second: Point) -> tuple[Row, Row, float]:
        """A row of each of two points of one operator, timed in turn, and the growth from the first to the second."""
        start_s = time.monotonic()
        operator = self._operator_of(first)
        found = self.timer.compare(operator.calls(first), operator.calls(second))
        mhz = self.clocks.since(start_s)
        return row_of(first, found.first, mhz), row_of(second, found.second, mhz), found.growth

    def _operator_of(self, point: Point) -> Operator:
        if self._operator is None or self._name != point.operator:
            self._operator = None  # frees the weights of the one before
            if self.bench.device == "cuda":
                import torch

                torch.cuda.empty_cache()
            self._operator = self._build(point.operator)
            self._name = point.operator
        return self._operator

    def _build(self, name: str) -> Operator:
        if name == "attention":
            return self.make_attention()
        if name == "whole_layer":
            return Layers(self.bench, self.make_attention())
        return BUILDERS[name](self.bench)


def row_of(point: Point, timing: Timing, sm_mhz: float) -> Row:
    """The point and its time as a row with the columns of the cost table."""
    return {
        **asdict(point),
        "time_us": timing.time_us,
        "p10_us": timing.p10_us,
        "p90_us": timing.p90_us,
        "repeats": timing.repeats,
        "sm_mhz": sm_mhz,
    }


@dataclass
class Measured:
    """What a sweep has so far: rows by point, in the order measured, cliffs, and what was left out and why.

    `left_out` are the points that the budget had no time for; `power_limit` is that of an earlier run.
    """

    rows: dict[Point, Row] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    cliffs: list[Cliff] = field(default_factory=list)
    left_out: list[Point] = field(default_factory=list)
    power_limit: PowerLimit | None = None

    def remarks(self) -> list[str]:
        """The notes, and what the budget had no time for."""
        if not self.left_out:
            return self.notes
        counts = Counter(point.operator for point in self.left_out)
        listed = ", ".join(f"{count} of {operator}" for operator, count in counts.items())
        return [*self.notes, f"stopped by --budget with {len(self.left_out)} points left out: {listed}"]

    def frame(self) -> pd.DataFrame:
        """The rows in the order of the table: by operator as first met, then by place."""
        rows = pd.DataFrame(list(self.rows.values()), columns=list(COLUMNS))
        order = {name: place for place, name in enumerate(dict.fromkeys(rows["operator"]))}
        rows["order"] = rows["operator"].map(order)
        return rows.sort_values(["order", *PLACE_COLUMNS], kind="stable").drop(columns="order").reset_index(drop=True)


def sweep(
    points: Sequence[Point],
    measure: Callable[[Point], Row],
    measured: Measured,
    *,
    report: Callable[[Point, int], None],
    save: Callable[[], None],
    deadline_s: float | None = None,
) -> None:
    """Measure each of `points` that `measured` lacks, until `deadline_s` (`time.monotonic`) is past.

    `report(point, points done)` before each; `save()` every few seconds and at the end, also when
    interrupted. A point that the device has no memory for, or that the kernel refuses, is noted and left out;
    several refusals in a row are raised, since then it is not the point that is wrong.
    """
    todo = [point for point in points if point not in measured.rows]
    saved_s, failures = time.monotonic(), 0
    try:
        for place, point in enumerate(todo):
            if deadline_s is not None and time.monotonic() > deadline_s:
                measured.left_out += todo[place:]
                return
            report(point, len(points) - len(todo) + place)
            try:
                measured.rows[point] = measure(point)
                failures = 0
            except RuntimeError as error:  # torch's out-of-memory error is one, and so is a kernel's refusal
                if isinstance(error.__context__, KeyboardInterrupt):  # it broke off a graph's capture
                    raise error.__context__ from None
                failures += 1
                if failures >= MOST_FAILURES_IN_A_ROW:
                    raise
                measured.notes.append(f"left out {point}: {reason_of(error)}")
            if time.monotonic() - saved_s > SAVE_EVERY_S:
                save()
                saved_s = time.monotonic()
    finally:
        if measured.rows:
            save()


def reason_of(error: RuntimeError) -> str:
    """What the device had against a point, in a few words."""
    text = " ".join(str(error).split())
    return "out of memory" if "out of memory" in text.lower() else text[:200]


def repeat_noise(runs: Sequence[dict[Point, Row]]) -> dict[str, float]:
    """Median and largest relative difference, in percent, of points measured several times in one run."""
    differences = []
    for point in runs[0]:
        times = [run[point]["time_us"] for run in runs if point in run]
        if len(times) > 1:
            differences.append((max(times) - min(times)) / float(np.median(times)) * 100)
    if not differences:
        return {}
    return {
        "repeat_points": float(len(differences)),
        "repeat_median_percent": round(float(np.median(differences)), 3),
        "repeat_max_percent": round(float(max(differences)), 3),
    }


def unfinished_path(out: Path) -> Path:
    """Where an unfinished sweep keeps its rows."""
    return out.with_name(f"{out.stem}.unfinished.csv")


def save_unfinished(out: Path, measured: Measured, metadata: TableMetadata) -> None:
    """Write what there is as a table of its own."""
    notes = (*metadata.notes, *measured.remarks(), f"unfinished: {len(measured.rows)} points")
    write_table(unfinished_path(out), measured.frame(), replace(metadata, notes=notes, cliffs=tuple(measured.cliffs)))


def discard_unfinished(out: Path) -> None:
    """Remove the unfinished table, once the whole one is written or the user starts over."""
    for path in (unfinished_path(out), unfinished_path(out).with_suffix(".yaml")):
        path.unlink(missing_ok=True)


def resume(out: Path, metadata: TableMetadata) -> Measured:
    """The rows and the power limit of the unfinished table, else of the finished one, else none.

    Raises InputError where they were measured on another GPU, model, kernel or software than `metadata`
    names.
    """
    path = next((path for path in (unfinished_path(out), out) if path.is_file()), None)
    if path is None:
        return Measured()
    table = read_table(path)
    for name in ("gpu", "model", "attention", "dtype", "tensor_parallel", "page_size", "torch", "driver"):
        then, now = getattr(table.metadata, name), getattr(metadata, name)
        if then != now:
            raise InputError(f"--resume would mix measurements: {then} then, {now} now", path=path, key=name)
    records = table.frame().to_dict("records")
    rows = {_point_of(row): {str(key): value for key, value in row.items()} for row in records}
    return Measured(rows, cliffs=list(table.metadata.cliffs), power_limit=table.metadata.power_limit)


def _point_of(row: dict[Any, Any]) -> Point:
    return Point(str(row["operator"]), **{name: int(row[name]) for name in PLACE_COLUMNS})
