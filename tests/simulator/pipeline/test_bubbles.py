"""Bubbles of random runs: they are all of the time that is not work, and equal those found one gap at a time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.metrics.bubbles import request_bubbles_ns, run_bubbles
from simulator.metrics.tokens import Ticks
from simulator.pipeline.bubbles import CAUSES
from tests.simulator.pipeline.slow_bubbles import slow_bubbles
from tests.simulator.runs import Watched
from tests.workloads import ON_PIPELINES, POLICIES, Case, pipelines, run_fast

EXAMPLES = settings().max_examples
"""100; with --hypothesis-profile=thorough 1,250."""
random_pipelines = pytest.mark.parametrize("policy", ON_PIPELINES)


@random_pipelines
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_equals_one_gap_at_a_time(policy: str, data: st.DataObject) -> None:
    """Every cause of every stage, and the bubbles before every micro-batch, to the nanosecond."""
    case: Case = data.draw(pipelines(policy))
    run = run_fast(case)
    [found], slow = run_bubbles(run), slow_bubbles(run)
    for stage, parts in enumerate(slow.of_stages):
        assert dict(zip((*CAUSES, "arrivals"), found.caused_ns[stage].tolist(), strict=True)) == {
            cause: parts[cause] for cause in (*CAUSES, "arrivals")
        }
    assert found.of_batch_ns.tolist() == slow.before


@random_pipelines
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_every_nanosecond_has_one_cause(policy: str, data: st.DataObject) -> None:
    """Busy time, bubbles and waiting for arrivals are the span of each stage; no cause is negative; the host has no
    part. Spans with what is before and after are equally long on all stages, and micro-batches have all bubbles."""
    case: Case = data.draw(pipelines(policy))
    [found] = run_bubbles(run_fast(case))
    assert (found.busy_ns + found.bubble_ns + found.idle_ns).tolist() == found.span_ns.tolist()
    assert found.caused_ns.min() >= 0
    assert not found.caused_ns[:, CAUSES.index("host")].any()
    assert len(set((found.before_ns + found.span_ns + found.after_ns).tolist())) == 1
    assert min(found.before_ns.min(), found.after_ns.min()) >= 0
    assert found.of_batch_ns.sum() == found.bubble_ns.sum()


@random_pipelines
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_a_request_has_the_bubbles_of_its_micro_batches(policy: str, data: st.DataObject) -> None:
    """Watched step by step: whoever is computed in a micro-batch waits for what is before it."""
    case: Case = data.draw(pipelines(policy))
    watched = Watched(POLICIES[case.policy](**case.options))
    run = run_fast(case, policy=watched)
    [found], requests = run_bubbles(run), len(case.workload)
    slow = [0] * requests
    for members, bubble_ns in zip(watched.steps, found.of_batch_ns.tolist(), strict=True):
        for index in members:
            slow[index] += bubble_ns
    assert request_bubbles_ns(run, Ticks(run), [found], requests).tolist() == slow
