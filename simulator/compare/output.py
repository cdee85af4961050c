"""The files of a comparison; nothing of the user's is overwritten unasked."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simulator.compare.comparison import Comparison
from simulator.compare.figures import DEFINITIONS
from simulator.compare.steps import KINDS, PricedSteps, worst
from simulator.compare.wording import shown_chunks
from simulator.errors import InputError

PLOTS = tuple(f"{stem}.{kind}" for stem in ("quantiles", "requests", "steps") for kind in ("png", "svg"))
OURS = ("errors.csv", "compare.md", "request_errors.csv", "steps.csv", "steps_worst.csv", "composition.csv", *PLOTS)
STEP_COLUMNS = (
    *("step", "line", "time_s", "kind", "decodes", "decode_context", "prefills", "prefill_tokens", "tokens"),
    *("chunks", "measured_s", "priced_s", "error_percent"),
)


ERROR_COLUMNS = ("metric", "reference", "other", "error_percent", "definition", "notes")


def _compared(folder: Path) -> bool:
    """Whether a comparison was begun in `folder`: by the header of the table that is written first."""
    try:
        with open(folder / "errors.csv", encoding="utf-8") as file:
            return file.readline().strip() == ",".join(ERROR_COLUMNS)
    except (OSError, UnicodeDecodeError):
        return False


def prepare_folder(folder: Path, *, force: bool) -> None:
    """Make the folder, with `force` over the files of an earlier comparison, which are removed. InputError for a file,
    for a folder that holds anything, and with `force` for one that holds something else than a comparison."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f'"{folder}" is a file; give a folder', key="--out")
    if folder.is_dir() and any(folder.iterdir()):
        if not force:
            raise InputError(f'folder "{folder}" is not empty; choose another or pass --force', key="--out")
        if not _compared(folder):
            raise InputError(f'folder "{folder}" holds no earlier comparison; choose another', key="--out")
        for name in OURS:
            (folder / name).unlink(missing_ok=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f'cannot make folder "{folder}": {error.strerror}', key="--out") from None


def write_tables(comparison: Comparison, folder: Path, number_worst: int) -> None:
    """`errors.csv`, and as far as there is something to put in them the other tables."""
    rows = [
        (figure.name, figure.reference, figure.other, figure.error_percent, DEFINITIONS[figure.group], figure.notes)
        for figure in comparison.figures
    ]
    write_csv(folder / "errors.csv", ERROR_COLUMNS, rows)
    if comparison.drift:
        drift = [(row.name, row.reference, row.other, row.error_percent) for row in comparison.drift]
        write_csv(folder / "composition.csv", ("metric", "reference", "other", "difference_percent"), drift)
    if comparison.matched is not None:
        _write_requests(comparison, folder / "request_errors.csv")
    if comparison.steps is not None:
        steps = comparison.steps
        write_csv(folder / "steps.csv", STEP_COLUMNS, _step_rows(steps, range(len(steps.rows))))
        write_csv(folder / "steps_worst.csv", STEP_COLUMNS, _step_rows(steps, worst(steps, number_worst).tolist()))


def _write_requests(comparison: Comparison, path: Path) -> None:
    pairs = comparison.matched
    assert pairs is not None
    names, columns = ["arrival_s", "prompt_tokens", "output_tokens"], []
    columns = [pairs.reference.arrival_s, pairs.reference.prompt_tokens, pairs.reference.output_tokens]
    for latency in ("ttft", "tpot", "e2e"):
        names += [f"reference_{latency}_s", f"other_{latency}_s", f"{latency}_error_percent"]
        columns += [getattr(side, f"{latency}_s") for side in (pairs.reference, pairs.other)]
        columns.append(pairs.errors_percent(latency))
    write_csv(path, names, zip(*(column.tolist() for column in columns), strict=True))


def _step_rows(steps: PricedSteps, places: Iterable[int]) -> Iterable[tuple[Any, ...]]:
    log, errors = steps.log, steps.errors_percent
    for place in places:
        row = int(steps.rows[place])
        yield (
            log.step[row], log.line[row], float(log.schedule_end_s[row]), KINDS[steps.kind[place]], log.decodes[row],
            log.decode_context[row], log.num_chunks[row], log.prefill_tokens[row], log.tokens[row],
            shown_chunks(steps, row, len(log.chunks[row])).strip("-"), float(steps.measured_s[place]),
            float(steps.priced_s[place]), float(errors[place]),
        )  # fmt: skip


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Comma-separated with a header line, floats with nine digits at most, NaN empty; whole or not at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_cell(value) for value in row] for row in rows)
    write_text(path, text.getvalue())


def write_text(path: Path, text: str) -> None:
    """Whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8", newline="")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _cell(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{float(value):.9g}"
    return value
