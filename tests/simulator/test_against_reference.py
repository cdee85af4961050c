"""The fast engine equals the slow, obvious one: same steps, same time of every token, same fate of every request."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workloads import OPTIONS, fast_outcome, run_fast, run_slow, slow_outcome, workloads


@pytest.mark.parametrize("policy", list(OPTIONS))
@settings(max_examples=400, deadline=None)
@given(data=st.data(), workload=workloads(), block_size=st.sampled_from([1, 4, 16]), pool=st.integers(40, 400))
def test_equals_the_reference_engine(
    policy: str, data: st.DataObject, workload: list[tuple[int, int, int, int]], block_size: int, pool: int
) -> None:
    """Random requests, options, block sizes and pools from starved to ample give identical runs."""
    options: dict[str, Any] = data.draw(OPTIONS[policy])
    blocks = max(2, pool // block_size)
    fast = fast_outcome(run_fast(policy, options, workload, block_size, blocks), len(workload))
    engine, jobs = run_slow(policy, options, workload, block_size, blocks)
    assert fast == slow_outcome(engine, jobs)
