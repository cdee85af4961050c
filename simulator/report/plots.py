"""The comparison plots of a run, each as PNG and SVG. Importing this module imports matplotlib."""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from simulator.report.bubble_shares import draw_bubbles
from simulator.report.comparable import with_gpus
from simulator.report.distributions import draw_itl, draw_request_bubbles, draw_ttft
from simulator.report.measures import pipelined
from simulator.report.over_time import draw_itl_over_time, draw_queue
from simulator.report.rates import draw_throughput
from simulator.report.stage_timeline import draw_stages
from simulator.report.step_timeline import draw_timeline
from simulator.report.style import save, styled
from simulator.results import PolicyResult

Draw = Callable[[Sequence[PolicyResult], str], Figure]
FIGURES: dict[str, Draw] = {
    "throughput": draw_throughput,
    "ttft": draw_ttft,
    "itl": draw_itl,
    "itl_over_time": draw_itl_over_time,
    "timeline": draw_timeline,
    "queue": draw_queue,
}
PIPELINE_FIGURES: dict[str, Draw] = {
    "bubbles": draw_bubbles,
    "stages": draw_stages,
    "request_bubbles": draw_request_bubbles,
}
"""Of runs that have a pipeline."""


def write_plots(
    results: Sequence[PolicyResult], folder: Path, trace_name: str, costs_name: str, engine_name: str = ""
) -> list[Path]:
    """Draws every figure into `folder` and returns the files, PNG before SVG; none without results.

    The same results give the same bytes (with the same matplotlib). O(n log n) in iterations and gaps.
    """
    if not results:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    results = with_gpus(results)
    subtitle = simulated(trace_name, costs_name, engine_name)
    written: list[Path] = []
    with styled():
        for stem, draw in {**FIGURES, **(PIPELINE_FIGURES if pipelined(results) else {})}.items():
            written += save(draw(results, subtitle), folder, stem)
    return written


def simulated(trace_name: str, costs_name: str, engine_name: str = "") -> str:
    """The subtitle of every figure; no engine, or `none`, is not named."""
    engine = f", engine {engine_name}" if engine_name not in ("", "none") else ""
    return f"trace {trace_name}, costs {costs_name}{engine}"
