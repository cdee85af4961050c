"""text-generation-inference's rules on traces worked out by hand, a second a forward, and its queue's own tests."""

from typing import Any

import pytest

from policies.tgi import Tgi
from simulator.core import Request
from simulator.engine import simulate
from simulator.runlog import FINISHED, REJECTED, LoggedRun
from simulator.scheduler import Scheduler
from simulator.step_times import GpuTimes
from tests.golden_tgi import judge_case
from tests.simulator.runs import ONE_SECOND_A_STEP, SECOND, replay
from tests.simulator.test_coasting import Counted

Steps = list[dict[int, int]]


def whole(**options: Any) -> Tgi:
    """Without prefill chunking."""
    return Tgi(prefill_chunking=False, **options)


def steps(policy: Tgi, *requests: tuple[float, int, int], block_size: int = 1, num_blocks: int = 1000) -> Steps:
    """What each forward runs: tokens by request."""
    return replay(policy, *requests, block_size=block_size, num_blocks=num_blocks).steps


def test_a_new_prompt_pauses_the_decodes() -> None:
    """It runs alone and has its first token a second later; the older one gets none in that second."""
    outcome = replay(whole(), (0, 5, 4), (1, 3, 2), block_size=1)
    assert outcome.steps == [{0: 5}, {1: 3}, {0: 1, 1: 1}, {0: 1}, {0: 1}]
    assert outcome.tokens == [[1, 3, 4, 5], [2, 3]]


def test_a_small_queue_is_held_back() -> None:
    """At a ratio of 2 one request does not interrupt another: it waits until that has ended."""
    assert steps(whole(waiting_served_ratio=2), (0, 5, 3), (1, 3, 2)) == [{0: 5}, {0: 1}, {0: 1}, {1: 3}, {1: 1}]


def test_a_large_queue_is_not() -> None:
    """Two do."""
    requests = (0, 5, 3), (1, 3, 2), (1, 4, 1)
    assert steps(whole(waiting_served_ratio=2), *requests) == [{0: 5}, {1: 3, 2: 4}, {0: 1, 1: 1}, {0: 1}]


def test_those_that_fit_have_to_be_enough() -> None:
    """Two wait, but the prefill budget takes one of them, so neither joins."""
    policy = whole(waiting_served_ratio=2, max_batch_prefill_tokens=6)
    assert steps(policy, (0, 5, 3), (1, 3, 1), (1, 4, 1)) == [{0: 5}, {0: 1}, {0: 1}, {1: 3}, {2: 4}]


def test_the_ratio_counts_whole_requests() -> None:
    """0.7 of a batch of one is less than one request: it joins."""
    assert steps(whole(waiting_served_ratio=0.7), (0, 5, 2), (1, 3, 1)) == [{0: 5}, {1: 3}, {0: 1}]


def test_a_small_queue_is_let_in_in_the_end() -> None:
    """The first forward of a batch counts as one, so it is after two decodes that three have passed."""
    policy = whole(waiting_served_ratio=2, max_waiting_tokens=3)
    assert steps(policy, (0, 5, 5), (1, 3, 2)) == [{0: 5}, {0: 1}, {0: 1}, {1: 3}, {0: 1, 1: 1}, {0: 1}]


def test_the_wait_begins_again_with_each_batch() -> None:
    """The third request came just after the second was let in, and waits as long."""
    policy = whole(waiting_served_ratio=2, max_waiting_tokens=3)
    expected = [{0: 5}, {0: 1}, {0: 1}, {1: 3}, {0: 1}, {0: 1}, {2: 3}, {0: 1}]
    assert steps(policy, (0, 5, 6), (1, 3, 1), (3.5, 3, 1)) == expected


def test_the_first_forward_is_followed_by_a_look_at_the_queue() -> None:
    """Only where requests join a running batch a decode comes next in any case: here the third has to wait for it."""
    assert steps(whole(), (0, 5, 3), (0.5, 3, 2), (1.5, 3, 1)) == [{0: 5}, {1: 3}, {0: 1, 1: 1}, {2: 3}, {0: 1}]


def test_a_decode_comes_after_chunks_have_joined() -> None:
    """With chunking too: the third came in time for the third forward and joins in the fourth."""
    expected = [{0: 4}, {0: 1, 1: 3}, {0: 1, 1: 1}, {0: 1, 1: 1, 2: 3}, {0: 1, 1: 1}]
    assert steps(Tgi(), (0, 4, 5), (1, 3, 4), (2, 3, 1)) == expected


