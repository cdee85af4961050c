"""Memory that finds ended prompts again: what enters, what is found, and who is evicted first."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.core import Batch, Request
from simulator.prompt_memory import PromptMemory
from simulator.prompt_trie import PromptTrie


def prompt(text: str, block_size: int = 1) -> Request:
    """A request of one token a letter, whose keys are the texts up to the end of each block."""
    request = Request(0, 0, len(text), 1)
    request.keys = [text[:end] for end in range(block_size, len(text) + 1, block_size)]
    return request


def enter(memory: PromptMemory, *texts: str, block_size: int = 1) -> None:
    """Serve a prompt of each text, one after the other."""
    for text in texts:
        request = prompt(text, block_size)
        assert memory.allocate(request, len(text)) is not None
        memory.release(request)


def found(memory: PromptMemory, text: str, block_size: int = 1) -> int:
    """How many tokens of `text` are found; looking leaves it and what it evicts changed."""
    request = prompt(text, block_size)
    hit = memory.allocate(request, len(text))
    assert hit is not None
    return hit


def test_a_prompt_enters_when_it_ends() -> None:
    """While it runs, an equal prompt finds nothing; afterwards all but the last token."""
    memory = PromptMemory(20, 1)
    first, second = prompt("abcd"), prompt("abcd")
    assert memory.allocate(first, 6) == 0
    assert memory.allocate(second, 6) == 0
    memory.release(first)
    memory.release(second)
    assert found(memory, "abcd") == 3


def test_part_of_a_node_is_found() -> None:
    """A prompt that parts from one in the trie begins with what they share."""
    memory = PromptMemory(20, 1)
    enter(memory, "abcdef")
    assert found(memory, "abcxyz") == 3


def test_whole_blocks_are_found() -> None:
    """Of blocks of four tokens, those that are full: of ten tokens, eight; of seven common ones, four."""
    memory = PromptMemory(20, 4)
    enter(memory, "abcdefghij", block_size=4)
    assert found(memory, "abcdefghijk", block_size=4) == 8
    assert found(memory, "abcdefgxyz", block_size=4) == 4


def test_answers_are_not_kept() -> None:
    """What a request holds beyond its prompt is free when it ends."""
    memory = PromptMemory(10, 1)
    request = prompt("abc")
    request.keys = ["a", "ab", "abc", "abcd", "abcde"]
    assert memory.allocate(request, 5) == 0
    memory.release(request)
    assert memory._trie.blocks == 3
    assert found(memory, "abcde") == 3


def test_the_least_recently_used_goes_first() -> None:
    """Three prompts of two tokens fill the memory; the first was looked up again, so the second makes room."""
    memory = PromptMemory(6, 1)
    enter(memory, "ab", "cd", "ef", "ab")
    enter(memory, "xy")
    assert [found(memory, text) for text in ("ab", "xy", "ef")] == [1, 1, 1]
    memory = PromptMemory(6, 1)
    enter(memory, "ab", "cd", "ef", "ab")
    enter(memory, "xy")
    assert memory._trie.find(["c", "cd"], 2)[1] == 0


def test_the_tail_goes_first() -> None:
    """Of the oldest leaf only as many blocks are evicted as are needed, from its end."""
    memory = PromptMemory(6, 1)
    enter(memory, "abcdef")
    enter(memory, "xy")
    assert memory._trie.find([*"a", "ab", "abc", "abcd", "abcde", "abcdef"], 6)[1] == 4


def test_what_a_request_starts_with_stays() -> None:
    """A node in use is not evicted, not even the part of it that is not in use; the request behind it has to wait."""
    memory = PromptMemory(6, 1)
    enter(memory, "abcd")
    running = prompt("abxy")
    assert memory.allocate(running, 4) == 2
    assert memory.free_blocks == 6 - 4 - 2
    assert memory.allocate(prompt("123"), 3) is None
    memory.release(running)
    assert memory.free_blocks == 6
    assert memory.allocate(prompt("123"), 3) == 0


def test_what_was_evicted_in_vain_stays_evicted() -> None:
    """A request for which memory is short even so has forgotten the old prompt for everybody."""
    memory = PromptMemory(6, 1)
    enter(memory, "ab")
    running = prompt("xyz")
    assert memory.allocate(running, 3) == 0
    assert memory.allocate(prompt("1234"), 4) is None
    memory.release(running)
    assert found(memory, "ab") == 0


def test_the_rest_of_a_node_in_use_can_keep_its_user_out() -> None:
    """Six blocks are free, but the request that needs them all starts with half of a node and so protects the rest."""
    memory = PromptMemory(6, 1)
    enter(memory, "ab")
    assert memory.free_blocks == 6
    assert memory.allocate(prompt("axyz12"), 6) is None
    assert memory.allocate(prompt("axyz1"), 5) == 1


def test_common_blocks_are_kept_once() -> None:
    """Two equal prompts that ran side by side leave one copy; the blocks of the other are free."""
    memory = PromptMemory(8, 1)
    requests = [prompt("abcd"), prompt("abcx")]
    for request in requests:
        assert memory.allocate(request, 4) == 0
    assert memory.free_blocks == 0
    for request in requests:
        memory.release(request)
    assert memory._trie.blocks == 5
    assert memory.free_blocks == 8


def test_siblings_of_one_time_go_by_their_numbers() -> None:
    """Entering `abx` splits `abc`: both ends were used at that time, and the older node has the lower number."""
    trie = PromptTrie()
    trie.insert(["a", "ab", "abc"], 3)
    trie.insert(["a", "ab", "abx"], 3)
    assert trie.evict(1) == 1
    assert trie.find(["a", "ab", "abc"], 3)[1] == 2
    assert trie.find(["a", "ab", "abx"], 3)[1] == 3


def test_a_number_given_up_is_the_next_to_be_given_out() -> None:
    """The new end gets the number of an evicted node and so goes first."""
    trie = PromptTrie()
    trie.insert(["q"], 1)
    trie.insert(["a", "ab", "abc"], 3)
    assert trie.evict(1) == 1
    trie.insert(["z"], 1)  # number 2 again
    assert trie.evict(1) == 1  # of abc, the oldest: c
    trie.insert(["a", "ab", "abd", "abde"], 4)
    trie.insert(["a", "ab", "abd", "abdx"], 4)
    assert trie.find(["z"], 1)[1] == 1


def test_serving_starts_a_request_with_its_hit() -> None:
    """`computed` and `cached_tokens` of who is admitted are what was found; of a whole prompt, all but a token."""
    memory = PromptMemory(20, 1)
    enter(memory, "abcd")
    request = prompt("abcd")
    assert memory.allocate(request, 5) == 3
    assert memory.serve(Batch([(request, 1)])) == 3
    assert (request.computed, request.cached_tokens) == (3, 3)


@settings(max_examples=300, deadline=None)
@given(
    texts=st.lists(st.text("ab", min_size=1, max_size=12), min_size=1, max_size=25),
    ends=st.lists(st.integers(0, 5), min_size=25, max_size=25),
    blocks=st.integers(6, 40),
    block_size=st.sampled_from([1, 2, 4]),
)
def test_no_block_is_lost(texts: Sequence[str], ends: Sequence[int], blocks: int, block_size: int) -> None:
    """Whatever comes and goes: who is refused lacks blocks, not counting the rest of a node that it would start with;
    and in the end all are free."""
    memory, running = PromptMemory(blocks, block_size), list[Request]()
    for text, end in zip(texts, ends, strict=False):
        request = prompt(text, block_size)
        free = memory.free_blocks
        hit = memory.allocate(request, len(text) + 2)
        if hit is None:
            node, cached = memory._trie.find(request.keys, len(text) // block_size)
            assert free - (node.stop - cached) < -(-(len(text) + 2) // block_size)
            assert memory.free_blocks == free
        else:
            running.append(request)
        assert 0 <= memory._free <= blocks
        assert 0 <= memory._trie.held <= memory._trie.blocks
        while len(running) > end:
            memory.release(running.pop(end // 2))
    for request in running:
        memory.release(request)
    assert memory.free_blocks == blocks
    assert memory.allocated == 0
    assert memory._free + memory._trie.evict(blocks) == blocks


def test_it_never_preempts() -> None:
    """Blocks are a request's for its whole life."""
    with pytest.raises(AssertionError, match="reserved"):
        PromptMemory(4, 1).serve_preempting(Batch())
