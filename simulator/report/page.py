"""One self-contained report.html: the comparison in words, the table, the plots, and where it came from."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from simulator import __version__
from simulator.experiment import Parallel, parallel_in_words
from simulator.report.bubble_table import bubble_table
from simulator.report.causes import seen_causes
from simulator.report.comparable import SLACK
from simulator.report.headline import headline, notes
from simulator.report.measures import (
    BUBBLES,
    ITL_P99,
    OUTPUT_RATE,
    REQUEST_BUBBLES_P50,
    TIE,
    TTFT_P99,
    Measure,
    column,
    finished,
    page_measures,
)
from simulator.report.values import as_yaml, inline, options
from simulator.report.wording import opening
from simulator.results import PolicyResult

MANY = 8  # policies; more are rows of the summary instead of columns
COLUMNS = 10
SVG_BYTES = 1_500_000  # all embedded drawings together; the heaviest become PNG until the rest fits
PLOTS: dict[str, tuple[str, Measure | None]] = {
    "throughput": (
        "Output tokens/s, requests/s, p99 TTFT and p99 ITL of each policy; the best of those that keep up in bold. "
        "Bars on a log axis do not start at zero.",
        OUTPUT_RATE,
    ),
    "ttft": (
        "The share of requests that had their first token within a time; p50, p90 and p99 are marked.",
        TTFT_P99,
    ),
    "itl": (
        "ITL by percentile: each further nine takes the same height, so that the tail shows.",
        ITL_P99,
    ),
    "itl_over_time": (
        "ITL of the gaps that end in each stretch of the run: median, p99 and maximum; stretches between empty ones "
        "are dots.",
        ITL_P99,
    ),
    "timeline": (
        "Tokens in each step, logarithmic: the dark area ends at the decodes, the light one at all tokens. "
        "Left, the seconds in which most tokens arrive, step by step unless it says averaged; right, the whole run in "
        "bins, where steps of prompts and steps of decodes that take turns look mixed.",
        None,
    ),
    "queue": ("Requests running and waiting and tokens in the KV cache over the run.", None),
}
PIPELINE_PLOTS: dict[str, tuple[str, Measure | None]] = {
    "bubbles": ("Bubbles of all stages as a share of the time between their first and their last work.", BUBBLES),
    "stages": (
        "The stages in a short part of the run, the same for every policy, chosen to be about as busy as the whole run "
        "is while there are requests. A thick bar is a micro-batch; a thin one is a bubble, in the colour of the cause "
        "that has most of it. White: no request was there.",
        BUBBLES,
    ),
    "request_bubbles": (
        "The bubbles before all micro-batches that a request was in, summed over the stages, as SARATHI counts them; "
        "p50, p90 and p99 are marked.",
        REQUEST_BUBBLES_P50,
    ),
}


@dataclass(frozen=True)
class Plot:
    """A drawing as the page embeds it."""

    stem: str
    source: str  # a data: address
    caption: str
    alt: str


def write_page(
    results: Sequence[PolicyResult], folder: Path, experiment: Mapping[str, Any], plots: Sequence[Path]
) -> Path:
    """Writes `report.html` into `folder` and returns it; the same input gives the same bytes.

    `experiment` is the resolved experiment: shown as YAML; `trace` and `costs` name the subject, and what
    is under `provenance` (a mapping) becomes a table. `plots` are the files of `write_plots`.
    """
    drawn = _embedded(plots, results)
    environment = Environment(
        loader=PackageLoader("simulator.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    page = environment.get_template("page.html.j2").render(
        trace=inline(experiment.get("trace", "unnamed trace")),
        costs=inline(experiment.get("costs", "an unnamed table")) + _parallel(experiment),
        engine=_engine(experiment),
        labels=[result.label for result in results],
        headline=headline(results),
        notes=notes(results),
        finished=["{:,}/{:,}".format(*finished(result)) for result in results],
        rows=_rows(results),
        blocks=_blocks(_rows(results)) if len(results) > MANY else [],
        slack=f"{SLACK:g}",
        tie=f"{100 * TIE:g} %",
        plots=[plot for plot in drawn if plot.stem not in PIPELINE_PLOTS],
        pipeline_plots=[plot for plot in drawn if plot.stem in PIPELINE_PLOTS],
        bubbles=bubble_table(results),
        causes=seen_causes(results),
        policies=[(result.label, result.policy, options(result, experiment)) for result in results],
        provenance=_provenance(experiment),
        experiment=as_yaml(experiment),
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8", newline="\n")
    return path


def _parallel(experiment: Mapping[str, Any]) -> str:
    """GPUs together, stages and replicas, behind the name of the costs."""
    degrees = experiment.get("parallel", {})
    return parallel_in_words(Parallel(*(degrees.get(name, 1) for name in ("tensor", "pipeline", "replicas"))))


def _engine(experiment: Mapping[str, Any]) -> str:
    """The engine profile as the end of a sentence."""
    name = experiment.get("engine", "none")
    return ": the GPU alone, no engine" if name == "none" else f" and the engine profile {inline(name)}"


def _rows(results: Sequence[PolicyResult]) -> list[dict[str, Any]]:
    """The summary table, a row a measure: name, unit, (text, best) a policy, and whether a new group starts.

    Measures that no run has are left out.
    """
    rows: list[dict[str, Any]] = []
    before = ""
    for measure in page_measures(results):
        unit, texts, best = column(measure, results)
        if set(texts) == {"-"}:
            continue
        latency = measure.kind == "seconds" and bool(measure.statistic)
        group = measure.group if latency else "the run"
        rows.append(
            {
                "name": measure.group if measure.kind == "rate" else measure.title,
                "unit": measure.statistic if measure.kind == "rate" else unit,
                "cells": list(zip(texts, best, strict=True)),
                "first": group != before,
            }
        )
        before = group
    return rows


def _blocks(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The rows as tables of a few columns each, a row a policy, no group of measures in two of them."""
    blocks: list[list[dict[str, Any]]] = [[]]
    groups: list[list[dict[str, Any]]] = []
    for row in rows:
        groups = [*groups, []] if row["first"] else groups
        groups[-1].append(row)
    for group in groups:
        if blocks[-1] and len(blocks[-1]) + len(group) > COLUMNS:
            blocks.append([])
        blocks[-1] += group
    return blocks


