"""The cohort of decodes against a list of requests that are advanced one by one."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.core import Request
from simulator.decodes import Decodes


def tick(decodes: Decodes) -> list[Request]:
    """One token for everybody; who has thereby got the last."""
    return decodes.settle() if decodes.advance() else []


@dataclass
class Plain:
    """A decoding request in the naive list."""

    request: Request
    computed: int
    generated: int
    reserved: int

    def blocks(self, tokens: int, block_size: int) -> int:
        return max(self.reserved, -(-tokens // block_size))

    def opens(self, block_size: int) -> bool:
        return self.blocks(self.computed + 1, block_size) > self.blocks(self.computed, block_size)


def joined(decodes: Decodes, computed: int, left: int, reserved: int = 0) -> Request:
    """A request with `computed` KV entries and `left` tokens to come, in the cohort."""
    request = Request(0, 0, computed, left + 1)
    request.computed, request.generated, request.reserved_blocks = computed, 1, reserved
    decodes.join(request)
    return request


def check(decodes: Decodes, naive: list[Plain], block_size: int) -> None:
    """Count, sum of contexts and blocks of the next tick agree."""
    assert decodes.count == len(naive)
    assert decodes.birth_sum + decodes.count * decodes.clock == sum(plain.computed for plain in naive)
    assert decodes.blocks_to_open() == sum(plain.opens(block_size) for plain in naive)


ACTIONS = st.one_of(
    st.tuples(st.just("join"), st.integers(1, 20), st.integers(1, 12), st.sampled_from([0, 0, 0, 2, 5, 40])),
    st.tuples(st.just("leave"), st.integers(0, 10)),
    st.just(("advance",)),
    st.just(("advance",)),
)


@settings(max_examples=150, deadline=None)
@given(block_size=st.sampled_from([1, 2, 4, 16]), actions=st.lists(ACTIONS, max_size=60))
def test_equals_a_list(block_size: int, actions: list[tuple[object, ...]]) -> None:
    """Any sequence of joining, leaving and advancing gives the counts of the list, finishes in the same tick, and
    writes the same progress back; reservations may hold for ever or be outgrown."""
    decodes, naive = Decodes(block_size), list[Plain]()
    for action in actions:
        if action[0] == "join":
            _, computed, left, reserved = action
            assert isinstance(computed, int)
            assert isinstance(left, int)
            assert isinstance(reserved, int)
            request = joined(decodes, computed, left, reserved)
            naive.append(Plain(request, computed, 1, reserved))
        elif action[0] == "leave" and naive:
            assert isinstance(action[1], int)
            plain = naive.pop(action[1] % len(naive))
            decodes.leave(plain.request)
            assert plain.request.computed == plain.computed
            assert plain.request.generated == plain.generated
            assert plain.request.known == plain.computed + 1
        elif action[0] == "advance":
            for plain in naive:
                plain.computed += 1
                plain.generated += 1
            done = [plain for plain in naive if plain.generated == plain.request.target_tokens]
            naive = [plain for plain in naive if plain not in done]
            finished = tick(decodes)
            assert {id(request) for request in finished} == {id(plain.request) for plain in done}
            assert all(plain.request.computed == plain.computed for plain in done)
        check(decodes, naive, block_size)


def test_block_opened_when_the_last_is_full() -> None:
    """With 16 of 16 slots taken the next token opens a block; with 15 it does not."""
    decodes = Decodes(16)
    joined(decodes, 15, 5)
    assert decodes.blocks_to_open() == 0
    tick(decodes)
    assert decodes.blocks_to_open() == 1


@pytest.mark.parametrize(("reserved", "opened"), [(1, [1, 0, 0, 0]), (2, [0, 0, 0, 0, 1]), (3, [0] * 9)])
def test_reservation(reserved: int, opened: list[int]) -> None:
    """A request opens blocks only once it has outgrown what was reserved: 4 of 4, 8 or 12 slots are taken."""
    decodes = Decodes(4)
    joined(decodes, 4, 8, reserved)
    for expected in opened:
        assert decodes.blocks_to_open() == expected
        tick(decodes)


def test_leaving_before_the_reservation_is_outgrown() -> None:
    """Whoever leaves early opens nothing later."""
    decodes = Decodes(4)
    request = joined(decodes, 4, 30, reserved=2)
    tick(decodes)
    decodes.leave(request)
    for _ in range(10):
        assert (decodes.count, decodes.blocks_to_open()) == (0, 0)
        tick(decodes)


def test_rejoining() -> None:
    """A request that sits an iteration out goes on where it was."""
    decodes = Decodes(16)
    request = joined(decodes, 10, 5)
    tick(decodes)
    decodes.leave(request)
    assert (request.computed, request.generated) == (11, 2)
    tick(decodes)
    decodes.join(request)
    assert [bool(tick(decodes)) for _ in range(4)] == [False, False, False, True]
    assert (request.computed, request.generated) == (15, 6)


def test_finishing_together() -> None:
    """Requests whose last token falls in the same tick leave together."""
    decodes = Decodes(16)
    joined(decodes, 3, 2)
    joined(decodes, 40, 2)
    joined(decodes, 5, 3)
    assert [len(tick(decodes)) for _ in range(3)] == [0, 2, 1]
    assert (decodes.count, decodes.birth_sum) == (0, 0)
