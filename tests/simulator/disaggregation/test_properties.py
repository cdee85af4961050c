"""What holds for any two pools: memory comes back, no corner is left out, and running ahead changes nothing."""

import pytest
import simpy
from hypothesis import given, settings

from policies.vllm import Vllm
from simulator.disaggregation import system
from simulator.disaggregation.schedulers import DecodeScheduler
from simulator.engines.times import EngineTimes
from simulator.pipeline.layers import split_layers
from simulator.pipeline.prices import stage_prices
from simulator.pipeline.times import PipelineTimes
from simulator.policy import Policy
from simulator.scheduler import Scheduler
from tests.corners import missed
from tests.reference_host import Host
from tests.simulator.disaggregation.cases import PoolCase, Side, outcome, pool_cases, run_fast, slow_system
from tests.simulator.engines.hosts import hosts
from tests.workloads import COSTS


@settings(deadline=None)
@given(pool_cases())
def test_memory_returns_to_full(case: PoolCase) -> None:
    """At the end all blocks of both pools are free, and no KV is left."""
    schedulers: dict[Scheduler, None] = {}
    run_fast(case, lambda scheduler: schedulers.setdefault(scheduler))
    for scheduler in schedulers:
        assert scheduler.view.free_blocks == scheduler.view.total_blocks
        assert scheduler.kv_tokens == 0
        assert scheduler.outstanding_tokens == 0


CORNERS = {
    "refused for the decode pool",
    "lost while its token was under way",
    "no room at once",
    "room later",
    "someone preempted goes first",
    "no place in the batch",
    "queue on the wire",
    "layers on the way as it ends",
    "blocks of the prefill pool were waited for",
}


def test_random_runs_reach_every_corner() -> None:
    """The comparison with the slow system is not a walk in the middle of the road."""
    assert missed(pool_cases(), lambda case: slow_system(case)[0].reached, CORNERS) == set()


@settings(deadline=None)
@given(pool_cases(), hosts)
def test_running_ahead_changes_nothing_beside_a_host(case: PoolCase, host: Host) -> None:
    """With an engine's host each step planned at its own time gives the run that coasting gives."""

    def times(policy: Policy) -> EngineTimes:
        ways = {"in_flight": policy.steps_in_flight > 1, "workers": host.workers}
        return EngineTimes(COSTS, host.mode, host.captured, host.layers, **ways)

    def run() -> dict[str, object]:
        return outcome(
            run_fast(case, prefill=case.prefill.pool(times), decode=case.decode.pool(times)), len(case.texts)
        )

    ahead = run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DecodeScheduler, "coast", lambda *_: None)
        assert run() == ahead


@settings(deadline=None)
@given(pool_cases())
def test_pools_of_pipelines_serve_everybody(case: PoolCase) -> None:
    """With two stages each in both pools the same requests are refused, and the others get all their tokens."""

    def times(_: Policy) -> PipelineTimes:
        return PipelineTimes(stage_prices(COSTS, split_layers(4, 2)), 2, lambda tokens: tokens)

    run = run_fast(case, prefill=case.prefill.pool(times), decode=case.decode.pool(times))
    alone = run_fast(case)
    found = outcome(run, len(case.texts))
    for request, (status, *_), (status_alone, *_), times_ns in zip(
        case.workload, found["requests"], outcome(alone, len(case.texts))["requests"], found["times"], strict=True
    ):
        assert (status == "rejected") == (status_alone == "rejected")
        assert times_ns == sorted(times_ns)
        assert status != "finished" or len(times_ns) <= request[2]


def test_decodes_coast() -> None:
    """Two requests of 1,000 tokens need a few events of the clock, not one a token."""
    steps = []
    made = simpy.Environment.step

    class Counting(simpy.Environment):
        def step(self) -> None:
            steps.append(self.now)
            made(self)

    policy = Vllm(max_num_batched_tokens=100, max_num_seqs=8, max_model_len=4096)
    side = Side("vllm", {**vars(policy), "enable_prefix_caching": False}, 1, 16, 1000, COSTS)
    case = PoolCase(side, side, [(0, 10, 1000, 0), (5000, 10, 1000, 0)], ["", ""], 10, 1, 4, False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system.simpy, "Environment", Counting)
        run = run_fast(case)
    assert len(run.log.replicas[1].iterations) > 1000
    assert len(steps) < 60