def _embedded(plots: Sequence[Path], results: Sequence[PolicyResult]) -> list[Plot]:
    """The plots in their order, as SVG where that is light enough, else as PNG."""
    forms: dict[str, dict[str, Path]] = {}
    for path in plots:
        forms.setdefault(path.stem, {})[path.suffix] = path
    chosen = {stem: files.get(".svg") or files[".png"] for stem, files in forms.items()}
    for stem in sorted(chosen, key=lambda stem: -chosen[stem].stat().st_size):
        heavy = sum(path.stat().st_size for path in chosen.values() if path.suffix == ".svg") > SVG_BYTES
        if heavy and ".png" in forms[stem]:
            chosen[stem] = forms[stem][".png"]
    return [_plot(stem, path, results) for stem, path in chosen.items()]


def _plot(stem: str, path: Path, results: Sequence[PolicyResult]) -> Plot:
    kind = "image/svg+xml" if path.suffix == ".svg" else "image/png"
    source = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"
    caption, measure = {**PLOTS, **PIPELINE_PLOTS}.get(stem, (stem.replace("_", " "), None))
    return Plot(stem, source, caption, f"{caption} {_in_words(measure, results)}".strip())


def _in_words(measure: Measure | None, results: Sequence[PolicyResult]) -> str:
    """A plot's main numbers for those who do not see it."""
    if measure is None:
        return f"Policies: {', '.join(result.label for result in results)}."
    values = [f"{result.label} {measure.text(measure.of(result))}" for result in results]
    return f"{opening(measure.noun)}: {', '.join(values)}."


def _provenance(experiment: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [("chunkwise", __version__)]
    recorded = experiment.get("provenance")
    if isinstance(recorded, Mapping):
        rows += [(str(name), inline(value)) for name, value in recorded.items() if str(name) != "chunkwise"]
    return rows
