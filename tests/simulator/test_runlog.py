"""The compressed log, written out: three stretches of two, one and three iterations."""

import numpy as np
import pytest

from simulator.runlog import Iterations, RunLog, as_iterations, narrowed

ENDS = [10, 20, 45, 50, 60, 70]


@pytest.fixture
def iterations() -> Iterations:
    """Decodes of two requests from 0, a prompt after a pause at 40, then three decode."""
    stretches = {
        "iteration": [0, 2, 3],
        "start_ns": [0, 40, 45],
        "prefill_tokens": [0, 7, 0],
        "kv_tokens": [102, 111, 114],
        "num_decodes": [2, 0, 3],
        "num_prefills": [0, 1, 0],
        "running": [2, 3, 3],
        "waiting": [1, 0, 0],
    }
    return Iterations(np.array(ENDS), np.array([9, 9, 8, 8, 8, 7]), {k: np.array(v) for k, v in stretches.items()})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("end_ns", ENDS),
        ("start_ns", [0, 10, 40, 45, 50, 60]),
        ("free_blocks", [9, 9, 8, 8, 8, 7]),
        ("num_decodes", [2, 2, 0, 3, 3, 3]),
        ("num_prefills", [0, 0, 1, 0, 0, 0]),
        ("prefill_tokens", [0, 0, 7, 0, 0, 0]),
        ("kv_tokens", [102, 104, 111, 114, 117, 120]),
        ("running", [2, 2, 3, 3, 3, 3]),
        ("waiting", [1, 1, 0, 0, 0, 0]),
    ],
)
def test_columns(iterations: Iterations, name: str, values: list[int]) -> None:
    """Start times and KV tokens go on within a stretch; the rest is repeated."""
    assert iterations[name].tolist() == values
    assert len(iterations) == 6


def test_single_starts(iterations: Iterations) -> None:
    """Of the first iteration of a stretch its own, of the others the end of the one before."""
    assert iterations.starts_ns(np.array([5, 2, 0, 3])).tolist() == [60, 40, 0, 45]


def test_by_stretch(iterations: Iterations) -> None:
    """What does not change within a stretch, how many iterations it has and how long it took."""
    assert iterations.of_stretches("num_decodes").tolist() == [2, 0, 3]
    assert iterations.of_stretches("length").tolist() == [2, 1, 3]
    assert iterations.of_stretches("time_ns").tolist() == [20, 5, 25]


def test_nothing_ran() -> None:
    """A log without iterations has empty columns."""
    iterations = as_iterations(RunLog(100))
    assert len(iterations) == 0
    names = ("start_ns", "end_ns", "kv_tokens", "free_blocks", "num_decodes")
    assert [len(iterations[name]) for name in names] == [0] * 5
    assert len(iterations.of_stretches("time_ns")) == 0


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([], np.int16),
        ([-(2**15), 2**15 - 1], np.int16),
        ([2**15], np.int32),
        ([-(2**31)], np.int32),
        ([2**31], np.int64),
    ],
)
def test_narrowed(values: list[int], dtype: type) -> None:
    """The smallest of three types that holds them."""
    column = narrowed(np.array(values, np.int64))
    assert (column.dtype, column.tolist()) == (dtype, values)
