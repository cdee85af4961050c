"""Every figure, from every kind of run."""

import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes

from simulator.report.over_time import BINS, draw_itl_over_time, draw_queue
from simulator.report.plots import FIGURES, PIPELINE_FIGURES, Draw, simulated, write_plots
from simulator.report.rates import draw_throughput
from simulator.report.step_timeline import draw_timeline
from simulator.report.style import PREFILL, looks
from simulator.results import PolicyResult, TokenGaps

from .synthetic import pipelined, simulate, workload


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


def test_every_figure_says_what_was_simulated(results: list[PolicyResult]) -> None:
    """The trace, the costs, and the engine where there is one."""
    assert simulated("conversation", "h200/llama") == "trace conversation, costs h200/llama"
    assert simulated("t", "c", "vllm-0.23") == "trace t, costs c, engine vllm-0.23"
    for draw in (*FIGURES.values(), *PIPELINE_FIGURES.values()):
        assert "what" in [text.get_text() for text in draw([pipelined(results[0], 2)], "what").texts]


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


def drawn(axes: Axes) -> set[float]:
    """The heights at which lines of `axes` leave ink: those joined to a neighbour, and markers."""
    seen: set[float] = set()
    for line in axes.lines:
        heights = np.asarray(line.get_ydata(), float)
        known = np.isfinite(heights)
        around = np.concatenate(([False], known, [False]))
        joined = around[:-2] | around[2:]
        seen |= set(heights[known & (joined | (line.get_marker() not in (None, "None", "")))].round(9))
    return seen


def test_gaps_alone_in_their_stretch_of_the_run_are_drawn(results: list[PolicyResult]) -> None:
    """Median and maximum, where no bin beside theirs has gaps."""
    steps = results[0].iterations
    start, end = results[0].requests["arrival_s"].min(), steps["end_s"].max()
    at = start + (end - start) * np.array([20.5, 21.5, 70.5, 70.6, 70.7]) / BINS
    gaps = TokenGaps(at, np.array([0.01, 0.02, 0.03, 0.04, 0.9]), np.ones(5, np.int64))
    figure = draw_itl_over_time([replace(results[0], gaps=gaps)], "t")
    assert {0.01, 0.02, 0.04, 0.9} <= drawn(figure.axes[0])
    assert len(figure.axes[0].collections) == 2  # the band, and the stroke to p99


def test_a_policy_that_is_done_in_one_bin_has_a_queue(results: list[PolicyResult]) -> None:
    """Beside one that takes a thousand times as long."""
    brief = replace(results[1], iterations=results[1].iterations.iloc[:1].assign(running=77))
    assert 77 in drawn(draw_queue([results[0], brief], "t").axes[0])


def test_queues_have_whole_ticks_and_a_zero_line(results: list[PolicyResult]) -> None:
    """Where nobody waits, too."""
    idle = replace(results[0], iterations=results[0].iterations.assign(waiting=0))
    waiting = draw_queue([idle], "t").axes[1]
    ticks = [tick for tick in waiting.get_yticks() if 0 <= tick <= waiting.get_ylim()[1]]
    assert ticks == [0, 1]
    assert waiting.get_ylim()[0] < 0


def test_far_latencies_have_a_log_axis_that_says_so(results: list[PolicyResult]) -> None:
    """All bars show, from a power of ten on; nearer ones and rates start at zero."""
    pair = [
        replace(result, summary={**result.summary, "ttft_p99_s": ttft, "itl_p99_s": itl, "output_tokens_per_s": rate})
        for result, ttft, itl, rate in zip(results, (72.9, 0.32), (0.2, 0.01), (9000, 10), strict=False)
    ]
    rate, _, ttft, itl = draw_throughput(pair, "t").axes
    assert [axes.get_xscale() for axes in (rate, ttft, itl)] == ["linear", "log", "linear"]
    assert ttft.get_xlim()[0] == pytest.approx(0.1)
    assert [bar.get_x() + bar.get_width() for bar in ttft.patches] == pytest.approx([72.9, 0.32])  # type: ignore[attr-defined]
    said = [[text.get_text() for text in axes.texts if "better" in text.get_text()] for axes in (ttft, itl)]
    assert said == [["lower is better, log axis"], ["lower is better"]]


