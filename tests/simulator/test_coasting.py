"""Iterations whose plan is foregone run without asking the policy, and as they would have if it had been asked."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.orca import Orca
from policies.vllm import Vllm
from simulator.core import DECODES_UNTIL_ARRIVAL, Batch, Request, View
from simulator.costs import LinearCosts, StepCosts
from simulator.engine import simulate
from simulator.policy import Planner, Policy, PolicyBase
from simulator.runlog import ITERATION_COLUMNS, LoggedRun
from simulator.step_times import GpuTimes
from simulator.table_costs import TableCosts
from tests.simulator.tables import small_table
from tests.workloads import OPTIONS, POLICIES, UNLIKE_COSTS, workloads

COSTS = LinearCosts(fixed_ns=1000, per_token_ns=10, per_context_token_ns=1)


class Counted:
    """A policy whose plans are counted; with `asked` its promises are kept from the scheduler."""

    def __init__(self, policy: Policy, *, asked: bool = False) -> None:
        self.policy: Any = policy
        self.asked = asked
        self.plans = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def start(self, view: View, *, contents: bool) -> "CountedPlanner":
        """The plans of its engines are counted here."""
        return CountedPlanner(self, self.policy.start(view, contents=contents))


class CountedPlanner:
    """A planner of `counted`."""

    def __init__(self, counted: Counted, planner: Planner) -> None:
        self.counted, self.planner = counted, planner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.planner, name)

    def plan(self, view: View) -> Batch | None:
        self.counted.plans += 1
        batch = self.planner.plan(view)
        if batch is None or not self.counted.asked:
            return batch
        return batch.unpromised()


def run(policy: Any, *requests: tuple[int, int, int], costs: StepCosts = COSTS, num_blocks: int = 1000) -> LoggedRun:
    jobs = (Request(index, *facts) for index, facts in enumerate(requests))
    return simulate(jobs, policy, GpuTimes(costs), block_size=16, num_blocks=num_blocks)


def columns(log: LoggedRun) -> dict[str, Any]:
    parts = {"stays": log.stays, "emissions": log.emissions, "requests": log.requests}
    values = {name: log.iterations[name].tolist() for name in ITERATION_COLUMNS}
    return values | {f"{part}.{name}": column.tolist() for part, rows in parts.items() for name, column in rows.items()}


@pytest.mark.parametrize(("depth", "plans"), [(1, 2), (2, 4)])
def test_a_lone_request_is_hardly_planned(depth: int, plans: int) -> None:
    """A thousand iterations, two plans: for the prompt, which promises the decodes as well, and one that finds nothing.
    With two steps in flight two are planned before coasting begins, and two find nothing."""
    policy = Counted(Vllm(async_scheduling=depth == 2, max_model_len=4096))
    log = run(policy, (0, 100, 1000))
    assert len(log.iterations) == 1000
    assert policy.plans == plans


def test_asking_costs_a_plan_a_step() -> None:
    """What coasting saves: without promises there are as many plans as iterations, and the last that finds nothing."""
    policy = Counted(Vllm(async_scheduling=False, max_model_len=4096), asked=True)
    run(policy, (0, 100, 1000))
    assert policy.plans == 1001


def test_finishes_do_not_stop_it_where_nobody_waits() -> None:
    """Ten requests that finish one after the other need no more plans than a lone one."""
    policy = Counted(Orca(max_batch_size=10))
    log = run(policy, *((0, 10, 100 + index) for index in range(10)))
    assert policy.plans == 2
    assert log.iterations["num_decodes"].tolist()[-10:] == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]


def test_who_waits_is_admitted_at_the_finish() -> None:
    """Two places, three requests: asked when a place is free, and when somebody has come."""
    policy = Counted(Orca(max_batch_size=2))
    log = run(policy, (0, 10, 50), (0, 10, 90), (0, 10, 5))
    assert log.iterations["num_prefills"].tolist()[50] == 1
    assert policy.plans == 3  # two prompts, and decodes until a finish; the third prompt; nothing


def test_stretches_not_iterations_are_logged() -> None:
    """A thousand like iterations are one row beside their ends: of the prompt, and of the decodes."""
    log = run(Vllm(async_scheduling=False, max_model_len=4096), (0, 100, 1000))
    assert log.iterations._stretches["iteration"].tolist() == [0, 1]


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=60, deadline=None)
@given(data=st.data(), workload=workloads(), pool=st.integers(20, 400), costs=st.sampled_from([COSTS, UNLIKE_COSTS]))
def test_the_same_as_asking_in_every_step(
    name: str, data: st.DataObject, workload: Any, pool: int, costs: StepCosts
) -> None:
    """Whatever is promised, the logs are the same, and never are there more plans."""
    options = data.draw(OPTIONS[name])
    policies = [Counted(POLICIES[name](**options), asked=asked) for asked in (False, True)]
    coasting, asking = (
        simulate(
            (Request(i, *facts) for i, facts in enumerate(workload)),
            policy,
            GpuTimes(costs),
            block_size=4,
            num_blocks=pool,
        )
        for policy in policies
    )
    assert columns(coasting) == columns(asking)
    assert policies[0].plans <= policies[1].plans


def test_steps_beyond_the_table_are_counted_alike(tmp_path: Path) -> None:
    """Contexts grow out of what the table measured while the scheduler coasts."""
    counts, ends = [], []
    for asked in (False, True):
        costs = TableCosts(small_table(tmp_path))
        policy = Counted(Vllm(async_scheduling=False, max_model_len=4096), asked=asked)
        log = run(policy, (0, 1000, 80), (0, 900, 300), costs=costs)
        counts.append(costs.steps_beyond_decode_context)
        ends.append(log.iterations["end_ns"].tolist())
    assert (
        counts[0] == counts[1] == 5 + 175
    )  # of 1024: where 1000 + k and 900 + k do on average, then where 900 + k does
    assert ends[0] == ends[1]


@dataclass(frozen=True)
class Ahead(PolicyBase):
    """Reserves 32 slots more than the prompt, which long outputs outgrow, and promises all it can."""

    def reserve_tokens(self, request: Request) -> int:
        return request.known + 32

    def plan(self, view: View) -> Batch | None:
        if view.waiting:
            return Batch([(request, request.known) for request in view.waiting], holds=Batch.UNTIL_ARRIVAL)
        return DECODES_UNTIL_ARRIVAL if view.decoding else None


def test_outgrown_reservations() -> None:
    """Blocks beyond a reservation are taken when it is used up, coasting or not."""
    requests = [(0, 20, 100), (0, 33, 7), (5000, 16, 64)]
    assert columns(run(Counted(Ahead()), *requests)) == columns(run(Counted(Ahead(), asked=True), *requests))