def test_memory_is_reserved_for_life() -> None:
    """4 + 4 - 1 and 3 + 3 - 1 slots fit twelve blocks, a thirteenth being the null block; with one less they do not."""
    requests = (0, 4, 4), (0, 3, 3)
    assert steps(Tgi(), *requests, num_blocks=13) == [{0: 4, 1: 3}, {0: 1, 1: 1}, {0: 1, 1: 1}, {0: 1}]
    apart = [{0: 4}, {0: 1}, {0: 1}, {0: 1}, {1: 3}, {1: 1}, {1: 1}]
    assert steps(Tgi(), *requests, num_blocks=12) == apart


def test_what_is_declared_is_reserved() -> None:
    """Clients declare ten tokens: two requests of 4 + 9 slots need 26 blocks, whatever they will generate."""
    requests = (0, 4, 1), (0, 4, 1)
    assert steps(Tgi(max_new_tokens=10), *requests, num_blocks=27) == [{0: 4, 1: 4}]
    assert steps(Tgi(max_new_tokens=10), *requests, num_blocks=26) == [{0: 4}, {1: 4}]


def test_a_request_may_declare_more() -> None:
    """Its own `max_tokens` counts where it is not the output that it gets; a longer output was declared."""
    request = Request(0, 0, 4, 2)
    assert [Tgi(max_new_tokens=n).reserve_tokens(request) for n in (None, 1, 10)] == [5, 5, 13]
    request.max_tokens = 7
    assert [Tgi(max_new_tokens=n).reserve_tokens(request) for n in (None, 1, 10)] == [10, 10, 10]
    assert Tgi(speculate=3).reserve_tokens(request) == 13


def test_nobody_is_skipped() -> None:
    """The second does not fit beside the first; the third would, and waits behind it."""
    requests = (0, 4, 3), (0, 9, 1), (0, 1, 1)
    assert steps(whole(), *requests, num_blocks=11) == [{0: 4}, {0: 1}, {0: 1}, {1: 9, 2: 1}]


def test_prompts_up_to_the_budget() -> None:
    """Ten tokens hold one of two prompts of six, and without chunks the second runs in a forward of its own."""
    assert steps(whole(max_batch_prefill_tokens=10), (0, 6, 2), (0, 6, 2)) == [{0: 6}, {1: 6}, {0: 1, 1: 1}]


def test_the_budget_is_rounded_up_to_a_block() -> None:
    """Of 16 tokens: 6 + 10 fit a budget of 10, but not 6 + 11."""
    policy = whole(max_batch_prefill_tokens=10, waiting_served_ratio=0)
    assert steps(policy, (0, 6, 1), (0, 10, 1), block_size=16) == [{0: 6, 1: 10}]
    assert steps(policy, (0, 6, 1), (0, 11, 1), block_size=16) == [{0: 6}, {1: 11}]


def test_the_last_to_join_is_cut_to_the_budget() -> None:
    """A decode leaves nine of ten tokens; the rest of the prompt follows in the next forward."""
    expected = [{0: 4}, {0: 1, 1: 9}, {0: 1, 1: 6}, {0: 1, 1: 1}]
    outcome = replay(Tgi(max_batch_prefill_tokens=10), (0, 4, 4), (1, 15, 2), block_size=1)
    assert outcome.steps == expected
    assert outcome.tokens[1] == [3, 4]


def test_nobody_joins_while_a_prompt_takes_all_of_the_budget() -> None:
    """The second joins once the last chunk of the first leaves something: two tokens of ten."""
    expected = [{0: 10}, {0: 10}, {0: 8, 1: 2}, {1: 1}]
    assert steps(Tgi(max_batch_prefill_tokens=10), (0, 28, 1), (0, 3, 1)) == expected


def test_the_newest_row_is_served_first() -> None:
    """The server counts rows that have just ended against its budget, so that the third joins with a token. From then
    on the newer prompt gets what there is, and the older one a token a forward, which nobody can be denied."""
    expected = [{0: 4}, {0: 1, 1: 9}, {0: 1, 1: 9}, {1: 9, 2: 1}, {1: 1, 2: 9}, {1: 1, 2: 9}, {1: 1, 2: 1}]
    assert steps(Tgi(max_batch_prefill_tokens=10), (0, 4, 3), (1, 30, 1), (2, 20, 1)) == expected


