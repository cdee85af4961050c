"""Two pools with everything written out: a step takes 10 ns in either, a message what the test says."""

from collections.abc import Callable, Sequence

import pytest

from policies.orca import Orca
from policies.vllm import Vllm
from simulator.core import Request
from simulator.costs import LinearCosts
from simulator.disaggregation.link import Link
from simulator.disaggregation.log import PooledRun
from simulator.disaggregation.system import Pool, simulate_pools
from simulator.metrics.tokens import token_times_ns
from simulator.policy import Policy
from simulator.routers import make_router
from simulator.runlog import STATUS_NAMES
from simulator.step_times import GpuTimes

STEP = LinearCosts(fixed_ns=10)
ORCA = Orca(max_batch_size=8)
VLLM = Vllm(
    max_num_batched_tokens=100, max_num_seqs=8, enable_prefix_caching=False, async_scheduling=False, max_model_len=1000
)


def nanoseconds(count: int) -> Callable[[int], int]:
    return lambda _: count


def serve(
    *workload: tuple[int, int, int],
    prefill: Policy = ORCA,
    decode: Policy = ORCA,
    replicas: tuple[int, int] = (1, 1),
    blocks: tuple[int, int] = (100, 100),
    block_size: int = 16,
    whole_ns: int = 0,
    layer_ns: int = 0,
    layers: int = 0,
) -> PooledRun:
    """(arrival, prompt, output) of each request; with `layers` these are sent one by one."""
    requests = (Request(index, *facts) for index, facts in enumerate(workload))
    pools = [
        Pool(policy, [GpuTimes(STEP)] * count, block_size, number, make_router("round-robin"))
        for policy, count, number in zip((prefill, decode), replicas, blocks, strict=True)
    ]
    link = (nanoseconds(whole_ns), nanoseconds(layer_ns), layers)
    return simulate_pools(requests, *pools, lambda: Link(*link), layerwise=layers > 0)


def tokens(run: PooledRun) -> list[list[int]]:
    """When each request's tokens came."""
    return token_times_ns(run.log, len(run.log.requests["request"]))


def fates(run: PooledRun) -> list[str]:
    return [STATUS_NAMES[status] for status in run.log.requests["status"]]


def test_the_transfer_is_between_the_first_and_the_second_token() -> None:
    """The prompt takes 10, its KV 25, and every decode 10."""
    assert tokens(serve((0, 5, 4), whole_ns=25)) == [[10, 45, 55, 65]]


def test_one_token_goes_nowhere() -> None:
    """Who has all its tokens with the prompt finishes in the prefill pool."""
    run = serve((0, 5, 1), whole_ns=25)
    assert tokens(run) == [[10]]
    assert len(run.transfers.request) == 0


def test_prompts_do_not_hold_up_decodes() -> None:
    """While request 1's prompt is computed, from 33 to 43, request 0 decodes on; request 1 joins it at 50."""
    run = serve((0, 5, 5), (33, 90, 2))
    assert tokens(run) == [[10, 20, 30, 40, 50], [43, 60]]


def test_it_joins_the_step_that_is_planned_next() -> None:
    """Request 1 lands at 15 + 10 + 3 = 28, in the middle of a step, and decodes from 30 on."""
    assert tokens(serve((0, 5, 5), (15, 5, 2), whole_ns=3)) == [[10, 23, 33, 43, 53], [25, 43]]


def test_one_transfer_at_a_time_on_a_link() -> None:
    """Both prompts end at 10; the second's KV waits for the first's: 10 to 35, 35 to 60."""
    run = serve((0, 5, 2), (0, 5, 2), whole_ns=25)
    assert run.transfers.landed_ns.tolist() == [35, 60]
    assert tokens(run) == [[10, 45], [10, 70]]


def test_each_prefill_replica_has_a_link() -> None:
    """On two replicas the two are on their way side by side."""
    run = serve((0, 5, 2), (0, 5, 2), whole_ns=25, replicas=(2, 1))
    assert run.transfers.landed_ns.tolist() == [35, 35]


@pytest.mark.parametrize(
    ("layer_ns", "landed"),
    [
        (1, 11),  # layer 5 is there at 10
        (2, 12),  # as fast as the layers are computed
        (3, 17),  # layer 1 is there at 2; five layers of 3
    ],
)
def test_layers_are_sent_as_they_are_computed(layer_ns: int, landed: int) -> None:
    """A step of 10 with five layers: what remains is max(l, 5 l - 8)."""
    run = serve((0, 5, 2), layer_ns=layer_ns, layers=5)
    assert run.transfers.landed_ns.tolist() == [landed]
    assert tokens(run) == [[10, landed + 10]]


