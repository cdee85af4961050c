"""Two pools equal the slow, obvious system: same steps, same transfers, same time of every token."""

from hypothesis import given, settings

from tests.simulator.disaggregation.cases import PoolCase, outcome, pool_cases, run_fast, slow_outcome

EXAMPLES = 8 * settings().max_examples
"""800; with --hypothesis-profile=thorough 10,000."""


@settings(max_examples=EXAMPLES, deadline=None)
@given(pool_cases())
def test_equals_the_slow_system(case: PoolCase) -> None:
    """Random policies, replicas, memory and links give identical runs."""
    assert outcome(run_fast(case), len(case.workload)) == slow_outcome(case)
