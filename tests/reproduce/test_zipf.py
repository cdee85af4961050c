"""The requests of SARATHI's pipeline experiment."""

import numpy as np
import pytest

from simulator.reproduce.zipf import split_lengths, write_requests, zipf_lengths
from tests.house.paths import ROOT


def test_the_committed_requests_are_those_of_the_generator(tmp_path):
    """Byte for byte."""
    write_requests(tmp_path / "requests.csv")
    assert (tmp_path / "requests.csv").read_bytes() == (ROOT / "results/sarathi-pipeline/requests.csv").read_bytes()


def test_lengths_follow_zipfs_law():
    """Mean and deciles of 400,000 are those of weights rank^-0.4 from 1024 to 4096 tokens, within 1 %."""
    lengths, possible = zipf_lengths(400_000), np.arange(1024, 4097)
    weights = (possible - 1023.0) ** -0.4
    shares = weights / weights.sum()
    assert lengths.mean() == pytest.approx((possible * shares).sum(), rel=0.01)
    for decile in range(1, 10):
        exact = possible[np.searchsorted(np.cumsum(shares), decile / 10)]
        assert np.quantile(lengths, decile / 10) == pytest.approx(exact, rel=0.01)
    assert (lengths.min(), lengths.max() <= 4096) == (1024, True)


def test_the_shortest_is_as_frequent_as_zipf_says():
    """One over the sum of all weights; the second by 2 to the power of theta less."""
    lengths = zipf_lengths(400_000, 1, 50, theta=0.8)
    weights = np.arange(1, 50) ** -0.8
    assert (lengths == 1).mean() == pytest.approx(1 / weights.sum(), rel=0.02)
    assert (lengths == 2).mean() == pytest.approx(2**-0.8 / weights.sum(), rel=0.02)


def test_another_seed_gives_other_lengths():
    """And the same one the same."""
    assert (zipf_lengths(50, seed=1) == zipf_lengths(50, seed=1)).all()
    assert (zipf_lengths(50, seed=1) != zipf_lengths(50, seed=2)).any()


def test_ten_prompt_tokens_an_output_token():
    """Of 1024 tokens 930.9 and 93.1, cut to whole ones; 1100 divide."""
    prompts, outputs = split_lengths(np.array([1024, 1100]))
    assert (prompts.tolist(), outputs.tolist()) == ([930, 1000], [93, 100])
