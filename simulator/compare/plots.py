"""The plots of a comparison, each as PNG and SVG. Importing this module imports matplotlib."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure as Drawing

from simulator.compare.comparison import Comparison
from simulator.compare.quantile_plot import draw_quantiles
from simulator.compare.request_plot import draw_requests
from simulator.compare.step_plot import draw_steps
from simulator.report.style import save, styled

DRAWN: dict[str, tuple[Callable[[Comparison], bool], Callable[[Comparison], Drawing]]] = {
    "quantiles": (lambda comparison: comparison.has_errors, draw_quantiles),
    "requests": (lambda comparison: comparison.matched is not None, draw_requests),
    "steps": (lambda comparison: comparison.steps is not None, draw_steps),
}
"""By file stem: whether there is anything to draw, and what draws it."""


def write_plots(comparison: Comparison, folder: Path) -> list[str]:
    """Draws what there is into `folder`; the stems. The same comparison gives the same bytes."""
    written = []
    with styled():
        for stem, (applies, draw) in DRAWN.items():
            if applies(comparison):
                save(draw(comparison), folder, stem)
                written.append(stem)
    return written
