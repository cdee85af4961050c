"""A pipeline of one stage is the plain engine; and what is told of the bubbles of that."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.orca import Orca
from simulator.core import Request
from simulator.costs import LinearCosts
from simulator.engine import simulate
from simulator.metrics.bubbles import bubble_rows, run_bubbles
from simulator.metrics.tokens import token_times_ns
from simulator.pipeline.bubbles import CAUSES
from simulator.pipeline.layers import split_layers
from simulator.pipeline.prices import stage_prices
from simulator.pipeline.times import PipelineTimes
from simulator.runlog import LoggedRun
from simulator.step_times import GpuTimes
from tests.simulator.engines.hosts import hosts
from tests.workloads import ON_PIPELINES, Case, cases, run_fast

EXAMPLES = settings().max_examples
"""100; with --hypothesis-profile=thorough 1,250."""
every_policy = pytest.mark.parametrize("policy", ON_PIPELINES)


def one_stage(case: Case) -> PipelineTimes:
    """The clock of a pipeline of a single stage."""
    (stage,) = split_layers(3, 1)
    return PipelineTimes(stage_prices(case.costs, [stage]), 1, case.sending_ns)


def told(run: LoggedRun, requests: int) -> dict[str, Any]:
    """Tokens, steps and fates."""
    return {
        "tokens": token_times_ns(run, requests),
        "steps": [run.iterations[name].tolist() for name in ("start_ns", "end_ns", "num_decodes", "free_blocks")],
        "requests": sorted(zip(*(values.tolist() for values in run.requests.values()), strict=True)),
    }


@every_policy
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_one_stage_is_the_plain_engine(policy: str, data: st.DataObject) -> None:
    """The same time of every token, the same steps and fates, with one step in flight and with two."""
    case: Case = data.draw(cases(policy))
    plain, staged = run_fast(case), run_fast(case, times=one_stage(case))
    requests = len(case.workload)
    assert told(staged, requests) == told(plain, requests)


@every_policy
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_one_stage_has_the_bubbles_of_the_plain_engine(policy: str, data: st.DataObject) -> None:
    """Both tell the same span and busy time; what one stage idles is for want of requests, or of a plan."""
    case: Case = data.draw(cases(policy))
    [plain], [staged] = run_bubbles(run_fast(case)), run_bubbles(run_fast(case, times=one_stage(case)))
    assert (plain.span_ns.tolist(), plain.busy_ns.tolist()) == (staged.span_ns.tolist(), staged.busy_ns.tolist())
    assert plain.caused_ns.tolist() == staged.caused_ns.tolist()


@pytest.mark.parametrize("hosted", [False, True])
@every_policy
@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(data=st.data())
def test_a_gpu_is_busy_idle_or_has_a_bubble(policy: str, hosted: bool, data: st.DataObject) -> None:
    """Busy time, bubbles and waiting for arrivals are the span, with an engine's host and without; no part is
    negative, and only a host is charged with time of the host."""
    case: Case = data.draw(cases(policy))
    if hosted:
        case = replace(case, host=data.draw(hosts))
    [found] = run_bubbles(run_fast(case))
    assert (found.busy_ns + found.bubble_ns + found.idle_ns).tolist() == found.span_ns.tolist()
    assert min(found.caused_ns.min(), found.busy_ns.min()) >= 0
    assert hosted or not found.caused_ns[0, CAUSES.index("host")]
    row = bubble_rows("run", [found])
    parts = [row[f"{cause}_s"][0] for cause in CAUSES]
    assert row["stage"].tolist() == [0]
    assert sum(parts) == pytest.approx(row["bubble_s"][0])
    assert row["busy_s"][0] + row["bubble_s"][0] + row["idle_s"][0] == pytest.approx(row["span_s"][0])


def test_nobody_served_last() -> None:
    """A request of 1 ns, and one at 100 that is rejected: the span ends with the last step and has no idle time."""
    log = simulate(
        iter([Request(0, 0, 1, 1), Request(1, 100, 50, 1)]),
        Orca(max_model_len=10),
        GpuTimes(LinearCosts(per_token_ns=1)),
        block_size=16,
        num_blocks=10,
    )
    [found] = run_bubbles(log)
    assert (found.span_ns[0], found.busy_ns[0]) == (1, 1)
    assert not found.caused_ns.any()
