"""The figures and the table of pipelines."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from simulator import output
from simulator.metrics.bubbles import bubble_rows
from simulator.pipeline.bubbles import CAUSES as REPORTED
from simulator.pipeline.bubbles import IDLE, bubbles, causes_of_gaps
from simulator.pipeline.log import StageTimes
from simulator.report.axes import Span
from simulator.report.bubble_shares import draw_bubbles
from simulator.report.bubble_table import bubble_table
from simulator.report.causes import CAUSES
from simulator.report.distributions import draw_request_bubbles
from simulator.report.plots import FIGURES, PIPELINE_FIGURES, write_plots
from simulator.report.stage_timeline import draw_stages
from simulator.report.stage_window import busy_share, typical_stretch
from simulator.report.style import DECODE, PREFILL
from simulator.results import Columns, PolicyResult

from .synthetic import pipelined, simulate, stage_times

SECOND = 1_000_000_000


def by_hand(label: str, steps: Sequence[tuple[int, int]], took: Sequence[Sequence[int]]) -> PolicyResult:
    """Micro-batches with (prompt tokens, decodes) that take whole seconds on each stage, all ready from the start."""
    times = stage_times(np.zeros(len(steps), np.int64), SECOND * np.array(took))
    found = bubbles(times, *(np.array(column) for column in zip(*steps, strict=True)))
    rows = [
        {"start_s": begin, "end_s": end, "prefill_tokens": prefill, "num_decodes": decodes}
        for (prefill, decodes), begin, end in zip(
            steps, times.start_ns[:, 0] / 1e9, times.end_ns[:, -1] / 1e9, strict=True
        )
    ]
    bare = simulate(label, [(0.0, 1, 1)])
    return replace(bare, iterations=pd.DataFrame(rows), bubbles=bubble_rows(label, [found]), stages=times)


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    """A warning of numpy or matplotlib is a failure."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def boxes(axes: Axes, colour: str) -> set[tuple[float, float, float, float]]:
    """(left, right, top, bottom) of the bars of one colour."""
    found = set()
    for collection in axes.collections:
        shown = isinstance(collection, PolyCollection) and len(collection.get_paths())
        if shown and np.allclose(collection.get_facecolor()[0], matplotlib.colors.to_rgba(colour)):
            for path in collection.get_paths():
                (left, top), (right, bottom) = path.vertices.min(axis=0), path.vertices.max(axis=0)
                found.add(tuple(round(float(value), 6) for value in (left, right, top, bottom)))
    return found


