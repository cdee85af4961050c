"""Steps that pass without asking the policy pass as they would if it were asked: with a host, with a power limit."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.vllm import Vllm
from simulator.core import Request
from simulator.costs import StepCosts
from simulator.engine import simulate
from simulator.engines.profile import Aftermath, HostTime, Launch, Mode
from simulator.engines.times import EngineTimes
from simulator.power_limit import PowerLimit
from simulator.runlog import LoggedRun
from simulator.step_times import GpuTimes, StepTimes
from simulator.table_costs import TableCosts
from tests.reference_host import Host
from tests.simulator.engines.hosts import hosts
from tests.simulator.tables import small_table
from tests.simulator.test_coasting import Counted, columns
from tests.workloads import COSTS, OPTIONS, POLICIES, UNLIKE_COSTS, workloads

LIMIT = PowerLimit(slowdown=0.5, time_constant_s=0.0004, decode_intensity=0.4)
"""A small GPU: hot within a few steps of the small table."""
Times = Callable[[bool], StepTimes]
"""A fresh clock, of an engine with or without steps in flight."""


def logs_of(policy: type, options: dict[str, Any], times: Times, workload: Any, **memory: int) -> list[LoggedRun]:
    """The run with promises and without; plans do not get more."""
    counted = [Counted(policy(**options), asked=asked) for asked in (False, True)]
    logs = [
        simulate(
            (Request(index, *facts) for index, facts in enumerate(workload)),
            each,  # type: ignore[arg-type]
            times(each.steps_in_flight > 1),
            **memory,
        )
        for each in counted
    ]
    assert counted[0].plans <= counted[1].plans
    return logs


def host_times(costs: StepCosts, host: Host) -> Times:
    """The clock of a host at costs without a power limit."""
    return lambda in_flight: EngineTimes(
        costs, host.mode, host.captured, host.layers, in_flight=in_flight, workers=host.workers
    )


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    workload=workloads(),
    pool=st.integers(20, 400),
    host=hosts,
    costs=st.sampled_from([COSTS, UNLIKE_COSTS]),
)
def test_the_same_with_a_host(
    name: str, data: st.DataObject, workload: Any, pool: int, host: Host, costs: StepCosts
) -> None:
    """Whatever takes the host time, ends, starts and logs are the same."""
    options = data.draw(OPTIONS[name])
    coasting, asking = logs_of(
        POLICIES[name], options, host_times(costs, host), workload, block_size=4, num_blocks=pool
    )
    assert columns(coasting) == columns(asking)


@pytest.fixture(scope="module")
def hot_costs(tmp_path_factory: pytest.TempPathFactory) -> TableCosts:
    """The small table, with a power limit."""
    table = small_table(tmp_path_factory.mktemp("table"))
    return TableCosts(replace(table, metadata=replace(table.metadata, power_limit=LIMIT)))


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=60, deadline=None)
@given(data=st.data(), workload=workloads(), pool=st.integers(60, 800), host=st.none() | hosts)
def test_the_same_under_a_power_limit(
    name: str, data: st.DataObject, workload: Any, pool: int, host: Host | None, hot_costs: TableCosts
) -> None:
    """The GPU is as hot after steps that were not looked at, also where the host lets it rest between them."""

    def times(in_flight: bool) -> StepTimes:
        if host is None:
            return GpuTimes(hot_costs, hot_costs.heat())
        slow = replace(host, layers=20 * host.layers)
        ways = {"in_flight": in_flight, "workers": slow.workers}
        return EngineTimes(hot_costs, slow.mode, slow.captured, slow.layers, **ways, heat=hot_costs.heat())

    options = data.draw(OPTIONS[name])
    stretched = [(100 * arrival, 3 * prompt, 4 * output, urgency) for arrival, prompt, output, urgency in workload]
    coasting, asking = logs_of(POLICIES[name], options, times, stretched, block_size=4, num_blocks=4 * pool)
    assert columns(coasting) == columns(asking)


def plans(mode: Mode, *, in_flight: bool, output: int = 1000) -> int:
    """How often the policy is asked for a lone request of `output` tokens."""
    policy = Counted(Vllm(async_scheduling=in_flight, max_model_len=4096))
    host = Host(mode, [1, 2, 4, 8])
    simulate(
        iter([Request(0, 0, 100, output)]),
        policy,  # type: ignore[arg-type]
        host_times(COSTS, host)(in_flight),
        block_size=16,
        num_blocks=1000,
    )
    return policy.plans


SLOW = HostTime(5.0)


@pytest.mark.parametrize(
    ("mode", "in_flight", "expected"),
    [
        (Mode(schedule=SLOW, update=SLOW, full=Launch(SLOW, 5.0)), False, 3),
        (Mode(schedule=HostTime(0.5), full=Launch(gpu=HostTime(1.0))), True, 5),
        (Mode(aftermath=Aftermath(1.0, 10)), False, 3),
        (Mode(schedule=SLOW), True, 1001),
    ],
    ids=["without steps in flight", "GPU-bound", "in an aftermath", "host-bound"],
)
def test_it_coasts_wherever_ends_can_be_told(mode: Mode, in_flight: bool, expected: int) -> None:
    """A thousand steps, few plans; only an engine whose GPU waits for a host with steps in flight is asked in each."""
    assert abs(plans(mode, in_flight=in_flight) - expected) <= 2