def test_max_batch_size() -> None:
    """Two rows without chunking; with it, the limit holds only where nothing runs."""
    requests = (0, 4, 3), (0, 4, 3), (0, 4, 1)
    assert steps(whole(max_batch_size=2), *requests) == [{0: 4, 1: 4}, {0: 1, 1: 1}, {0: 1, 1: 1}, {2: 4}]
    assert steps(Tgi(max_batch_size=2), *requests) == [{0: 4, 1: 4}, {0: 1, 1: 1, 2: 4}, {0: 1, 1: 1}]


def test_a_part_of_the_memory() -> None:
    """`max_batch_total_tokens` of 13 are twelve blocks and the null block, however many there are; and at most all."""
    requests = (0, 4, 4), (0, 3, 3)
    assert steps(Tgi(max_batch_total_tokens=13), *requests)[0] == {0: 4, 1: 3}
    assert steps(Tgi(max_batch_total_tokens=12), *requests)[0] == {0: 4}
    assert steps(Tgi(max_batch_total_tokens=1000), *requests, num_blocks=12)[0] == {0: 4}


@pytest.mark.parametrize(
    ("policy", "request_", "reason"),
    [
        (Tgi(), (0, 90, 11), "needs 100 KV-cache blocks at once, 99 can be used"),
        (Tgi(max_new_tokens=60), (0, 50, 1), "needs 109 KV-cache blocks at once, 99 can be used"),
        (whole(max_batch_prefill_tokens=9), (0, 10, 1), "prompt of 10 tokens, max_batch_prefill_tokens 9"),
    ],
)
def test_what_can_never_run_is_rejected(policy: Tgi, request_: tuple[int, int, int], reason: str) -> None:
    """The real router would wait for it for ever; a smaller request is served."""
    log = run(policy, request_, (0, 5, 1), num_blocks=100)
    assert log.reasons == {0: reason}
    assert sorted(log.requests["status"].tolist()) == sorted([REJECTED, FINISHED])


def test_too_many_are_turned_away() -> None:
    """With one running and one waiting a third is one too many; later it is not."""
    log = run(whole(max_batch_size=1, max_concurrent_requests=2), (0, 5, 3), (0, 5, 1), (0, 5, 1), (9, 5, 1))
    assert log.reasons == {2: "max_concurrent_requests 2 were there already"}


def test_a_prompt_is_found_again() -> None:
    """All but its last token, once the request that computed it has ended; beside it, nothing."""
    log = run(Tgi(), (0, 8, 2), (1, 8, 1), (5, 8, 1), keys=[list(range(8))] * 3)
    assert cached(log) == [0, 0, 7]


def test_a_prompt_that_was_put_back_is_found() -> None:
    """As in the engine: for want of budget the second gives its blocks back, never computed, and they count as cached.
    It is computed with a single token. Without `prefix_caching` it is not."""
    keys = [[("a", place) for place in range(6)], [("b", place) for place in range(6)]]
    policy = whole(max_batch_prefill_tokens=10)
    log = run(policy, (0, 6, 2), (0, 6, 2), keys=keys)
    assert cached(log) == [0, 5]
    assert log.iterations["prefill_tokens"].tolist() == [6, 1, 0]
    log = run(whole(max_batch_prefill_tokens=10, prefix_caching=False), (0, 6, 2), (0, 6, 2), keys=keys)
    assert cached(log) == [0, 0]


def test_a_prompt_too_long_for_the_budget_runs_as_if_cached() -> None:
    """What is rejected here, the router computes with a single token, the last: put back, it finds itself when an
    arrival has left a wake-up."""
    scheduler = Scheduler(
        whole(max_batch_prefill_tokens=4),
        GpuTimes(ONE_SECOND_A_STEP),
        block_size=1,
        num_blocks=100,
        prefixes=True,
        give_up_on_impossible=False,
    )
    for request in made((0, 6, 1), (0, 2, 1), keys=[list(range(6)), [("b", 0), ("b", 1)]]):
        scheduler.arrive(request)
    assert scheduler.schedule(0) == SECOND
    assert [request.cached_tokens for request in scheduler.view.running] == [5, 0]


