"""Several replicas, and who of them serves a request."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.orca import Orca
from simulator.core import Request
from simulator.costs import LinearCosts
from simulator.engine import simulate
from simulator.metrics.tokens import token_times_ns
from simulator.routers import RouterName, make_router, router_names
from simulator.runlog import LoggedRun
from simulator.step_times import GpuTimes
from tests.simulator.conftest import Simulate
from tests.workloads import ON_PIPELINES, POLICIES, Case, cases, finds_prefixes, pipelines, requests_of, run_slow

STEP = LinearCosts(fixed_ns=10)


def serve(workload: Sequence[tuple[int, int, int]], replicas: int, router: RouterName, seed: int = 0) -> LoggedRun:
    """(arrival, prompt, output) of each request, with one request at a time on each replica."""
    requests = (Request(index, *facts) for index, facts in enumerate(workload))
    clocks = [GpuTimes(STEP) for _ in range(replicas)]
    policy = Orca(max_batch_size=1)
    return simulate(requests, policy, *clocks, block_size=16, num_blocks=99, router=make_router(router, seed))


def replica_of(run: LoggedRun) -> list[int]:
    """By request."""
    return [replica for _, replica in sorted(zip(run.requests["request"], run.requests["replica"], strict=True))]


def test_in_turns() -> None:
    """Round robin: requests 0, 2, 4 to the first replica, 1 and 3 to the second, whatever their lengths."""
    run = serve([(0, 5, 100), (0, 5, 1), (0, 5, 1), (0, 5, 1), (0, 5, 1)], 2, "round-robin")
    assert replica_of(run) == [0, 1, 0, 1, 0]


def test_to_who_has_least_to_serve() -> None:
    """Request 0 has 14 tokens; 1, 2 and 3 (6 each) go to the other replica while it has less: 0, 6, 12. Then it has 18,
    and 4 goes to the first."""
    run = serve([(0, 5, 9), (0, 5, 1), (0, 5, 1), (0, 5, 1), (0, 5, 1)], 2, "least-outstanding-tokens")
    assert replica_of(run) == [0, 1, 1, 1, 0]


def test_who_has_ended_does_not_count() -> None:
    """Request 0 (one step of 10 ns) has ended when 1 arrives at 11; both replicas are free, and the first is taken. At
    15 it is not free."""
    run = serve([(0, 5, 1), (11, 5, 2), (15, 5, 1)], 2, "least-outstanding-tokens")
    assert replica_of(run) == [0, 0, 1]


def test_a_request_that_ends_as_another_arrives_still_counts() -> None:
    """Arrivals go first: at 10 request 0 has its output, but is not yet off the books."""
    assert replica_of(serve([(0, 5, 1), (10, 5, 1)], 2, "least-outstanding-tokens")) == [0, 1]


def test_at_random_by_the_seed() -> None:
    """The same seed shares out alike, another otherwise, and nobody goes empty-handed."""
    workload = [(0, 5, 1)] * 64
    once, again, other = (replica_of(serve(workload, 4, "random", seed)) for seed in (1, 1, 2))
    assert once == again != other
    assert set(once) == {0, 1, 2, 3}


def test_replicas_work_side_by_side() -> None:
    """Four requests of three steps (10 ns each) on two replicas, one at a time: two take 60 ns, four as well."""
    run = serve([(0, 5, 3)] * 4, 2, "round-robin")
    assert token_times_ns(run, 4) == [[10, 20, 30], [10, 20, 30], [40, 50, 60], [40, 50, 60]]


@pytest.mark.parametrize("policy", list(POLICIES))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_each_replica_is_an_engine_of_its_own(policy: str, data: st.DataObject) -> None:
    """With requests in turns every replica gives its requests the token times that the slow engine gives them alone."""
    ways = [cases(policy), pipelines(policy)] if policy in ON_PIPELINES else [cases(policy)]
    case: Case = data.draw(st.one_of(ways))
    replicas = data.draw(st.integers(2, 4))
    made = POLICIES[case.policy](**case.options)
    run = simulate(
        requests_of(case),
        made,
        *(case.times(made) for _ in range(replicas)),
        block_size=case.block_size,
        num_blocks=case.blocks,
        prefixes=finds_prefixes(case.options),
    )
    times = token_times_ns(run, len(case.workload))
    for replica in range(replicas):
        part = slice(replica, None, replicas)
        if case.workload[part]:
            _, jobs = run_slow(replace(case, workload=case.workload[part], texts=case.texts[part]))
            assert times[part] == [job.times for job in jobs]


def test_replicas_without_work_are_drawn(simulate: Simulate, here: Path) -> None:
    """Every request is rejected by both replicas, and the queue plot says so."""
    (here / "long.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,100000000,1\n5,100000000,3\n")
    answer = simulate("long.csv", "--policy", "vllm", "--replicas", 2, "--out", "run", drawn=True)
    assert answer.code == 0
    assert (here / "run/queue.png").exists()


def test_routers_by_name() -> None:
    """Each name makes a router."""
    for name in router_names():
        assert make_router(name)(Request(0, 0, 1, 1), [serve_nothing(), serve_nothing()]) in (0, 1)  # type: ignore[arg-type]


def serve_nothing() -> object:
    """A replica without requests."""
    return type("Idle", (), {"outstanding_tokens": 0})()
