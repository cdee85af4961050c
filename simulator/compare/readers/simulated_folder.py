"""A policy's run in an output folder of `simulate-trace`: `summary.csv` and `<label>/requests.csv`.

`<label>/itl_quantiles.csv` has the distribution of the gaps; runs of versions that did not write it have four
statistics of them in `summary.csv`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simulator.compare.readers._given import Given, choice
from simulator.compare.readers._numbers import csv_columns, csv_table
from simulator.compare.run import NAN, Requests, Run, StoredQuantiles
from simulator.errors import InputError
from simulator.files import load_yaml
from simulator.trace import Floats

NAME = "simulate-trace"
DESCRIPTION = "an output folder of simulate-trace, or FOLDER/LABEL"
COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens", "first_token_s", "finish_s", "ttft_s", "tpot_s", "e2e_s")
FACTS = ("trace", "model", "costs", "engine", "kv_cache", "parallel", "limit", "speedup")


def recognises(given: Given) -> bool:
    """By the summary in the folder, or beside it."""
    return given.holds("summary.csv") or (
        given.holds("requests.csv")
        and not given.holds("run.json")
        and (given.path.resolve().parent / "summary.csv").is_file()
    )


def read(given: Given) -> Run:
    """See `Reader.read`."""
    inside = given.holds("summary.csv")
    folder = given.path if inside else given.path.resolve().parent
    summary = csv_table(folder / "summary.csv")
    if "label" not in summary.columns or not len(summary):
        raise InputError('no rows with a "label"; is this of simulate-trace?', path=folder / "summary.csv")
    label = _label(summary, given.label if inside else given.path.resolve().name, folder)
    row = dict(summary[summary["label"] == label].iloc[0])
    part, experiment = folder / label, folder / "experiment.yaml"
    requests, tokens, notes = _requests(part / "requests.csv")
    itl = _itl(part / "itl_quantiles.csv", _float(row.get("itl_mean_s")))
    iterations = [part / name for name in ("iterations.csv", "iterations.parquet") if (part / name).is_file()]
    return Run(
        name=f"{folder.resolve().name}/{label}",
        format=NAME,
        path=folder,
        requests=requests,
        itl=itl,
        figures={name: _float(value) for name, value in row.items() if name.endswith("_s")},
        facts=_facts(experiment, label),
        num_requests=len(requests),
        prompt_tokens=tokens[0],
        output_tokens=tokens[1],
        iterations=iterations[0] if iterations else None,
        experiment=experiment if experiment.is_file() else None,
        notes=notes,
    )


def _label(summary: pd.DataFrame, wanted: str | None, folder: Path) -> str:
    labels = [str(label) for label in summary["label"]]
    if wanted is not None:
        return choice(wanted, labels, folder / "summary.csv", "--label")
    if len(labels) > 1:
        raise InputError(f"several policies; choose one with --label: {', '.join(labels)}", path=folder)
    return labels[0]


def _requests(path: Path) -> tuple[Requests, tuple[float, float], tuple[str, ...]]:
    """The finished requests, their prompt and output tokens in sum, and notes."""
    columns = csv_columns(path, COLUMNS, ("generated_tokens",))
    ended = ~np.isnan(columns["finish_s"])
    if not ended.any():
        raise InputError("no request finished", path=path)
    order = np.argsort(columns["arrival_s"], kind="stable")
    kept = {name: values[order][ended[order]] for name, values in columns.items()}
    output: Floats = kept.get("generated_tokens", kept["output_tokens"])
    requests = Requests(kept["arrival_s"], kept["prompt_tokens"], output, kept["ttft_s"], kept["tpot_s"], kept["e2e_s"])
    left_out = len(ended) - int(ended.sum())
    notes = (f"{left_out} of {len(ended)} requests were rejected or stalled and are left out",) if left_out else ()
    return requests, (float(kept["prompt_tokens"].sum()), float(output.sum())), notes


def _itl(path: Path, mean: float) -> StoredQuantiles | None:
    if not path.is_file():
        return None
    columns = csv_columns(path, ("probability", "itl_s"))
    probabilities, values = columns["probability"], columns["itl_s"]
    if np.isnan(values).all():
        return None
    for name, column in columns.items():
        if np.isnan(column).any() or (np.diff(column) < 0).any():
            raise InputError("should ascend without a gap", path=path, key=name)
    return StoredQuantiles(probabilities, values, mean)


def _facts(experiment: Path, label: str) -> dict[str, str]:
    if not experiment.is_file():
        return {}
    keys = load_yaml(experiment)
    facts: dict[str, str] = {}
    for key in FACTS:
        value = keys.get(key)
        parts = value if isinstance(value, dict) else {} if value is None else {"": value}
        facts |= {f"{key}.{inner}".rstrip("."): str(part) for inner, part in parts.items()}
    policies = keys.get("policies")
    runs = policies if isinstance(policies, list) else []
    options: dict[Any, Any] = next((run for run in runs if isinstance(run, dict) and run.get("label") == label), {})
    return facts | {str(key): str(value) for key, value in options.items() if key != "label"}


def _float(text: Any) -> float:
    try:
        return float(text) if text not in ("", None) else NAN
    except ValueError:
        return NAN
