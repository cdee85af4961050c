"""SGLang's radix cache in runs of a few requests whose prompts are words: a letter a token, a step a second."""

from typing import Any

from policies._sglang_radix import RadixLoop
from policies.sglang import Sglang
from simulator.core import Batch, Request, View
from simulator.costs import LinearCosts
from simulator.scheduler import Scheduler
from simulator.step_times import GpuTimes

SECOND = 10**9


class Run:
    """Requests `(second of arrival, prompt, output tokens)` under the normal loop, to the end.

    `steps[i]` maps request index to tokens, in the order of the batch.
    """

    def __init__(self, *requests: tuple[int, str, int], pool: int = 1000, **options: Any) -> None:
        policy = Sglang(disable_overlap_schedule=True, **options)
        times = GpuTimes(LinearCosts(fixed_ns=SECOND))
        memory = {"block_size": 1, "num_blocks": pool, "prefixes": True}
        self.scheduler = Scheduler(policy, times, **memory, give_up_on_impossible=False)
        self.requests = [Request(index, at * SECOND, len(text), out) for index, (at, text, out) in enumerate(requests)]
        for request, (_, text, _) in zip(self.requests, requests, strict=True):
            request.keys = [text[:end] for end in range(1, len(text) + 1)]
        self.steps: list[dict[int, int]] = []
        plan = self.scheduler._plan
        self.scheduler._plan = lambda view: self._note(view, plan(view))
        coming, now = self.requests[::-1], 0
        while coming or self.scheduler.unfinished:
            while coming and coming[-1].arrival_ns <= now:
                self.scheduler.arrive(coming.pop())
            end = self.scheduler.schedule(now)
            now = now + SECOND if end is None else end
            if end is not None:
                self.scheduler.complete()

    @property
    def cached(self) -> list[int]:
        return [request.cached_tokens for request in self.requests]

    @property
    def loop(self) -> RadixLoop:
        assert isinstance(self.scheduler.planner, RadixLoop)
        return self.scheduler.planner

    def _note(self, view: View, batch: Batch | None) -> Batch | None:
        if batch is not None:
            decodes = view.decoding_requests() if batch.decodes is None else batch.decodes
            self.steps.append({request.index: tokens for request, tokens in batch.chunks})
            self.steps[-1] |= {request.index: 1 for request in decodes if request not in batch.preempted}
        return batch


def test_a_prompt_starts_behind_what_is_cached() -> None:
    """The same six tokens again: five are found, the last is computed to sample from."""
    run = Run((0, "prompt", 1), (1, "prompt", 1))
    assert run.steps == [{0: 6}, {1: 1}]
    assert run.cached == [0, 5]


def test_a_common_beginning_is_found() -> None:
    """`prom` is cut off `prompt` and kept once."""
    run = Run((0, "prompt", 1), (1, "promise", 1))
    assert run.steps == [{0: 6}, {1: 3}]
    tree = run.loop.cache.tree
    assert (len(tree.root.children), tree.evictable) == (1, 9)


def test_prompts_of_one_batch_do_not_find_each_other() -> None:
    """Both are computed whole; one of the two is freed as a double."""
    run = Run((0, "prompt", 1), (0, "prompt", 1))
    assert run.steps == [{0: 6, 1: 6}]
    assert (run.loop.cache.free, run.loop.cache.tree.evictable) == (994, 6)


def test_the_cache_gives_way_to_new_prompts() -> None:
    """Six of twelve tokens are free and eight are needed, so `prompt` goes, all of it, and has to be computed again."""
    requests = [(0, "prompt", 1), (1, "question", 1), (2, "prompt", 1)]
    assert Run(*requests, pool=12).steps == [{0: 6}, {1: 8}, {2: 6}]
    assert Run(*requests, pool=20).steps == [{0: 6}, {1: 8}, {2: 1}]


def test_what_is_used_does_not_give_way() -> None:
    """`prompt` still decodes when `question` comes: 8 + 1 + 1 of 12 tokens cannot be had until it has finished."""
    run = Run((0, "prompt", 3), (1, "question", 1), pool=12)
    assert run.steps == [{0: 6}, {0: 1}, {0: 1}, {1: 8}]