def test_the_busiest_seconds_show_single_steps_or_say_averaged() -> None:
    """Steps of prompts and of decodes that take turns are not stacked; too many steps are called averaged."""
    load = [(0.1 * number, 300, 40) for number in range(300)]
    turns = simulate("turns", load, chunk=4096, batched=False)
    panels = draw_timeline([turns], "t").axes
    light = next(patch for patch in panels[0].patches if patch.get_facecolor() == matplotlib.colors.to_rgba(PREFILL))
    totals = light.get_data().values  # type: ignore[attr-defined]
    sizes = turns.iterations[["decode_tokens", "prefill_tokens"]].max(axis=1)
    assert set(totals) <= {0, *sizes}
    assert [axes.get_title(loc="right").endswith("averaged") for axes in panels] == [False, True]


def late(results: list[PolicyResult], times: float) -> list[PolicyResult]:
    """Two policies, and the last step of the second at so many times the end of the first."""
    steps = results[1].iterations.copy()
    end = times * results[0].iterations["end_s"].max()
    steps.loc[steps.index[-1], "end_s"] = end
    slow = {**results[1].summary, "duration_s": end - results[1].requests["arrival_s"].min()}
    return [results[0], replace(results[1], iterations=steps, summary=slow)]


@pytest.mark.parametrize("draw", [draw_queue, draw_itl_over_time, draw_timeline])
def test_the_time_axis_ends_where_only_a_queue_drains(draw: Draw, results: list[PolicyResult]) -> None:
    """One that takes ten times as long does not squeeze the other, and the axis says so."""
    own = draw(results[:1], "t").axes[-2 if draw is draw_queue else -1].get_xlim()
    axes = draw(late(results, 10), "t").axes[-2 if draw is draw_queue else -1]
    assert axes.get_xlim()[1] < 1.3 * own[1]
    assert "; 1 runs longer, up to " in axes.get_xlabel()


def test_a_little_longer_is_shown_whole(results: list[PolicyResult]) -> None:
    """To the last step."""
    pair = late(results, 1.21)
    axes = draw_queue(pair, "t").axes[2]
    assert axes.get_xlim()[1] == pair[1].iterations["end_s"].max()
    assert "longer" not in axes.get_xlabel()


def test_colours_that_come_twice_have_markers(results: list[PolicyResult]) -> None:
    """Nine policies; eight are told apart without."""
    for policies, marked in ((9, True), (8, False)):
        lines = draw_queue([results[0]] * policies, "t").axes[0].lines
        assert {line.get_marker() != "None" for line in lines} == {marked}


def test_the_heads_of_the_key_do_not_overlap(results: list[PolicyResult]) -> None:
    """With replicas, of which the most is told, too."""
    parts = replace(results[0], iterations=results[0].iterations.assign(replica=0))
    for runs in (results, [parts, *results[1:]]):
        figure = draw_queue(runs, "t")
        figure.draw_without_rendering()
        heads = [text for text in figure.axes[3].texts if text.get_text() and text.get_position()[1] <= 0]
        boxes = [text.get_window_extent() for text in heads]
        assert len(boxes) >= 3
        assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_bars_say_how_many_gpus_and_who_is_late(results: list[PolicyResult], tmp_path: Path) -> None:
    """Behind the label, a dagger explained above."""
    pair = late(results, 10)
    figure = draw_throughput(pair, "t")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["orca", "sarathi †"]
    assert "t; † does not keep up with the arrivals" in [text.get_text() for text in figure.texts]
    unlike = [pair[0], replace(results[1], summary={**results[1].summary, "gpus": 2})]
    svg = write_plots(unlike, tmp_path, "t", "c")[1].read_text(encoding="utf-8")
    assert "<!-- sarathi (2 GPUs) -->" in svg


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
