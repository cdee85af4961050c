"""Pages under the radix tree: 10 of 4 tokens, and requests whose keys are given by hand."""

import pytest

from simulator.core import Batch, Request, View
from simulator.decodes import Decodes
from simulator.queues import FcfsQueue
from simulator.radix_memory import RadixMemory


def memory() -> RadixMemory:
    return RadixMemory(View(4, 10, Decodes(4), FcfsQueue()))


def request(index: int, prompt: int, keys: list[int] | None = None) -> Request:
    made = Request(index, 0, prompt, 8)
    made.keys = keys or []
    return made


def compute(memory: RadixMemory, request: Request, tokens: int) -> None:
    """Admit `request` with what is found, compute up to `tokens` of it on free pages, and enter these in the tree."""
    found = memory.find(request)
    memory.hold(request, found)
    memory.free -= -(-tokens // 4) - found.end
    memory.enter(request, tokens)


def counts(memory: RadixMemory) -> tuple[int, int, int]:
    """Pages that are free, could be evicted, and are held by somebody."""
    return memory.free, memory.tree.evictable, memory.tree.protected


def test_a_computed_prompt_is_held_until_its_request_lets_go() -> None:
    """Ten tokens take three pages: two full ones go to the tree, the third stays the request's own."""
    pool, first = memory(), request(0, 10, [1, 2])
    compute(pool, first, 10)
    assert counts(pool) == (7, 0, 2)
    pool.drop(first, 10)
    assert counts(pool) == (8, 2, 0)


def test_who_comes_later_finds_it() -> None:
    """Both full pages, of a prompt that goes on."""
    pool, first = memory(), request(0, 10, [1, 2])
    compute(pool, first, 10)
    assert pool.find(request(1, 12, [1, 2, 3])).end == 2


def test_the_last_token_is_computed_in_any_case() -> None:
    """The same eight tokens again: only the first page counts, although both are known."""
    pool, first = memory(), request(0, 8, [1, 2])
    compute(pool, first, 8)
    again = request(1, 8, [1, 2])
    assert (pool.touch(again), pool.find(again).end) == (8, 1)


def test_what_has_no_keys_is_found_by_its_own_request_only() -> None:
    """A request that lost its place finds its prompt again; another without keys does not."""
    pool, first = memory(), request(0, 10)
    compute(pool, first, 10)
    pool.drop(first, 10)
    assert (pool.find(first).end, pool.find(request(1, 10)).end) == (2, 0)


def test_what_two_computed_at_once_is_kept_once() -> None:
    """Both were admitted before either was in the tree: of the second, two pages are double and freed."""
    pool, first, second = memory(), request(0, 10, [1, 2]), request(1, 10, [1, 2])
    for each in (first, second):
        pool.hold(each, pool.find(each))
        pool.free -= 3
    pool.enter(first, 10)
    assert counts(pool) == (4, 0, 2)
    pool.enter(second, 10)
    assert counts(pool) == (6, 0, 2)


def test_the_tree_is_cut_where_the_prompt_ends() -> None:
    """Four prompt tokens and nine of output: the page with the prompt stays when one page has to go."""
    pool, first = memory(), request(0, 4, [1, 2, 3])
    compute(pool, first, 4)
    pool.free -= 3
    pool.enter(first, 13)
    pool.drop(first, 13)
    assert counts(pool) == (7, 3, 0)
    assert pool.make_room(8)
    assert counts(pool) == (9, 1, 0)
    assert pool.find(request(1, 8, [1, 9])).end == 1


def test_room_is_made_only_where_it_lacks() -> None:
    """Eight pages are free; nine are had by eviction, eleven are not to be had at all."""
    pool, first = memory(), request(0, 8, [1, 2])
    compute(pool, first, 8)
    pool.drop(first, 8)
    assert pool.make_room(8)
    assert counts(pool) == (8, 2, 0)
    assert pool.make_room(9)
    assert counts(pool) == (10, 0, 0)
    assert not pool.make_room(11)


def test_who_is_admitted_starts_with_what_was_found() -> None:
    """The scheduler is told of four tokens, and they are the request's cached ones."""
    pool, first = memory(), request(0, 8, [1, 2])
    compute(pool, first, 8)
    second = request(1, 8, [1, 9])
    pool.hold(second, pool.find(second))
    assert pool.serve(Batch([(second, 4)])) == 4
    assert (second.computed, second.cached_tokens) == (4, 4)


def test_release_of_one_that_still_holds_enters_nothing() -> None:
    """A request dropped in the middle of its prompt: its own two pages are free, the tree stays as it was."""
    pool, first = memory(), request(0, 16, [1, 2, 3, 4])
    pool.hold(first, pool.find(first))
    pool.free -= 2
    first.computed = 8
    pool.release(first)
    assert counts(pool) == (10, 0, 0)
    pool.release(first)
    assert counts(pool) == (10, 0, 0)


@pytest.mark.parametrize(("free", "left"), [(3, (2, 0)), (20, (13, 6))])
def test_steps_that_pass_unserved_take_the_same_pages(free: int, left: tuple[int, int]) -> None:
    """Two decodes open seven pages in 14 steps. Where only three are free, six cached ones go: room for two is made
    before each step."""
    for coasts in (True, False):
        decodes = Decodes(4)
        pool = RadixMemory(View(4, 10 + free, decodes, FcfsQueue()))
        for index, prompt in enumerate((16, 8, 8, 6)):
            one = request(index, prompt)
            compute(pool, one, prompt)
            if index < 2:
                pool.drop(one, prompt)
            else:
                one.computed, one.target_tokens = prompt, 100
                decodes.join(one)
        assert counts(pool) == (free, 6, 3)
        for _ in range(14):
            if not coasts:
                pool.serve(Batch())
            decodes.advance()
        if coasts:
            pool.coasted(14)
        assert counts(pool) == (*left, 3)
