"""Every figure, from every kind of run."""

import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest

from simulator.report.plots import FIGURES, write_plots
from simulator.report.style import looks
from simulator.results import PolicyResult

from .synthetic import simulate, workload


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    """A warning of numpy or matplotlib is a failure."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_every_figure_is_written_as_png_and_svg(results: list[PolicyResult], tmp_path: Path) -> None:
    """In the order of FIGURES; the PNGs are pictures and the SVGs parse and show the trace's name."""
    paths = write_plots(results, tmp_path / "new", "conversation", "h200/llama")
    assert [path.name for path in paths] == [f"{stem}.{kind}" for stem in FIGURES for kind in ("png", "svg")]
    assert {"ttft", "itl", "throughput", "timeline", "itl_over_time"} <= set(FIGURES)
    for png, svg in zip(paths[::2], paths[1::2], strict=True):
        assert png.read_bytes().startswith(b"\x89PNG")
        assert ElementTree.parse(svg).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_the_same_results_give_the_same_bytes(results: list[PolicyResult], tmp_path: Path) -> None:
    """No dates, no random ids, whatever the user's own settings, which are left as they were."""
    before = dict(matplotlib.rcParams)
    once = write_plots(results[:1], tmp_path / "1", "t", "c")
    assert dict(matplotlib.rcParams) == before
    with matplotlib.rc_context({"font.size": 30, "axes.grid": False, "svg.hashsalt": "x"}):
        again = write_plots(results[:1], tmp_path / "2", "t", "c")
    assert [path.read_bytes() for path in once] == [path.read_bytes() for path in again]


@pytest.mark.parametrize("case", ["nothing", "one step", "mixed"])
def test_poor_runs_are_drawn_too(case: str, results: list[PolicyResult], nothing: PolicyResult, tmp_path: Path) -> None:
    """No finished request, no gaps, a single step, unlike policies together, labels of formulas."""
    one_token = simulate("one token", [(arrival, prompt, 1) for arrival, prompt, _ in workload(20, 5)])
    one_step = simulate("one step", [(3.0, 10, 1)])
    odd = replace(results[0], label=r"$\frac{$ <script> & _{" + "long" * 20)
    runs = {"nothing": [nothing], "one step": [one_step], "mixed": [nothing, odd, one_token, one_step]}[case]
    assert len(write_plots(runs, tmp_path, "$x", "$y$")) == 2 * len(FIGURES)


def test_nothing_to_draw_writes_nothing(tmp_path: Path) -> None:
    """No policies, no files."""
    assert write_plots([], tmp_path, "t", "c") == []
    assert list(tmp_path.iterdir()) == []


def test_policies_look_different_in_colour_and_in_grey() -> None:
    """Eight colours, dashes, markers and hatches; after that, combinations."""
    first = looks(8)
    for name in ("colour", "dash", "marker", "hatch"):
        assert len({str(getattr(look, name)) for look in first}) == 8
    assert len({(look.colour, str(look.dash)) for look in looks(64)}) == 64


def test_matplotlib_is_loaded_for_plots_only_and_pyplot_never() -> None:
    """The table and the page leave it unloaded."""
    light = "import sys, simulator.report.terminal, simulator.report.page; assert 'matplotlib' not in sys.modules"
    heavy = "import sys, simulator.report.plots; assert 'matplotlib.pyplot' not in sys.modules"
    for code in (light, heavy):
        subprocess.run([sys.executable, "-c", code], check=True)
