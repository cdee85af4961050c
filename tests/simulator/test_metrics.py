"""Percentiles, gaps and summaries against the unrolled samples they stand for."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.orca import Orca
from policies.vllm import Vllm
from simulator.metrics.gap_quantiles import PROBABILITIES, gap_quantiles
from simulator.metrics.quantiles import percentiles, weighted_mean, weighted_percentiles, weighted_quantiles
from simulator.metrics.tokens import Ticks, longest_gaps, token_gaps, token_times_ns
from simulator.runlog import LoggedRun
from tests.simulator.runs import replay
from tests.workloads import POLICIES, cases, run_fast

STATISTICS = ("mean", "p50", "p90", "p99")
SUMMARY = [
    *("label", "policy", "num_requests", "num_finished", "duration_s"),
    *("requests_per_s", "output_tokens_per_s", "total_tokens_per_s"),
    *("iterations", "preemptions", "bubble_fraction", "kv_peak_fraction"),
    *(f"{metric}_{statistic}_s" for metric in ("ttft", "tpot", "itl", "e2e", "queue") for statistic in STATISTICS),
]
REQUESTS = [
    *("request_id", "arrival_s", "prompt_tokens", "output_tokens", "first_scheduled_s", "first_token_s", "finish_s"),
    *("ttft_s", "tpot_s", "itl_max_s", "e2e_s", "preemptions", "status"),
]
ITERATIONS = [
    *("iteration", "start_s", "end_s", "num_decodes", "decode_tokens", "num_prefills", "prefill_tokens"),
    *("kv_tokens", "free_blocks", "running", "waiting"),
]


@given(
    sample=st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(1, 9)), min_size=1, max_size=20),
    percent=st.floats(0, 100),
)
def test_weighted_percentiles(sample: list[tuple[float, int]], percent: float) -> None:
    """A weighted percentile is numpy's of the sample in which each value is repeated."""
    values, counts = np.array([v for v, _ in sample]), np.array([c for _, c in sample])
    expected = np.percentile(np.repeat(values, counts), percent)
    assert weighted_percentiles(values, counts, (percent,)) == [pytest.approx(expected, rel=1e-9, abs=1e-6)]


@given(sample=st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 9)), min_size=1, max_size=20))
def test_weighted_mean(sample: list[tuple[float, int]]) -> None:
    """A weighted mean is that of the sample in which each value is repeated."""
    values, counts = np.array([v for v, _ in sample]), np.array([c for _, c in sample])
    assert weighted_mean(values, counts) == pytest.approx(float(np.repeat(values, counts).mean()))


def test_many_quantiles_of_a_long_sample() -> None:
    """As numpy's where the sample is sorted in parts, ties and a heavy tail included."""
    random = np.random.default_rng(0)
    values, counts = np.round(random.lognormal(-4, 1.5, 700_000), 4), random.integers(0, 5, 700_000)
    wanted = np.array([0.0, *random.random(500), 0.9999, 1.0])
    expected = np.quantile(np.repeat(values, counts), wanted)
    np.testing.assert_allclose(weighted_quantiles(values, counts, wanted), expected, rtol=1e-12)


def test_gap_quantiles() -> None:
    """A thousand probabilities that rise to the maximum and hold every round percentile; none of no gaps."""
    assert len(PROBABILITIES) == 992
    assert (np.diff(PROBABILITIES) > 0).all()
    assert {0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999, 1.0} <= set(PROBABILITIES.tolist())
    table = gap_quantiles(np.array([0.25, 0.5]), np.array([3, 1]))
    by_probability = dict(zip(table["probability"].tolist(), table["itl_s"].tolist(), strict=True))
    assert [by_probability[p] for p in (0.0, 0.5, 0.9, 1.0)] == pytest.approx([0.25, 0.25, 0.425, 0.5])
    assert np.isnan(gap_quantiles(np.empty(0), np.empty(0, np.int64))["itl_s"]).all()


def test_percentile_by_hand() -> None:
    """1, 2, 2, 4: the median is 2, the 90th lies at 2.7 of 3 steps, so 0.7 of the way from 2 to 4."""
    values, counts = np.array([4.0, 1.0, 2.0]), np.array([1, 1, 2])
    assert weighted_percentiles(values, counts, (0.0, 50.0, 90.0, 100.0)) == pytest.approx([1, 2, 3.4, 4])


def test_empty_samples() -> None:
    """Of nothing there is no percentile and no mean."""
    nothing, none = np.array([]), np.array([], np.int64)
    assert all(math.isnan(value) for value in percentiles(nothing, (50.0, 99.0)))
    assert all(math.isnan(value) for value in weighted_percentiles(nothing, none, (50.0, 99.0)))
    assert math.isnan(weighted_mean(nothing, none))


