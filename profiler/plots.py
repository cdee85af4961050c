"""The plots of a cost table, each as PNG and SVG in the look of the reports. Importing this imports matplotlib."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from profiler.plot_attention import draw_attention
from profiler.plot_cliffs import draw_cliffs
from profiler.plot_roofline import draw_roofline
from profiler.plot_tokens import draw_tokens
from simulator.cost_table import CostTable, Source
from simulator.errors import InputError
from simulator.report.style import save, styled

FIGURES: dict[str, Callable[[CostTable, str], Figure]] = {
    "tokens": draw_tokens,
    "cliffs": draw_cliffs,
    "attention": draw_attention,
    "roofline": draw_roofline,
}


ORIGINS: dict[Source, str] = {
    "measured": "",
    "imported": "; times imported from measurements of others",
    "modelled": "; times modelled, not measured",
}


def write_plots(table: CostTable, folder: Path) -> list[Path]:
    """Draw every figure into `folder` and return the files, PNG before SVG. Raises InputError if that cannot be."""
    metadata = table.metadata
    shards = f", one of {metadata.tensor_parallel} GPUs" if metadata.tensor_parallel > 1 else ""
    subtitle = (
        f"{metadata.model.name} on {metadata.gpu.name}{shards}, {metadata.dtype},"
        f" {metadata.attention.backend} {metadata.attention.version}{ORIGINS[metadata.source]}"
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with styled():
            return [path for stem, draw in FIGURES.items() for path in save(draw(table, subtitle), folder, stem)]
    except OSError as error:
        raise InputError(f"cannot write plots into {folder}: {error.strerror}", key="--plots") from None
