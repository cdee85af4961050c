"""The fast engine equals the slow, obvious one: same steps, same time of every token, same fate of every request."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.corners import missed
from tests.workloads import ON_PIPELINES, OPTIONS, Case, cases, fast_outcome, pipelines, run_slow, slow_outcome

EXAMPLES = 4 * settings().max_examples
"""400; with --hypothesis-profile=thorough 5,000."""


@pytest.mark.parametrize("policy", list(OPTIONS))
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_equals_the_reference_engine(policy: str, data: st.DataObject) -> None:
    """Random requests, contents, options, block sizes and pools from starved to ample give identical runs."""
    case: Case = data.draw(cases(policy))
    assert fast_outcome(case) == slow_outcome(case)


@pytest.mark.parametrize("policy", ON_PIPELINES)
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_pipelines_equal_the_reference_engine(policy: str, data: st.DataObject) -> None:
    """The same on several stages, with several steps under way."""
    case: Case = data.draw(pipelines(policy))
    assert fast_outcome(case) == slow_outcome(case)


CORNERS = {
    "vllm": {
        "rejected",
        "output cut at the model's length",
        "all sequences taken",
        "cut to the threshold",
        "no chunks, no budget",
        "whole prompt does not fit",
        "first chunk does not fit",
        "preemption",
        "preempts itself",
        "preempted in its prompt",
        "preempted while its last token is under way",
        "victim was scheduled in this step",
        "several victims in one step",
        "several least urgent",
        "resumed",
        "outgrew the cache",
        "livelock",
        "hit",
        "hit when resumed",
        "hit beyond the prompt",
        "hit on a block of this step",
        "hit on a free block",
        "hit on a held block",
        "same contents twice",
        "eviction",
    },
    "sarathi": {
        "rejected",
        "watermark",
        "prefills of a batch used up",
        "cut to whole tiles",
        "no whole tile",
        "preemption",
        "preempts itself",
        "preempted in its prompt",
        "several victims in one step",
        "resumed",
        "outgrew the cache",
    },
    "simple_chunking": {"rejected", "watermark", "preemption", "preempts itself", "resumed", "outgrew the cache"},
    "vllm_v0": {
        "rejected",
        "watermark",
        "cut to the budget",
        "preemption",
        "preempts itself",
        "a prompt preempts itself",
        "admission in a step that preempts",
        "resumed",
        "outgrew the cache",
    },
    "static": {
        "rejected",
        "output cut at the model's length",
        "memory is reserved",
        "prompts of a batch differ",
        "a seat stays empty",
    },
    "tgi": {
        "rejected",
        "turned away",
        "memory is reserved",
        "batch is full",
        "too few wait",
        "too few fit",
        "waited long enough",
        "decodes pause",
        "chunk beside decodes",
        "cut to the budget",
        "put back for want of budget",
        "a token each beyond the budget",
        "several prompts in progress",
        "decodes without a look at the queue",
        "hit",
        "whole prompt cached",
    },
    "orca": {"rejected", "output cut at the model's length", "memory is reserved", "prefills of a batch used up"},
    "tensorrt_llm": {
        "rejected",
        "output cut at the model's length",
        "active list is full",
        "places are taken",
        "memory is reserved",
        "waits for the batch to end",
        "prompt waits half-read",
        "preemption",
        "preempts itself",
        "preempted in its prompt",
        "paused for one who had not started",
        "several victims in one step",
        "resumed",
        "outgrew the cache",
        "batch is full",
        "no tokens left",
        "cut to whole units",
        "several rounds",
        "no unit fits",
        "completes behind one that does not",
    },
}


@pytest.mark.parametrize("policy", sorted(CORNERS))
def test_random_runs_reach_every_corner(policy: str) -> None:
    """What the two engines are compared in is not a walk in the middle of the road."""
    assert missed(cases(policy), lambda case: run_slow(case)[0].reached, CORNERS[policy]) == set()
