"""How alike the batches of two runs are: what their steps held, not how long they took."""

from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np

from simulator.compare.figures import Figure
from simulator.compare.run import Run
from simulator.errors import InputError
from simulator.step_log_file import LoggedSteps
from simulator.trace import Ints

COLUMNS = ("num_decodes", "num_prefills", "prefill_tokens")
QUANTILES = (10, 50, 90, 99)


@dataclass(frozen=True)
class Composition:
    """The steps of a run that ran something: decodes, prompt chunks and all tokens of each."""

    decodes: Ints
    chunks: Ints
    tokens: Ints


def logged_composition(log: LoggedSteps) -> Composition:
    """Of a step log."""
    busy = log.tokens > 0
    return Composition(log.decodes[busy], log.num_chunks[busy], log.tokens[busy])


def simulated_composition(path: Path) -> Composition:
    """Of `iterations.csv` or `.parquet`. InputError where it cannot be read."""
    reader = "read_parquet" if path.suffix == ".parquet" else "read_csv"
    try:
        with duckdb.connect() as connection:
            query = f"SELECT {', '.join(f'CAST({name} AS BIGINT) AS {name}' for name in COLUMNS)} FROM {reader}(?)"
            columns = connection.execute(query, [str(path)]).fetchnumpy()
    except duckdb.Error as error:
        raise InputError(f"cannot be read: {str(error).splitlines()[0]}", path=path) from None
    decodes, chunks, prefill = (np.asarray(columns[name], dtype=np.int64) for name in COLUMNS)
    return Composition(decodes, chunks, decodes + prefill)


def composition_drift(ours: Composition, theirs: Composition) -> list[Figure]:
    """Number of steps, share of steps with prefills, and mean and quantiles of decodes and tokens a step."""
    first_share, second_share = (100 * float((side.chunks > 0).mean()) for side in (ours, theirs))
    rows = [
        Figure("steps", float(len(ours.tokens)), float(len(theirs.tokens))),
        Figure("steps with prefills, %", first_share, second_share),
    ]
    for name in ("decodes", "tokens"):
        first, second = getattr(ours, name), getattr(theirs, name)
        rows.append(Figure(f"{name} a step, mean", float(first.mean()), float(second.mean())))
        for percent, one, two in zip(
            QUANTILES, np.percentile(first, QUANTILES), np.percentile(second, QUANTILES), strict=True
        ):
            rows.append(Figure(f"{name} a step, p{percent}", float(one), float(two)))
    return rows


def composition_of(run: Run, log: LoggedSteps | None) -> Composition | None:
    """That of the run's log or of its iterations; None where it has neither, or ran nothing."""
    found = None
    if log is not None:
        found = logged_composition(log)
    elif run.iterations is not None:
        found = simulated_composition(run.iterations)
    return found if found is not None and len(found.tokens) else None