def test_layers_of_one_step_take_turns() -> None:
    """Two prompts, two layers of 2: at 5 both first layers go, at 10 the second ones, one after the other."""
    assert serve((0, 5, 2), (0, 5, 2), layer_ns=2, layers=2).transfers.landed_ns.tolist() == [12, 14]


def test_who_waited_for_room_is_sent_whole() -> None:
    """The decode pool holds one request: the second is let in when the first ends, at 21, and has sent nothing yet."""
    decode = Orca(max_batch_size=1)
    run = serve((0, 5, 2), (0, 5, 2), decode=decode, layer_ns=1, layers=2, whole_ns=7)
    assert run.transfers.room_ns.tolist() == [10, 21]
    assert run.transfers.landed_ns.tolist() == [11, 28]


def test_a_full_decode_pool_stops_the_prefill_pool() -> None:
    """Each pool has memory for one: request 1 is computed when 0 has left, at 10, and keeps its block until 0 has ended
    at 40; only then is request 2's prompt computed."""
    run = serve((0, 5, 4), (0, 5, 2), (0, 5, 2), blocks=(1, 1))
    assert tokens(run) == [[10, 20, 30, 40], [20, 50], [50, 60]]


def test_blocks_are_kept_until_the_transfer_ends() -> None:
    """Room is there, but the only block of the prefill pool is free at 35 only."""
    assert tokens(serve((0, 5, 2), (0, 5, 1), blocks=(1, 9), whole_ns=25)) == [[10, 45], [45]]


def test_a_place_in_the_batch_of_a_prefill_replica_is_free_at_once() -> None:
    """With one sequence at a time the next prompt runs while the KV of the one before is sent."""
    one = Orca(max_batch_size=1)
    assert tokens(serve((0, 5, 2), (0, 5, 1), prefill=one, whole_ns=25)) == [[10, 45], [20]]


def test_who_is_preempted_in_the_decode_pool_is_computed_again_there() -> None:
    """Two blocks of 4 tokens hold both prompts of 4 until they want a block each: request 1 gives way, at 10, and is
    computed over its 4 + 1 tokens when request 0 has ended, at 30; that step gives its second token."""
    run = serve((0, 4, 3), (0, 4, 3), decode=VLLM, blocks=(100, 3), block_size=4)
    assert tokens(run) == [[10, 20, 30], [10, 40, 50]]
    assert run.log.requests["preemptions"].tolist() == [0, 1]
    assert len(run.log.replicas[0].iterations) == 1


def test_who_comes_waits_behind_who_was_preempted() -> None:
    """Request 2's prompt is there at 20, and one block would do for it, but request 1 waits since 10."""
    run = serve((0, 4, 3), (0, 4, 3), (10, 3, 2), decode=VLLM, blocks=(100, 4), block_size=4)
    assert run.log.requests["preemptions"].tolist() == [0, 1, 0]
    assert run.transfers.room_ns.tolist()[2] >= 30


def test_what_can_never_run_there_is_rejected_on_arrival() -> None:
    """Orca reserves prompt and output: 40 tokens are three blocks, the decode pool has two."""
    run = serve((0, 5, 35), blocks=(100, 2))
    assert fates(run) == ["rejected"]
    assert run.log.reasons[0] == "in the decode pool: needs 3 KV-cache blocks at once, the cache has 2"


def test_the_least_busy_decode_replica() -> None:
    """By tokens that are left to serve: 0 has 5 + 50, so 1 and 2 go to the other."""
    requests = (Request(index, 0, 5, output) for index, output in enumerate([50, 5, 5]))
    pools = [Pool(ORCA, [GpuTimes(STEP)] * count, 16, 100, make_router("least-outstanding-tokens")) for count in (1, 2)]
    run = simulate_pools(requests, *pools, lambda: Link(nanoseconds(0), nanoseconds(0), 1), layerwise=False)
    assert run.log.requests["decode_replica"].tolist() == [1, 2, 2]


@pytest.mark.parametrize("name", ["first_token", "last_token"])
def test_tokens_are_in_the_log_of_the_pool_that_made_them(name: str) -> None:
    """The first in the prefill pool's one iteration, the last behind it."""
    run = serve((0, 5, 3))
    assert run.log.requests[name].tolist() == {"first_token": [0], "last_token": [2]}[name]
    assert ends(run) == [10, 20, 30]


def ends(run: PooledRun) -> Sequence[int]:
    values: list[int] = run.log.iterations["end_ns"].tolist()
    return values
