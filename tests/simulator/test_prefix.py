"""Prefix caching: shared prompts are found, forgotten in LRU order, and the pool never loses a block."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.vllm import Vllm
from simulator.clients import block_keys
from simulator.core import Request
from simulator.engine import simulate
from simulator.prefix import PrefixBlocks, Trial
from simulator.runlog import LoggedRun
from simulator.scheduler import Scheduler
from simulator.step_times import GpuTimes
from tests.workloads import COSTS, vllm_options


def request(index: int, prompt: int, keys: Sequence[int], arrival_ns: int = 0, output: int = 1) -> Request:
    made = Request(index, arrival_ns, prompt, output)
    made.keys = keys
    return made


def run(requests: list[Request], num_blocks: int = 100, **options: object) -> LoggedRun:
    policy = Vllm(**{"max_num_batched_tokens": 64, "max_num_seqs": 8, "max_model_len": 4096, **options})  # type: ignore[arg-type]
    return simulate(iter(requests), policy, GpuTimes(COSTS), block_size=4, num_blocks=num_blocks, prefixes=True)


def cached(log: LoggedRun) -> dict[int, int]:
    return dict(zip(log.requests["request"].tolist(), log.requests["cached"].tolist(), strict=True))


def test_common_prefix_is_computed_once() -> None:
    """The second prompt shares two blocks of four tokens: eight of its ten tokens are cached."""
    log = run([request(0, 10, [1, 2]), request(1, 10, [1, 2], arrival_ns=10**6)])
    assert cached(log) == {0: 0, 1: 8}
    assert log.iterations["prefill_tokens"].sum() == 12


def test_a_whole_prompt_in_cache_recomputes_its_last_block() -> None:
    """Eight tokens in two cached blocks: the last token's logits are needed, so only the first block is a hit."""
    assert cached(run([request(0, 8, [1, 2]), request(1, 8, [1, 2], arrival_ns=10**6)])) == {0: 0, 1: 4}


def test_a_later_request_of_the_same_step_hits() -> None:
    """Blocks count as cached as soon as they are scheduled."""
    log = run([request(0, 10, [1, 2]), request(1, 10, [1, 2])], async_scheduling=False)
    assert cached(log) == {0: 0, 1: 8}
    assert len(log.iterations["end_ns"]) == 1


def test_a_hit_behind_an_evicted_block_is_none() -> None:
    """The last block of a sequence goes first, but once the first block is gone the rest cannot be found."""
    requests = [request(0, 8, [1, 2]), request(1, 30, range(10, 17), arrival_ns=10**6)]
    again = request(2, 9, [1, 2], arrival_ns=2 * 10**6)
    assert cached(run([*requests, again], num_blocks=9)) == {0: 0, 1: 0, 2: 0}


def test_blocks_of_requests_that_finish_together() -> None:
    """They are reused in the order of the running list, though the second decodes and the first ends its prompt."""
    policy = Vllm(64, 8, long_prefill_token_threshold=4, async_scheduling=False, max_model_len=100)
    scheduler = Scheduler(policy, GpuTimes(COSTS), block_size=4, num_blocks=10, prefixes=True)
    scheduler.arrive(request(0, 12, [1, 2, 3], output=1))
    scheduler.arrive(request(1, 4, [4], output=3))
    for _ in range(3):
        assert scheduler.schedule(0) is not None
        scheduler.complete()
    assert scheduler.view.prefixes is not None
    assert list(scheduler.view.prefixes.free) == [6, 7, 8, 9, 5, 3, 1, 4, 2]


def test_off_means_off() -> None:
    """Without prefix caching nothing is found."""
    log = run([request(0, 10, [1, 2]), request(1, 10, [1, 2], arrival_ns=10**6)], enable_prefix_caching=False)
    assert cached(log) == {0: 0, 1: 0}


@pytest.mark.parametrize(
    ("block_size", "prefix_block_size", "keys"),
    [(16, 16, [7, 8]), (32, 16, [8]), (8, 16, [(7, 0), (7, 1), (8, 0), (8, 1), (9, 0)])],
)
def test_keys_of_blocks(block_size: int, prefix_block_size: int, keys: list[object]) -> None:
    """40 tokens are two and a half blocks of 16: only full blocks have keys, whatever the pages' size."""
    assert list(block_keys((7, 8, 9), 40, block_size, prefix_block_size)) == keys


def test_keys_of_parts_are_made_when_asked_for() -> None:
    """A prompt of a million tokens has a key for each page of one token, and no list of them."""
    keys = block_keys(range(62500), 10**6, 1, 16)
    assert (len(keys), keys[17], list(keys[999_999:])) == (10**6, (1, 1), [(62499, 15)])
    with pytest.raises(IndexError):
        keys[10**6]


def test_a_trial_changes_nothing() -> None:
    """A policy that plans on a trial leaves the pool as it was."""
    pool = PrefixBlocks(6, 4)
    first = request(0, 8, [1, 2])
    pool.admit(first)
    pool.grow(first, 8)
    pool.release(first)
    before = (list(pool.free), {key: list(blocks) for key, blocks in pool.cached.items()})
    trial = Trial(pool)
    count, unheld = trial.hits(request(1, 12, [1, 2, 3]))
    trial.take(unheld)
    trial.allocate(1)
    assert (count, trial.free) == (2, 3)
    assert (list(pool.free), {key: list(blocks) for key, blocks in pool.cached.items()}) == before


@settings(max_examples=300, deadline=None)
@given(
    options=vllm_options(),
    shapes=st.lists(
        st.tuples(st.integers(0, 3000), st.integers(1, 60), st.integers(1, 20), st.integers(0, 3)),
        min_size=1,
        max_size=12,
    ),
    blocks=st.integers(20, 80),
)
def test_no_block_is_lost(options: dict[str, object], shapes: list[tuple[int, int, int, int]], blocks: int) -> None:
    """Whatever is shared, evicted and preempted, at the end every block is free and nobody holds one."""
    scheduler = Scheduler(
        Vllm(**{**options, "enable_prefix_caching": True, "async_scheduling": False}),  # type: ignore[arg-type]
        GpuTimes(COSTS),
        block_size=4,
        num_blocks=blocks,
        prefixes=True,
    )
    for index, (arrival_ns, prompt, output, family) in enumerate(sorted(shapes)):
        scheduler.arrive(
            request(index, prompt, [family * 100 + place for place in range(prompt // 4)], arrival_ns, output)
        )
    pool, now = scheduler.view.prefixes, 0
    assert pool is not None
    while scheduler.unfinished and scheduler.iterations < 20_000:
        end_ns = scheduler.schedule(now)
        if end_ns is None:
            scheduler.stall("nothing can run")
            break
        now = end_ns
        held = sum(count > 0 for count in pool.holders)
        assert held + len(pool.free) == scheduler.view.total_blocks
        assert scheduler.view.free_blocks == len(pool.free)
        scheduler.complete()
    assert scheduler.unfinished == 0
    assert len(pool.free) == scheduler.view.total_blocks
    assert not any(pool.holders)
    assert scheduler.kv_tokens == 0
