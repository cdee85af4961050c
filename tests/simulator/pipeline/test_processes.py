"""The recursion of `simulator.pipeline.times` against stages that are SimPy processes."""

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.pipeline.times import PipelineTimes
from tests.simulator.pipeline.processes import Job, Stages
from tests.workloads import ON_PIPELINES, POLICIES, Case, pipelines, run_fast

EXAMPLES = settings().max_examples
"""100; with --hypothesis-profile=thorough 1,250."""


class Recorded(PipelineTimes):
    """Keeps what each micro-batch is given: when it is planned, prices, and what it waits for."""

    def __init__(self, case: Case, times: PipelineTimes) -> None:
        self.__dict__ |= times.__dict__
        self.case, self.jobs = case, list[Job]()

    def book(self, ends_ns: "array[int]", now_ns: int, tokens: int, decodes: int, *priced: Any) -> int:
        """See `StepTimes.book`."""
        prices = [int(price) for price in self._stages_ns(decodes, *priced)]
        sending = self.case.sending_ns(tokens) if tokens else 0
        waits_ns = self.depends_ns if decodes else 0
        before = [job for job, end in zip(self.jobs, ends_ns, strict=True) if end == waits_ns] if waits_ns else []
        self.jobs.append(Job(now_ns, prices, sending, before[-1] if before else None))
        assert bool(before) == bool(waits_ns)
        return super().book(ends_ns, now_ns, tokens, decodes, *priced)


@pytest.mark.parametrize("policy", ON_PIPELINES)
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_stages_as_processes_work_at_the_same_times(policy: str, data: st.DataObject) -> None:
    """Given when each micro-batch was planned, what it costs, and whose tokens it continues, every stage starts and
    ends it at the same nanosecond."""
    case: Case = data.draw(pipelines(policy))
    made = POLICIES[case.policy](**case.options)
    plain = case.times(made)
    assert isinstance(plain, PipelineTimes)
    times = Recorded(case, plain)
    run = run_fast(case, times=times)
    Stages(times.stages).run(times.jobs)
    columns = times.log.columns()
    worked = [
        list(zip(*rows, strict=True)) for rows in zip(columns.start_ns.tolist(), columns.end_ns.tolist(), strict=True)
    ]
    assert [job.worked for job in times.jobs] == worked
    assert [job.worked[-1][1] for job in times.jobs] == run.iterations["end_ns"].tolist()


def test_a_stage_works_while_its_activations_are_sent() -> None:
    """Two micro-batches of 2 on each of two stages, sent in 5: the second follows at once on both."""
    jobs = [Job(0, [2, 2], 5), Job(0, [2, 2], 5)]
    Stages(2).run(jobs)
    assert [job.worked for job in jobs] == [[(0, 2), (7, 9)], [(2, 4), (9, 11)]]


def test_a_micro_batch_waits_for_the_tokens_it_continues() -> None:
    """It may start on the first stage when the one before it has left the last."""
    first = Job(0, [2, 3], 1)
    jobs = [first, Job(1, [1, 1], 1, after=first)]
    Stages(2).run(jobs)
    assert [job.worked for job in jobs] == [[(0, 2), (3, 6)], [(6, 7), (8, 9)]]
