"""Random pipelined runs come to the corners that one stage does not have."""

from collections import Counter

import pytest

from simulator.core import DECODING, Request
from simulator.pipeline.scheduler import PipelinedScheduler, _Flight
from tests.corners import missed
from tests.workloads import Case, pipelines, run_fast, run_slow

CORNERS = {
    "vllm": {
        "two cohorts become one",
        "a step with nothing to do",
        "a request under way is preempted",
        "preempted in its prompt",
        "preempted while its last token is under way",
        "resumed",
    },
    "simple_chunking": {"two cohorts become one", "a prompt comes back among others", "preempted in its prompt"},
    "vllm_v0": {"two cohorts become one", "preemption", "resumed"},
    "sarathi": {"preemption", "preempted in its prompt", "resumed"},
}
"""Other policies than vLLM's skip requests under way, victims too; most leave no decode out: cohorts never meet."""


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Corners of the package's scheduler, counted while it runs."""
    counts: Counter[str] = Counter()
    give_back, preempt = PipelinedScheduler._return, PipelinedScheduler._preempt

    def counting_return(self: PipelinedScheduler, flight: _Flight) -> None:
        counts["two cohorts become one"] += flight.cohort.count > 0 and self.decodes.count > 0
        counts["a prompt comes back among others"] += bool(flight.prompts) and bool(self.view.prefilling)
        give_back(self, flight)

    def counting_preempt(self: PipelinedScheduler, request: Request) -> None:
        elsewhere = request.state == DECODING and request.cohort is not self.decodes
        counts["a request under way is preempted"] += elsewhere or request.state == Request.FINISHING
        preempt(self, request)

    monkeypatch.setattr(PipelinedScheduler, "_return", counting_return)
    monkeypatch.setattr(PipelinedScheduler, "_preempt", counting_preempt)
    return counts


@pytest.mark.parametrize("policy", list(CORNERS))
def test_random_runs_reach_every_corner(policy: str, reached: Counter[str]) -> None:
    """What the two engines are compared in has steps with nothing to do, victims under way and cohorts that merge."""

    def visit(case: Case) -> Counter[str]:
        seen = reached.copy()
        run_fast(case)
        return reached - seen + run_slow(case)[0].reached

    assert missed(pipelines(policy), visit, CORNERS[policy]) == set()