def test_a_queue_that_cannot_run_wakes_with_an_arrival() -> None:
    """Of the engine's own accord nothing is looked up again."""
    scheduler = Scheduler(
        whole(max_batch_prefill_tokens=4),
        GpuTimes(ONE_SECOND_A_STEP),
        block_size=1,
        num_blocks=100,
        prefixes=True,
        give_up_on_impossible=False,
    )
    first, second = made((0, 6, 1), (0, 2, 1), keys=[list(range(6)), [("b", 0), ("b", 1)]])
    scheduler.arrive(first)
    assert scheduler.schedule(0) is None
    assert scheduler.schedule(1) is None
    scheduler.arrive(second)
    assert scheduler.schedule(2) is not None


@pytest.mark.parametrize(("policy", "plans"), [(whole(), 8), (Tgi(), 6)])
def test_decodes_pass_without_a_plan(policy: Tgi, plans: int) -> None:
    """A thousand forwards, some of them while a request waits for memory."""
    counted = Counted(policy)
    requests = [Request(index, at, 50, 500) for index, at in enumerate((0, 10**9, 2 * 10**9))]
    log = simulate(iter(requests), counted, GpuTimes(ONE_SECOND_A_STEP), block_size=16, num_blocks=80)  # type: ignore[arg-type]
    assert len(log.iterations["end_ns"]) >= 1000
    assert counted.plans <= plans


APPEND: dict[str, Any] = {"op": "append"}


def look(ids: list[int] | None, budget: int, least: int | None = None, most: int | None = None) -> dict[str, Any]:
    """A call of `next_batch`, and the requests that it gives."""
    return {
        "op": "next_batch",
        "min_size": least,
        "max_size": most,
        "prefill_token_budget": budget,
        "token_budget": budget,
        "expect": None if ids is None else ids,
    }


@pytest.mark.parametrize(
    "calls",
    [
        [{**APPEND, "queue_after": [0], "next_id_after": 1}],
        [look(None, 1), look(None, 1, least=1)],
        [
            APPEND,
            APPEND,
            look([0, 1], 2),
            APPEND,
            look(None, 2, least=2),
            look(None, 0, least=1),
            look([2], 2, least=1),
        ],
        [APPEND, APPEND, look([0], 2, most=1) | {"queue_after": [1]}],
        [APPEND, APPEND, look([0], 1) | {"queue_after": [1]}, APPEND, look([1, 2], 3) | {"queue_after": []}],
    ],
    ids=["append", "empty", "min_size", "max_size", "token_budget"],
)
def test_the_queues_own_tests(calls: list[dict[str, Any]]) -> None:
    """What `queue.rs` tests of its queue, at db931fcf: requests of one token and one more, sixteen tokens of memory."""
    batches, ops = 0, []
    for call in calls:
        expected = call.get("expect")
        if expected is not None:
            call = {**call, "expect": {"ids": expected, "size": len(expected), "batch_id": batches}}
            batches += 1
        ops.append(call)
    assert judge_case({"state": STATE, "ops": ops}) == "ok"


def test_a_queue_that_differs_is_told() -> None:
    """The replay of its tests can fail, and says what it leaves out."""
    assert judge_case({"state": STATE, "ops": [APPEND, look(None, 1)]}).startswith("op 1: recorded")
    assert judge_case({"state": {**STATE, "requires_padding": True}, "ops": []}).startswith(
        "not modelled: models that pad"
    )
    assert judge_case({"state": STATE, "ops": [{**APPEND, "client_gone": True}]}) == "not modelled: clients that leave"


STATE = {
    "requires_padding": False,
    "block_size": 1,
    "prefix_caching": False,
    "window_size": None,
    "speculate": 0,
    "max_batch_total_tokens": 16,
    "support_chunking": False,
}


def made(*requests: tuple[float, int, int], keys: list[list[Any]] | None = None) -> list[Request]:
    jobs = [Request(i, round(at * SECOND), prompt, output) for i, (at, prompt, output) in enumerate(requests)]
    for job, own in zip(jobs, keys or (), strict=False):
        job.keys = own
    return jobs


def run(
    policy: Tgi, *requests: tuple[float, int, int], num_blocks: int = 1000, keys: list[list[Any]] | None = None
) -> LoggedRun:
    jobs = iter(made(*requests, keys=keys))
    times = GpuTimes(ONE_SECOND_A_STEP)
    return simulate(jobs, policy, times, block_size=1, num_blocks=num_blocks, prefixes=keys is not None)


def cached(log: LoggedRun) -> list[int]:
    """Tokens of each request found cached."""
    rows = zip(log.requests["request"].tolist(), log.requests["cached"].tolist(), strict=True)
    return [tokens for _, tokens in sorted(rows)]
