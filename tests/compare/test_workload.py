"""Whether two runs are of one workload, and which request of one is which of the other."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.compare.figures import Figure
from simulator.compare.readers import read_run
from simulator.compare.workload import matched, workload_warnings
from tests.compare import files


@pytest.fixture
def run(tmp_path):
    """The small run, measured."""
    return read_run(str(files.measured_folder(tmp_path / "run")))


def changed(run, **columns):
    """The run with other columns of its requests."""
    return replace(run, requests=replace(run.requests, **columns))


def test_the_same_workload_is_not_remarked_on(run):
    """A slower run of the same requests is what a comparison is for."""
    assert workload_warnings(run, run) == []
    assert workload_warnings(run, changed(run, e2e_s=run.requests.e2e_s * 5)) == []


def test_what_differs_by_more_than_two_per_cent_is_named(run):
    """Requests, tokens and the span of the arrivals."""
    [line] = workload_warnings(run, replace(run, num_requests=4, prompt_tokens=183, output_tokens=9))
    assert line == "not the same workload? 3 against 4 requests, 8 against 9 output tokens"
    [line] = workload_warnings(run, changed(run, arrival_s=run.requests.arrival_s / 2))
    assert line == "not the same workload? 2 against 1 s from first to last arrival"


def test_without_arrivals_the_duration_is_looked_at(run):
    """As of a file that has aggregates only."""
    other = replace(run, requests=None, figures={"duration_s": 5.5})
    assert workload_warnings(run, other) == ["not the same workload? 2.75 against 5.5 s of duration"]


def test_requests_are_matched_by_their_lengths_in_order(run):
    """Then each has an error; with one token more somewhere they are not the same."""
    pairs = matched(run, changed(run, e2e_s=run.requests.e2e_s * np.array([1.1, 0.5, 1])))
    assert pairs.errors_percent("e2e") == pytest.approx([10, -50, 0])
    assert np.isnan(pairs.errors_percent("tpot")).tolist() == [False, True, False]
    assert matched(run, changed(run, output_tokens=run.requests.output_tokens + 1)) is None
    assert matched(run, replace(run, requests=None)) is None


def test_an_error_is_relative_to_the_reference():
    """None where the reference is 0 or one side is missing."""
    assert Figure("ttft_p50_s", 2.0, 1.5).error_percent == -25
    assert np.isnan(Figure("ttft_p50_s", 0.0, 1.5).error_percent)
    assert np.isnan(Figure("ttft_p50_s", float("nan"), 1.5).error_percent)
    assert [Figure(name, 1, 1).title for name in ("ttft_p50_s", "duration_s")] == ["TTFT p50", "Duration"]
