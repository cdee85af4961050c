"""Engines with a host: the fast clock equals the slow, obvious one, and coasting changes nothing."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulator.engines.hosts import hosts
from tests.workloads import OPTIONS, Case, cases, fast_outcome, slow_outcome

EXAMPLES = settings().max_examples
"""100; with --hypothesis-profile=thorough 1,250."""


@pytest.mark.parametrize("policy", list(OPTIONS))
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_equals_the_reference_engine(policy: str, data: st.DataObject) -> None:
    """Random hosts, with and without steps in flight: every step starts and ends alike, and every token comes alike."""
    case: Case = replace(data.draw(cases(policy)), host=data.draw(hosts))
    assert fast_outcome(case) == slow_outcome(case)
