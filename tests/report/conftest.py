"""Results shared by the tests of this folder, made once."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.results import PolicyResult, TokenGaps

from .synthetic import pipelined, simulate, summary, workload


@pytest.fixture(scope="session")
def results() -> list[PolicyResult]:
    """Three policies of different behaviour on 60 requests."""
    load = workload(60, 6)
    return [
        simulate("orca", load, chunk=100_000, seats=16),
        simulate("sarathi", load, chunk=256),
        simulate("prefill-first", load, chunk=4096, batched=False),
    ]


@pytest.fixture(scope="session")
def staged(results: list[PolicyResult]) -> list[PolicyResult]:
    """The same policies in three pipeline stages."""
    return [pipelined(result, 3) for result in results]


@pytest.fixture(scope="session")
def nothing(results: list[PolicyResult]) -> PolicyResult:
    """A policy that rejected every request and ran no step."""
    requests = results[0].requests.assign(status="rejected")
    for name in requests.columns:
        if name.endswith("_s") and name != "arrival_s":
            requests[name] = np.nan
    empty = TokenGaps(np.array([]), np.array([]), np.array([], np.int64))
    bare = replace(results[0], label="nothing", requests=requests, gaps=empty)
    bare = replace(bare, iterations=results[0].iterations.iloc[:0])
    return replace(bare, summary=summary(bare))