def named(figure: Figure) -> list[str]:
    """The entries of the key."""
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_the_causes_of_some_gaps_are_those_of_the_whole_run(staged: list[PolicyResult]) -> None:
    """Whatever stretch is asked for, its gaps are explained in full, and stretches add up to the run."""
    for result in staged:
        times = result.stages
        prefill, decodes = (np.asarray(result.iterations[name]) for name in ("prefill_tokens", "num_decodes"))
        assert times is not None
        cuts = [1, 2, 9, len(prefill) // 2, len(prefill)]
        parts = [causes_of_gaps(times, prefill, decodes, range(first, last)) for first, last in pairwise(cuts)]
        whole = np.concatenate(parts, axis=2)
        assert np.array_equal(whole.sum(axis=2), bubbles(times, prefill, decodes).caused_ns)
        assert np.array_equal(whole.sum(axis=1).T, times.start_ns[1:] - times.end_ns[:-1])


def test_every_cause_has_a_name_and_a_colour_of_its_own() -> None:
    """In the order of the columns of bubbles.csv; none is taken for work."""
    assert tuple(cause.key for cause in CAUSES) == REPORTED
    for looks in ({cause.name for cause in CAUSES}, {cause.colour for cause in CAUSES} - {PREFILL, DECODE}):
        assert len(looks) == len(CAUSES)


def test_bars_are_work_and_thin_bars_bubbles() -> None:
    """Two stages; a prompt of 3 s, a decode of 1 s and one step of both. While stage 1 has the prompt, stage 0 waits
    for a place from 4 to 6 s; the bubble is put down to the one prefilling, the other decoding."""
    run = by_hand("a", [(100, 0), (0, 5), (60, 5)], [[3, 3], [1, 1], [2, 2]])
    axes = draw_stages([run], "t").axes[0]
    assert {(left, right) for left, right, *_ in boxes(axes, PREFILL)} == {(0, 3), (3, 6), (6, 8), (8, 10)}
    assert {(left, right) for left, right, *_ in boxes(axes, DECODE)} == {(3, 4), (6, 7), (6, 8), (8, 10)}
    tall = {round(bottom - top, 3) for left, right, top, bottom in boxes(axes, PREFILL) if right <= 6}
    assert tall == {0.84}
    halves = [boxes(axes, colour) for colour in (PREFILL, DECODE)]
    (light,), (dark,) = ([box for box in half if box[:2] == (6, 8)] for half in halves)
    assert light[3] == dark[2] == 0  # the light half above the middle of stage 0, the dark one below it
    thin = boxes(axes, CAUSES[1].colour)
    assert {box[:2] for box in thin} == {(4, 6), (7, 8)}
    assert {round(bottom - top, 3) for *_, top, bottom in thin} == {0.42}


def test_the_first_stage_is_on_top_and_policies_share_the_time(staged: list[PolicyResult]) -> None:
    """A panel a policy, a row a stage."""
    panels = draw_stages(staged, "t").axes
    assert [axes.get_title() for axes in panels] == [result.label for result in staged]
    assert len({axes.get_xlim() for axes in panels}) == 1
    for axes in panels:
        assert [label.get_text() for label in axes.get_yticklabels()] == ["stage 0", "stage 1", "stage 2"]
        assert axes.yaxis_inverted()


def test_all_that_is_under_way_in_the_stretch_is_drawn(staged: list[PolicyResult]) -> None:
    """On every stage, what began before the stretch and what ends behind it too."""
    for result, axes in zip(staged, draw_stages(staged, "t").axes, strict=True):
        times, (left, right) = result.stages, axes.get_xlim()
        assert times is not None
        drawn = boxes(axes, PREFILL) | boxes(axes, DECODE)
        for stage in range(times.stages):
            starts, ends = times.start_ns[:, stage] / 1e9, times.end_ns[:, stage] / 1e9
            inside = (ends > left) & (starts < right)
            expected = {(round(a, 6), round(b, 6)) for a, b in zip(starts[inside], ends[inside], strict=True)}
            assert expected <= {(a, b) for a, b, top, bottom in drawn if top < stage + 0.2 and bottom > stage - 0.2}


def test_waiting_for_arrivals_stays_white() -> None:
    """Between two requests far apart nothing is drawn; the key says what white is."""
    took = np.full((4, 2), SECOND)
    times = stage_times(np.array([0, 0, 10, 10]) * SECOND, took)
    run = by_hand("a", [(9, 0)] * 4, took // SECOND)
    run = replace(run, stages=times, bubbles=bubble_rows("a", [bubbles(times, np.full(4, 9), np.zeros(4, np.int64))]))
    figure = draw_stages([run], "t")
    drawn = [box[:2] for cause in CAUSES for box in boxes(figure.axes[0], cause.colour)]
    assert not [span for span in drawn if span[0] < 9 and span[1] > 4]
    assert "no request" in named(figure)
    assert "no request" not in named(draw_stages([by_hand("b", [(9, 0)] * 2, [[1, 1]] * 2)], "t"))


def test_the_stretch_shown_is_as_busy_as_the_run() -> None:
    """A run of even work but for its middle: there one stage works at a time."""
    took = np.full((900, 2), SECOND)
    took[430:470:2] = [SECOND, 9 * SECOND]
    times = stage_times(np.zeros(900, np.int64), took)
    shown = typical_stretch([times])
    assert shown is not None
    end_s = times.end_ns[-1, 0] / 1e9
    assert 0.25 * end_s <= shown.start_s < shown.end_s <= 0.8 * end_s
    assert busy_share(times, shown) == pytest.approx(busy_share(times, None), abs=0.1)
    middle = Span(end_s / 2, end_s / 2 + shown.end_s - shown.start_s)
    assert abs(busy_share(times, middle) - busy_share(times, None)) > 0.2


def test_a_steady_run_is_shown_in_its_middle() -> None:
    """Of equal stretches the one nearest the middle; a few dozens of micro-batches of it."""
    times = stage_times(np.zeros(1000, np.int64), np.full((1000, 2), SECOND))
    shown = typical_stretch([times])
    assert shown is not None
    assert shown.start_s + (shown.end_s - shown.start_s) / 2 == pytest.approx(500, abs=1)
    assert 24 <= shown.end_s - shown.start_s <= 48


def test_there_are_requests_in_the_stretch_shown() -> None:
    """Where a run mostly waits for arrivals, work is shown."""
    ready = np.repeat(np.arange(40) * 1000, 40) * SECOND
    times = stage_times(ready, np.full((1600, 2), SECOND))
    shown = typical_stretch([times])
    assert shown is not None
    assert busy_share(times, None) < 0.1
    assert busy_share(times, shown) > 0.5


def test_no_work_has_no_stretch() -> None:
    """Nor do no pipelines."""
    none = stage_times(np.zeros(0, np.int64), np.zeros((0, 2), np.int64))
    assert typical_stretch([none]) is typical_stretch([]) is None


def test_bubble_bars_are_shares_of_the_stages_time(staged: list[PolicyResult]) -> None:
    """The parts of a bar sum to the share of bubbles in the summary, which is written behind it; only causes that can
    be seen are in the key."""
    figure = draw_bubbles(staged, "t")
    axes = figure.axes[0]
    for row, result in enumerate(staged):
        bars = [bar for bar in axes.patches if abs(bar.get_y() + 0.31 - row) < 0.01]  # type: ignore[attr-defined]
        share = result.summary["bubble_fraction"]
        assert sum(bar.get_width() for bar in bars) == pytest.approx(share)  # type: ignore[attr-defined]
        ends = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars]  # type: ignore[attr-defined]
        assert all(end == pytest.approx(begin) for (_, end), (begin, _) in pairwise(ends))
        assert f"{100 * share:.1f} %" in [text.get_text() for text in axes.texts]
    assert "host" not in named(figure)
    assert {"PB1 prefill lengths", "uneven stages"} <= set(named(figure))
    busy = 100 * staged[0].bubbles["busy_s"].sum() / staged[0].bubbles["span_s"].sum()
    assert any(text.get_text().startswith(f"busy {busy:.1f} %") for text in axes.texts)


def test_causes_too_short_to_be_seen_are_not_in_the_key(staged: list[PolicyResult]) -> None:
    """Half a thousandth of the stages' time is about a pixel."""
    spans = staged[0].bubbles["span_s"]
    for share, seen in ((1e-4, False), (1e-3, True)):
        columns = {name: staged[0].bubbles[name] for name in staged[0].bubbles.columns}
        rows = Columns({**columns, "host_s": share * spans})
        assert ("host" in named(draw_bubbles([replace(staged[0], bubbles=rows)], "t"))) is seen


def test_request_bubbles_are_of_finished_requests(staged: list[PolicyResult]) -> None:
    """The marks on the curve are their percentiles; who did not finish does not count."""
    requests = staged[0].requests.assign(bubble_s=np.arange(60.0))  # type: ignore[attr-defined]
    requests.loc[requests.index >= 41, "status"] = "rejected"
    figure = draw_request_bubbles([replace(staged[0], requests=requests)], "t")
    marks = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert list(np.asarray(marks[0].get_xdata(), float)) == pytest.approx([20, 36, 39.6])
    assert {"41", "20.0 s", "40.0 s"} <= {text.get_text() for text in figure.axes[1].texts}


def test_pipelines_have_more_figures(results: list[PolicyResult], staged: list[PolicyResult], tmp_path: Path) -> None:
    """Runs without stages do not; a run that overwrites knows them all."""
    drawn = {path.stem for path in write_plots(staged[:1], tmp_path, "t", "c")}
    assert drawn == {*FIGURES, *PIPELINE_FIGURES} == set(output._PLOTS)
    assert {path.stem for path in write_plots(results[:1], tmp_path / "1", "t", "c")} == set(FIGURES)


@pytest.mark.parametrize("stages", [1, 8])
def test_poor_pipelines_are_drawn_too(
    stages: int, staged: list[PolicyResult], nothing: PolicyResult, tmp_path: Path
) -> None:
    """A policy that ran nothing, a single step, and labels of any length beside another."""
    odd = replace(staged[0], label=r"$\frac{$ <script> & _{" + "long" * 20)
    for runs in ([pipelined(nothing, stages)], [pipelined(simulate("one step", [(3.0, 10, 1)]), stages), odd]):
        written = write_plots([*runs, pipelined(nothing, stages)], tmp_path, "$x", "$y$")
        assert len(written) == 2 * (len(FIGURES) + len(PIPELINE_FIGURES))


def test_the_same_pipelines_give_the_same_bytes(staged: list[PolicyResult], tmp_path: Path) -> None:
    """As all figures do."""
    once, again = (write_plots(staged[:1], tmp_path / name, "t", "c") for name in ("1", "2"))
    assert [path.read_bytes() for path in once] == [path.read_bytes() for path in again]


def test_the_table_has_each_stage(staged: list[PolicyResult], results: list[PolicyResult]) -> None:
    """Per cent of the stage's span: busy, bubbles and no request are all of it; causes that no run has are left out."""
    table = bubble_table(staged)
    assert table is not None
    assert bubble_table(results) is None
    assert [label for label, _ in table.policies] == [result.label for result in staged]
    assert [row[0] for row in table.policies[0][1]] == ["0", "1", "2"]
    assert "host" not in table.headings
    for _, rows in table.policies:
        for row in rows:
            shares = {name: float(text[:-1]) for name, text in zip(table.headings[1:], row[2:], strict=True)}
            whole = shares.pop("busy") + shares.pop("no request") + shares["bubbles"]
            assert whole == pytest.approx(100, abs=0.2)
            assert sum(shares.values()) == pytest.approx(2 * shares["bubbles"], abs=0.5)


def test_stage_times_of_the_tests_do_not_overlap(staged: list[PolicyResult]) -> None:
    """What these tests draw is a pipeline: a stage has one micro-batch at a time, in order."""
    times = staged[0].stages
    assert isinstance(times, StageTimes)
    assert (times.start_ns[1:] >= times.end_ns[:-1]).all()
    assert (times.start_ns[:, 1:] >= times.end_ns[:, :-1]).all()
    assert len(CAUSES) == IDLE
