"""A folder of one measured run: `run.json` and `requests.csv`, and where they were recorded token times and steps.

`requests.csv` has at least `arrival_s, prompt_tokens, output_tokens, first_token_s, finish_s` (seconds on one clock);
`token_times.jsonl.gz` a line a row of it with the time of every token; `steps.csv.gz` the log of
`profiler.vllm_steps.StepLogger`. `run.json` holds the configuration and may hold a `summary` with the columns of
`summary.csv`.
"""

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from simulator.compare.readers._given import Given
from simulator.compare.readers._json import read_documents
from simulator.compare.readers._numbers import csv_columns, mapping, number, numbers
from simulator.compare.run import Pool, Requests, Run
from simulator.errors import InputError
from simulator.trace import Floats

NAME = "measured folder"
DESCRIPTION = "run.json and requests.csv, optionally token_times.jsonl.gz and steps.csv.gz"
COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens", "first_token_s", "finish_s")
CLOCKS_S = 0.001
"""How far apart two readings of one moment may be."""
LATEST_S = 1e10
"""Unix time in seconds is below that for 250 years."""
FACTS = 30


def recognises(given: Given) -> bool:
    """By its two files."""
    return given.holds("run.json", "requests.csv")


def read(given: Given) -> Run:
    """See `Reader.read`."""
    folder = given.path
    about = read_documents(folder / "run.json")[0].content
    columns = csv_columns(folder / "requests.csv", COLUMNS)
    _require_possible(columns, folder / "requests.csv")
    ended = ~np.isnan(columns["finish_s"]) & ~np.isnan(columns["first_token_s"])
    if not ended.any():
        raise InputError("no request has a first token and a finish", path=folder / "requests.csv")
    order = np.argsort(columns["arrival_s"], kind="stable")
    requests = _requests({name: values[order][ended[order]] for name, values in columns.items()})
    times, log = folder / "token_times.jsonl.gz", folder / "steps.csv.gz"
    unfinished = len(ended) - int(ended.sum())
    return Run(
        name=given.name,
        format=NAME,
        path=folder,
        requests=requests,
        itl=Pool.of(_gaps(times, len(ended))) if times.is_file() else None,
        figures=_figures(about, folder / "run.json"),
        facts=_facts(about),
        num_requests=len(requests),
        prompt_tokens=float(requests.prompt_tokens.sum()),
        output_tokens=float(requests.output_tokens.sum()),
        step_log=log if log.is_file() else None,
        notes=(f"{unfinished} of {len(ended)} requests did not finish and are left out",) if unfinished else (),
    )


def _require_possible(columns: dict[str, Floats], path: Path) -> None:
    """InputError with the line of the first request whose times or tokens cannot be."""
    arrival, first, finish = (columns[name] for name in ("arrival_s", "first_token_s", "finish_s"))
    prompt, output = columns["prompt_tokens"], columns["output_tokens"]
    with np.errstate(invalid="ignore"):
        for wrong, key, what in (
            (first < arrival - CLOCKS_S, "first_token_s", "is before arrival_s"),
            (finish < first - CLOCKS_S, "finish_s", "is before first_token_s"),
            (np.maximum(np.abs(arrival), np.abs(finish)) > LATEST_S, "finish_s", "cannot be seconds of a run"),
            ((prompt < 0) | (prompt % 1 != 0), "prompt_tokens", "should be a whole number from 0 on"),
            ((output < 0) | (output % 1 != 0), "output_tokens", "should be a whole number from 0 on"),
        ):
            if wrong.any():
                raise InputError(what, path=path, line=int(np.flatnonzero(wrong)[0]) + 2, key=key)


def _requests(columns: dict[str, Floats]) -> Requests:
    arrival, first, finish = (columns[name] for name in ("arrival_s", "first_token_s", "finish_s"))
    output = columns["output_tokens"]
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = np.where(output > 1, (finish - first) / (output - 1), np.nan)
    return Requests(arrival, columns["prompt_tokens"], output, first - arrival, tpot, finish - arrival)


def _gaps(path: Path, requests: int) -> Floats:
    """Every gap of every request, seconds."""
    gaps: list[Floats] = []
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line, text in enumerate(file, 1):
                gaps.append(np.diff(numbers(_array(text, path, line), path, line, "times")))
                if (gaps[-1] < -CLOCKS_S).any():
                    raise InputError("times of tokens should not decrease", path=path, line=line)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", path=path) from None
    if len(gaps) != requests:
        raise InputError(f"{len(gaps)} lines, but requests.csv has {requests} requests", path=path)
    return np.concatenate(gaps)


def _array(text: str, path: Path, line: int) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {' '.join(str(error).split())}", path=path, line=line) from None


def _figures(about: dict[str, Any], path: Path) -> dict[str, float]:
    """The summary's figures, for what has no detail."""
    summary = mapping(about.get("summary", {}), path, None, "summary")
    return {name: number(summary, name, path) for name in summary if name.startswith("itl_")}


def _facts(about: dict[str, Any]) -> dict[str, str]:
    plain = {key: value for key, value in about.items() if isinstance(value, str | int | float)}
    return {key: str(value) for key, value in list(plain.items())[:FACTS]}
