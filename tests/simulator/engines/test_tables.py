"""What stays true of requests.csv and iterations.csv whatever the host does."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.metrics.summary import policy_result
from simulator.results import PolicyResult
from tests.simulator.engines.hosts import hosts
from tests.simulator.runs import SECOND, trace_of
from tests.workloads import POLICIES, Case, cases, run_fast


def result_of(case: Case) -> tuple[PolicyResult, int]:
    """The tables of a run, and for how many nanoseconds its host updates after each output at least."""
    trace = trace_of([(arrival / SECOND, *rest) for arrival, *rest in case.workload])
    assert case.host is not None
    return policy_result("label", "policy", {}, trace, run_fast(case)), case.times(
        POLICIES[case.policy](**case.options)
    ).pause_ns(0)


@pytest.mark.parametrize("policy", ["vllm", "orca"])
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_times_are_in_order(policy: str, data: st.DataObject) -> None:
    """No step starts before the one before it ends, nor, without steps in flight, before the host is done with that;
    requests are seen after they arrive, scheduled after they are seen, and served after that."""
    case = replace(data.draw(cases(policy)), host=data.draw(hosts))
    result, pause_ns = result_of(case)
    start_ns, end_ns = (np.rint(result.iterations[name] * SECOND) for name in ("start_s", "end_s"))
    assert (start_ns <= end_ns).all()
    between = 0 if case.options.get("async_scheduling") else pause_ns
    assert (start_ns[1:] >= end_ns[:-1] + between).all()
    assert case.host is not None
    arrival_s, delivery_s = case.host.mode.arrival_us / 1e6, case.host.mode.delivery_us / 1e6
    queue_s, ttft_s = (result.requests[name] for name in ("queue_s", "ttft_s"))
    some = ~np.isnan(queue_s)
    assert (queue_s[some] >= arrival_s - 1e-12).all()
    some = ~np.isnan(ttft_s)
    assert (ttft_s[some] >= queue_s[some] + delivery_s - 1e-12).all()
