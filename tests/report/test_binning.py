"""Runs in a few hundred numbers."""

import numpy as np
import pytest

from simulator.metrics.quantiles import weighted_quantiles
from simulator.report.binning import alone, busiest_window, gap_bands, step_means
from simulator.results import TokenGaps


def test_weighted_quantiles_are_numpys_of_the_repeated_values() -> None:
    """Counts stand for repetition, zero counts included; interpolation is linear."""
    random = np.random.default_rng(0)
    shares = np.array([0, 0.1, 0.5, 0.9, 0.99, 0.999, 1])
    for size in (1, 2, 3, 10, 200):
        values, counts = random.lognormal(size=size), random.integers(0, 5, size)
        counts[0] = 1
        expected = np.quantile(np.repeat(values, counts), shares)
        assert weighted_quantiles(values, counts, shares) == pytest.approx(expected)


def test_quantiles_of_nothing_are_nan() -> None:
    """No values, or values that nobody saw."""
    for values, counts in (([], []), ([1.0], [0])):
        found = weighted_quantiles(np.array(values), np.array(counts, np.int64), np.array([0.5]))
        assert np.isnan(found).all()


def test_a_bin_has_the_gaps_that_end_in_it() -> None:
    """A gap on an inner edge belongs to the later bin, one on the last edge to the last bin."""
    gaps = TokenGaps(np.array([0.5, 1.0, 3.0]), np.array([1.0, 2.0, 4.0]), np.array([1, 3, 1]))
    bands = gap_bands(gaps, np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.5, 1.0]))
    assert bands.tolist() == [[1, 1], [2, 2], [4, 4]]


def test_a_bin_is_alone_between_bins_without_a_value() -> None:
    """At both ends too; two beside each other are not."""
    values = np.array([1, np.nan, 2, 3, np.nan, 4, np.nan, np.nan, 5])
    assert alone(values).nonzero()[0].tolist() == [0, 5, 8]
    assert alone(np.array([1.0])).tolist() == [True]


def test_a_bins_mean_weighs_steps_by_the_time_in_it() -> None:
    """1 s of 10 tokens and 3 s of 50 in a bin of 4 s; then nothing; then the run is over."""
    start, end = np.array([0.0, 1.0]), np.array([1.0, 5.0])
    means = step_means(start, end, [np.array([10.0, 50.0])], np.array([0.0, 4.0, 8.0, 12.0]))[0]
    assert means[:2] == pytest.approx([40, 50])
    assert np.isnan(means[2])


def test_idle_bins_are_zero_and_overlapping_steps_average() -> None:
    """Two steps at once count for one of their mean; a pause between steps is nothing."""
    start, end = np.array([0.0, 0.0, 2.0]), np.array([1.0, 1.0, 3.0])
    means = step_means(start, end, [np.array([10.0, 30.0, 7.0])], np.array([0.0, 1.0, 2.0, 3.0]))[0]
    assert means == pytest.approx([20, 0, 7])


def test_steps_out_of_order_give_the_same_means() -> None:
    """Replicas' steps may come one replica after the other."""
    random = np.random.default_rng(1)
    start = random.uniform(0, 100, 500)
    end, values, edges = start + random.uniform(0, 3, 500), random.uniform(0, 9, 500), np.linspace(0, 104, 27)
    order = np.argsort(start)
    one = step_means(start, end, [values], edges)[0]
    other = step_means(start[order], end[order], [values[order]], edges)[0]
    assert one == pytest.approx(other, nan_ok=True)


def test_the_busiest_window_has_the_most_tokens() -> None:
    """Two requests close together beat a larger one alone."""
    arrival, tokens = np.array([50.0, 0.0, 20.0, 24.0]), np.array([90.0, 10.0, 60.0, 60.0])
    assert busiest_window(arrival, tokens, 10.0) == 20
    assert np.isnan(busiest_window(np.array([]), np.array([]), 10.0))