def test_a_found_beginning_is_not_there_to_be_evicted() -> None:
    """Ten tokens are cached and four in use when a prompt goes on from the ten with two: it wants more than 2 + 1 + 1.
    Of 20 tokens 6 are left, 3 of which the other still expects; of 22, 8."""
    requests = [(0, "abcdefghij", 1), (1, "wxyz", 4), (2, "abcdefghijkl", 1)]
    assert Run(*requests, pool=20).steps == [{0: 10}, {1: 4}, {1: 1}, {1: 1}, {1: 1}, {2: 2}]
    assert Run(*requests, pool=22).steps == [{0: 10}, {1: 4}, {2: 2}, {1: 1}, {1: 1}, {1: 1}]


def test_output_is_found_too() -> None:
    """A request that goes on from itself: its prompt and the two outputs that have KV entries are in the tree."""
    run = Run((0, "prompt", 3))
    assert run.loop.cache.tree.evictable == 8


def test_a_chunk_is_found_before_its_prompt_is_complete() -> None:
    """The first four tokens of `prompt` are entered before the next step, whose two other tokens `promise` takes."""
    run = Run((0, "prompt", 1), (1, "promis", 1), chunked_prefill_size=4)
    assert run.steps == [{0: 4}, {0: 2, 1: 2}]
    assert run.cached == [0, 4]


def test_lpm_prefers_what_is_cached() -> None:
    """One slot: the later request finds 40 tokens and goes first; first come, first served leaves it behind."""
    requests = [(0, "a" * 40, 1), (1, "b" * 41, 1), (1, "a" * 40 + "c", 1)]
    lpm = Run(*requests, max_running_requests=1, schedule_policy="lpm")
    fcfs = Run(*requests, max_running_requests=1)
    assert lpm.steps == [{0: 40}, {2: 1}, {1: 41}]
    assert fcfs.steps == [{0: 40}, {1: 41}, {2: 1}]


def test_lpm_lets_one_of_many_alike_go_first() -> None:
    """The second begins like the first for 32 tokens and waits for it to be cached, behind the third."""
    requests = [(0, "a" * 32 + "b" * 8, 1), (0, "a" * 32 + "c" * 8, 1), (0, "d" * 40, 1)]
    run = Run(*requests, chunked_prefill_size=80, schedule_policy="lpm")
    assert run.steps == [{0: 40, 2: 40}, {1: 8}]


def test_fewer_than_32_tokens_alike_do_not_count() -> None:
    """Nothing to wait for: in order of arrival."""
    requests = [(0, "a" * 31 + "b" * 9, 1), (0, "a" * 31 + "c" * 9, 1), (0, "d" * 40, 1)]
    run = Run(*requests, chunked_prefill_size=80, schedule_policy="lpm")
    assert run.steps == [{0: 40, 1: 40}, {2: 40}]


def test_a_long_queue_is_not_sorted() -> None:
    """With 129 waiting the one that finds its prompt stays last; with 128 it is first."""
    others = [(1, chr(0x4E00 + number) * 2, 1) for number in range(128)]
    for count, order in ((127, [0, 128]), (128, [0, 1])):
        run = Run((0, "prompt", 1), *others[:count], (1, "prompt", 1), max_running_requests=1, schedule_policy="lpm")
        assert [next(iter(step)) for step in run.steps[:2]] == order


def test_waiting_prompts_are_kept_in_every_32nd_attempt() -> None:
    """First come, first served does not look up who waits behind a long prompt, for which the oldest has to go: but in
    attempt 32 (they count from 0) it makes the cached prompt young. An attempt later `prompt` is gone."""
    for others, left in ((30, 1), (31, 6)):
        letters = [(2 + number, chr(0x4E00 + number), 1) for number in range(others)]
        last = [(2 + others, "x" * 20, 1), (2 + others, "prompt", 1)]
        run = Run((0, "prompt", 1), (1, "issues", 1), *letters, *last, pool=30 + others, max_running_requests=1)
        assert run.steps[-2:] == [{2 + others: 20}, {3 + others: left}]


def test_a_retracted_request_finds_its_prompt_if_that_was_not_evicted() -> None:
    """Two prompts of six and 50 outputs fill 62 tokens: the second gives its 25 outputs back, enough for the next 20
    steps of the first, and later computes but those and the one sampled last. With ten outputs each the first needs the
    prompt's space, too."""
    options = {"ignore_eos": False, "schedule_conservativeness": 0.1}
    long = Run((0, "prompt", 30), (0, "issues", 30), pool=62, **options)
    short = Run((0, "prompt", 12), (0, "issues", 12), pool=32, **options)
    assert [long.requests[1].preemptions, short.requests[1].preemptions] == [1, 1]
    assert [max(step.get(1, 0) for step in run.steps) for run in (long, short)] == [26, 17]
