"""How far steps of a pipeline overlap: worked out by hand, and again from the committed log."""

import csv
import gzip
from collections import Counter

import numpy as np
import pytest

from simulator.compare.overlap import KINDS, Overlap, Spans
from simulator.compare.overlap_page import TITLE, overlap_section
from tests.compare.test_validate import FOLDER, PAGE, rows_of, validated

NAME = "pp2-async-llama-3.1-8b-conv3x-b2048"


def spans(scheduled: list[float], output: list[float], working: list[float], kind: list[int]) -> Spans:
    """Of these steps."""
    return Spans(np.array(kind), np.array(scheduled), np.array(output), np.array(working))


BY_HAND = spans([0.0, 1.0, 2.0, 10.0], [3.0, 4.0, 6.0, 12.0], [2.5, 2.0, 3.0, 1.5], [0, 0, 2, 0])
"""Steps of 3, 3, 4 and 2 s in 8 s: from 0 to 6 and, after idling, from 10 to 12."""


def test_latencies_and_intervals_by_hand() -> None:
    """The first step follows none, and the last follows idling."""
    assert BY_HAND.latency_s.tolist() == [3, 3, 4, 2]
    assert BY_HAND.interval_s[1:3].tolist() == [1, 2]
    assert np.isnan(BY_HAND.interval_s[[0, 3]]).all()


def test_how_many_are_under_way_by_hand() -> None:
    """12 s of steps and 9 s of stages in 8 s."""
    assert BY_HAND.busy_s == 8
    assert BY_HAND.steps_under_way == 12 / 8
    assert BY_HAND.stages_at_work == 9 / 8


def test_figures_are_by_kind_of_step() -> None:
    """And of all together; a kind that does not occur has counts of 0."""
    figures = {(name, kind): pair for name, kind, *pair in Overlap(BY_HAND, BY_HAND, np.zeros(4)).figures()}
    assert [figures["steps", kind] for kind in (*KINDS, "all")] == [[3, 3], [0, 0], [1, 1], [4, 4]]
    assert figures["latency_p50_s", KINDS[0]] == [3, 3]
    assert figures["interval_mean_s", "all"] == [1.5, 1.5]
    assert figures["interval_p90_s", KINDS[2]] == [2, 2]
    assert np.isnan(figures["latency_p50_s", KINDS[1]]).all()


def test_the_committed_overlap_is_that_of_the_log() -> None:
    """Counted again at each moment when a step of the log begins or ends."""
    with gzip.open(FOLDER / "measured" / NAME / "steps.csv.gz", "rt", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["num_decodes"] != "0" or row["prefills"]]
    changes: Counter[float] = Counter()
    for row in rows:
        changes[float(row["schedule_end_s"])] += 1
        changes[float(row["output_ready_s"])] -= 1
    under_way, busy_s, sum_s, before = 0, 0.0, 0.0, 0.0
    for moment, change in sorted(changes.items()):
        busy_s += (moment - before) * (under_way > 0)
        sum_s += (moment - before) * under_way
        under_way, before = under_way + change, moment
    table = {row["figure"]: row for row in rows_of(FOLDER / "overlap.csv", NAME) if row["kind"] == "all"}
    assert float(table["steps_under_way"]["measured"]) == pytest.approx(sum_s / busy_s, rel=1e-4)
    assert int(table["steps"]["measured"]) == len(rows)


def test_the_simulated_stages_overlap_as_those_of_the_log() -> None:
    """Of two stages with three steps under way at most: the numbers at a time are within some per cent."""
    table = {row["figure"]: row for row in rows_of(FOLDER / "overlap.csv", NAME) if row["kind"] == "all"}
    for figure, most in (("steps_under_way", 3), ("stages_at_work", 2)):
        measured, simulated = (float(table[figure][side]) for side in ("measured", "simulated"))
        assert 1 < measured <= most
        assert simulated == pytest.approx(measured, rel=0.05)


def test_the_page_has_a_section_on_it() -> None:
    """With its plot; without a pipeline there is none."""
    section = PAGE[PAGE.index(TITLE) :].partition("\n## ")[0]
    assert f"](overlap-{NAME}.png)" in section
    assert list(overlap_section([validated("sync-llama-3.1-8b-code4x-b2048-l0")], [])) == []