@st.composite
def logs(draw: st.DrawFn) -> tuple[LoggedRun, list[list[int]]]:
    """The log of a random run and its token times."""
    case = draw(cases(draw(st.sampled_from(sorted(POLICIES)))))
    log = run_fast(case)
    return log, token_times_ns(log, len(case.workload))


@settings(max_examples=40, deadline=None)
@given(logs())
def test_gaps(made: tuple[LoggedRun, list[list[int]]]) -> None:
    """The weighted gaps, unrolled, are those between the token times of each request, with their ends."""
    log, times = made
    gaps = token_gaps(log)
    unrolled = sorted(
        (round(end * 1e9), round(gap * 1e9))
        for end, gap, count in zip(gaps.end_s, gaps.gap_s, gaps.count, strict=True)
        for _ in range(count)
    )
    naive = [(b, b - a) for each in times for a, b in pairwise(each)]
    assert unrolled == sorted(naive)
    assert (np.diff(gaps.end_s) >= 0).all()


@settings(max_examples=40, deadline=None)
@given(logs())
def test_longest_gaps(made: tuple[LoggedRun, list[list[int]]]) -> None:
    """The longest gap of each request, also across preemptions and steps that it sat out."""
    log, times = made
    naive = [max((b - a for a, b in pairwise(each)), default=0) for each in times]
    assert longest_gaps(log, Ticks(log), len(times)).tolist() == naive


def test_columns() -> None:
    """The tables begin with the columns that others rely on, in their order."""
    result = replay(Orca(), (0, 5, 3)).result
    assert list(result.summary)[: len(SUMMARY)] == SUMMARY
    assert list(result.requests.columns)[: len(REQUESTS)] == REQUESTS
    assert list(result.iterations.columns)[: len(ITERATIONS)] == ITERATIONS


def test_duration_and_throughput() -> None:
    """Duration runs from the first arrival to the last finish: two requests and five tokens in 4 s after 10 s."""
    row = replay(Orca(), (10, 5, 3), (12, 7, 2)).result.summary
    assert row["duration_s"] == 4
    assert row["requests_per_s"] == 0.5
    assert row["output_tokens_per_s"] == 1.25
    assert row["total_tokens_per_s"] == 17 / 4


def test_tpot_spreads_the_wait() -> None:
    """Time per output token is the mean gap of a request: tokens at 1, 2, 3 and, after an interruption, 11 and 12."""
    policy = Vllm(async_scheduling=False, scheduling_policy="priority", max_model_len=1000)
    outcome = replay(policy, (0, 80, 9, 5), (1, 75, 9, 0), num_blocks=12)
    assert outcome.column("tpot_s") == [11 / 8, 1]
    assert outcome.column("itl_max_s") == [4, 1]
    gaps = outcome.result.gaps
    assert outcome.result.summary["itl_mean_s"] == pytest.approx(float(np.average(gaps.gap_s, weights=gaps.count)))
    assert outcome.result.summary["tpot_mean_s"] == pytest.approx((11 / 8 + 1) / 2)


def test_tpot_leaves_out_single_tokens() -> None:
    """Requests of one token have no gap; the summary is that of the others."""
    row = replay(Orca(), (0, 5, 1), (0, 5, 3)).result.summary
    assert row["tpot_mean_s"] == 1
    assert row["itl_p99_s"] == 1


def test_only_single_tokens() -> None:
    """Without any gap its statistics do not exist, the others do."""
    row = replay(Orca(), (0, 5, 1), (0, 5, 1)).result.summary
    assert all(math.isnan(row[f"{metric}_{kind}_s"]) for metric in ("tpot", "itl") for kind in ("mean", "p50", "p99"))
    assert row["ttft_p50_s"] == row["e2e_p50_s"] == 1


def test_nothing_finished() -> None:
    """A run in which every request is rejected has counts, and no times."""
    outcome = replay(Orca(max_model_len=4), (0, 5, 1), (1, 5, 1))
    row = outcome.result.summary
    assert (row["num_requests"], row["num_finished"], row["iterations"], row["kv_peak_fraction"]) == (2, 0, 0, 0)
    assert math.isnan(row["duration_s"])
    assert math.isnan(row["requests_per_s"])
    assert outcome.column("ttft_s") == [None, None]


def test_rejected_requests_do_not_count() -> None:
    """A rejected request is in the number of requests and in nothing else."""
    outcome = replay(Orca(max_model_len=10), (0, 50, 5), (2, 5, 2))
    row: dict[str, Any] = outcome.result.summary
    assert (row["num_requests"], row["num_finished"]) == (2, 1)
    assert row["output_tokens_per_s"] == 2 / 4  # from the first arrival, at 0, to the finish at 4
    for name in ("first_scheduled_s", "first_token_s", "finish_s", "ttft_s", "tpot_s", "itl_max_s", "e2e_s"):
        assert outcome.column(name)[0] is None
