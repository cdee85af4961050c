"""TensorRT-LLM's rules, each in a trace worked out by hand: one second a step, blocks of four tokens."""

from typing import Any, ClassVar

import pytest

from policies.tensorrt_llm import TensorrtLlm
from simulator.core import Batch, Request, View
from simulator.engine import simulate
from simulator.plugins import make_policy
from simulator.policy import Surroundings
from simulator.step_times import GpuTimes
from tests.simulator.runs import ONE_SECOND_A_STEP, Outcome, replay

UTILIZE = "MAX_UTILIZATION"


def run(*requests: tuple[float, ...], num_blocks: int = 100, **options: Any) -> Outcome:
    return replay(TensorrtLlm(**options), *requests, block_size=4, num_blocks=num_blocks)


def chunked(*requests: tuple[float, ...], unit: int, **options: Any) -> Outcome:
    return run(*requests, enable_chunked_context=True, chunk_unit_size=unit, **options)


class TestGuaranteedNoEvict:
    def test_head_of_the_line(self) -> None:
        """Beside four blocks of six the next wants three to its end; a smaller one behind it waits, too."""
        outcome = run((0, 8, 8), (0, 8, 4), (0, 1, 1), num_blocks=6)
        assert outcome.steps == [{0: 8}, *[{0: 1}] * 7, {1: 8, 2: 1}, *[{1: 1}] * 3]

    def test_blocks_are_taken_as_they_are_used(self) -> None:
        """Reserved is only in the count: eight prompt tokens take two blocks, the next a third."""
        assert run((0, 8, 3), num_blocks=6).iterations["free_blocks"].tolist() == [4, 3, 3]

    def test_counts_a_slot_that_is_never_used(self) -> None:
        """Four tokens and one of output are held by one block, and need two free."""
        outcome = run((0, 4, 1), num_blocks=1)
        assert outcome.log.reasons == {0: "needs 2 KV-cache blocks at once, the cache has 1"}

    def test_arrivals_do_not_take_what_decodes_will_need(self) -> None:
        """One block of three is free and promised; a request of one block waits for the end."""
        outcome = run((0, 8, 4), (1, 1, 1), num_blocks=3)
        assert outcome.steps == [{0: 8}, {0: 1}, {0: 1}, {0: 1}, {1: 1}]

    @pytest.mark.parametrize(("declared", "tokens"), [(None, [[1, 2], [1, 2]]), (20, [[1, 2], [3, 4]])])
    def test_declared_output(self, declared: int | None, tokens: list[list[int]]) -> None:
        """Ten blocks hold two requests of 4 + 2 tokens, but only one that may become 4 + 20."""
        assert run((0, 4, 2), (0, 4, 2), num_blocks=10, max_tokens=declared).tokens == tokens

    def test_longer_outputs_declare_themselves(self) -> None:
        """`max_tokens` does not cut what a trace generates."""
        assert len(run((0, 4, 7), max_tokens=3).tokens[0]) == 7


class TestStaticBatch:
    def test_waits_for_all(self) -> None:
        """The third starts after the last token of the batch, though a place is free before."""
        outcome = run((0, 5, 1), (0, 5, 3), (1, 5, 1), capacity_scheduler_policy="STATIC_BATCH")
        assert outcome.steps == [{0: 5, 1: 5}, {1: 1}, {1: 1}, {2: 5}]

    def test_a_prompt_half_read_waits_as_well(self) -> None:
        """With chunks somebody decodes before all prompts are complete, and those stand still."""
        outcome = chunked((0, 4, 3), (0, 8, 1), unit=4, max_num_tokens=8, capacity_scheduler_policy="STATIC_BATCH")
        assert outcome.steps == [{1: 4, 0: 4}, {0: 1}, {0: 1}, {1: 4}]

    def test_what_the_budget_leaves_out_waits(self) -> None:
        """The batch is what a step takes; the second prompt comes when the first request has ended."""
        outcome = run((0, 6, 2), (0, 6, 1), max_num_tokens=8, capacity_scheduler_policy="STATIC_BATCH")
        assert outcome.steps == [{0: 6}, {0: 1}, {1: 6}]


class TestMaxUtilization:
    def test_pauses_who_started_last(self) -> None:
        """Two prompts fill four blocks; the first decode takes the second's, which is read again with its token."""
        outcome = run((0, 8, 3), (0, 8, 2), num_blocks=4, capacity_scheduler_policy=UTILIZE)
        assert outcome.steps == [{0: 8, 1: 8}, {0: 1}, {0: 1}, {1: 9}]
        assert outcome.victims == [[], [1], [], []]
        assert outcome.tokens == [[1, 2, 3], [1, 4]]

    def test_paused_keeps_its_place(self) -> None:
        """Who came later gets nothing in front of it, though a block is free."""
        outcome = run((0, 8, 3), (0, 8, 2), (1, 1, 1), num_blocks=4, capacity_scheduler_policy=UTILIZE)
        assert outcome.steps == [{0: 8, 1: 8}, {0: 1}, {0: 1}, {1: 9, 2: 1}]

    def test_does_not_look_ahead(self) -> None:
        """It starts what GUARANTEED_NO_EVICT would not."""
        requests = ((0, 8, 8), (0, 8, 4))
        assert run(*requests, num_blocks=5, capacity_scheduler_policy=UTILIZE).steps[0] == {0: 8, 1: 8}
        assert run(*requests, num_blocks=5).steps[0] == {0: 8}

    def test_pauses_itself(self) -> None:
        """The first takes the free block; the second has nobody behind it and is paused."""
        outcome = run((0, 8, 2), (0, 8, 2), num_blocks=5, capacity_scheduler_policy=UTILIZE)
        assert outcome.steps == [{0: 8, 1: 8}, {0: 1}, {1: 9}]
        assert outcome.victims[1] == [1]

    def test_who_starts_later_is_paused_for_who_came_earlier(self) -> None:
        """The second gets no unit of four beside the decode, the third fits in whole. When the first takes a block,
        too few of the six are left for the second's four: the third is paused for one who has not even started."""
        requests = ((0, 1, 9), (0, 13, 1), (1, 2, 9))
        outcome = chunked(*requests, unit=4, num_blocks=6, max_num_tokens=4, capacity_scheduler_policy=UTILIZE)
        assert outcome.steps[:5] == [{0: 1}, {0: 1, 2: 2}, {0: 1, 2: 1}, {0: 1, 2: 1}, {0: 1}]
        assert outcome.victims[:5] == [[], [], [], [], [2]]

    def test_grown_above_the_budget(self) -> None:
        """Paused, it is a prompt of 9 tokens, which no step of 8 can hold: the engine would stop, here it is told."""
        outcome = run((0, 6, 20), (1, 7, 5), num_blocks=4, max_num_tokens=8, capacity_scheduler_policy=UTILIZE)
        assert outcome.steps[:4] == [{0: 6}, {0: 1, 1: 7}, {0: 1, 1: 1}, {0: 1}]
        assert outcome.column("status")[1] == "stalled"
        assert outcome.log.reasons[1] == "grew to 9 tokens, more than can be admitted again"


class TestTokens:
    def test_whole_prompts(self) -> None:
        """Without chunks the first prompt that does not fit ends the step."""
        outcome = run((0, 8, 1), (0, 3, 1), (0, 2, 1), max_num_tokens=10)
        assert outcome.steps == [{0: 8}, {1: 3, 2: 2}]

    def test_first_come(self) -> None:
        """Of 10 tokens the second prompt gets 4 of 7, whole units; the third goes on with what is left. Who does not
        complete comes first."""
        outcome = chunked((0, 3, 1), (0, 20, 1), (0, 2, 1), unit=4, max_num_tokens=10)
        assert [list(step.items()) for step in outcome.steps] == [[(1, 4), (0, 3), (2, 2)], [(1, 8)], [(1, 8)]]

    def test_equal_progress(self) -> None:
        """Rounds of 2 + 2 + 2 and 1 + 2 + 0, then no unit of two is left."""
        requests = ((0, 3, 1), (0, 20, 1), (0, 5, 1))
        outcome = chunked(*requests, unit=2, max_num_tokens=10, context_chunking_policy="EQUAL_PROGRESS")
        assert list(outcome.steps[0].items()) == [(1, 4), (2, 2), (0, 3)]

    def test_decodes_go_before_chunks(self) -> None:
        """Prompts get what decodes leave, whole units of it: 4 of 7."""
        outcome = chunked((0, 4, 3), (0, 12, 1), unit=4, max_num_tokens=8)
        assert outcome.steps == [{1: 4, 0: 4}, {0: 1, 1: 4}, {0: 1, 1: 4}]

    def test_no_unit_left(self) -> None:
        """Beside a decode less than a unit is left; the prompt waits, half-read."""
        outcome = chunked((0, 4, 3), (0, 12, 1), unit=8, max_num_tokens=8)
        assert outcome.steps == [{0: 4}, {0: 1}, {0: 1}, {1: 8}, {1: 4}]

    def test_a_first_chunk_takes_all_blocks_of_the_prompt(self) -> None:
        """Three blocks at once, a fourth for the output."""
        outcome = chunked((0, 12, 2), unit=4, max_num_tokens=4, num_blocks=5)
        assert outcome.steps == [{0: 4}, {0: 4}, {0: 4}, {0: 1}]
        assert outcome.iterations["free_blocks"].tolist() == [2, 2, 2, 1]

    def test_unit_is_a_block_unless_given(self) -> None:
        """Of 12 tokens 8 are a whole number of blocks of eight."""
        outcome = run((0, 20, 1), enable_chunked_context=True, tokens_per_block=8, max_num_tokens=12)
        assert outcome.steps == [{0: 8}, {0: 12}]


class TestLimits:
    def test_batch_size(self) -> None:
        """It limits the batch, and with it those who are active."""
        outcome = run((0, 5, 2), (0, 5, 2), (0, 5, 1), max_batch_size=2)
        assert outcome.steps == [{0: 5, 1: 5}, {0: 1, 1: 1}, {2: 5}]

    @pytest.mark.parametrize("option", ["max_num_requests", "max_num_active_requests"])
    def test_other_limits(self, option: str) -> None:
        """One request at a time, where the capacity stage lets no more through, or no more are active."""
        outcome = run((0, 5, 2), (0, 5, 1), **{option: 1})
        assert outcome.steps == [{0: 5}, {0: 1}, {1: 5}]

    def test_longest_sequence(self) -> None:
        """Output is cut at `max_seq_len`; a prompt as long leaves no room for any."""
        outcome = run((0, 7, 20), (0, 10, 1), max_seq_len=10)
        assert outcome.tokens == [[1, 2, 3], []]
        assert outcome.log.reasons == {1: "prompt of 10 tokens, max_seq_len 10 leaves no room for output"}

    def test_long_prompt_without_chunks(self) -> None:
        """No step can hold it."""
        outcome = run((0, 9, 1), (0, 8, 1), max_num_tokens=8)
        assert outcome.log.reasons == {0: "prompt of 9 tokens, max_num_tokens 8 without chunked context"}
        assert outcome.tokens == [[], [1]]

    def test_budget_below_a_unit(self) -> None:
        """A prompt that does not fit whole gets no chunk, ever."""
        outcome = chunked((0, 9, 1), (0, 8, 1), unit=16, max_num_tokens=8)
        assert outcome.log.reasons == {0: "prompt of 9 tokens, max_num_tokens 8 is less than a chunk unit"}

    def test_memory_for_the_prompt_alone(self) -> None:
        """MAX_UTILIZATION tries what may outgrow the memory, and gives it up only then."""
        outcome = run((0, 8, 9), num_blocks=3, capacity_scheduler_policy=UTILIZE)
        assert len(outcome.tokens[0]) == 5
        assert outcome.column("status") == ["stalled"]

    def test_blocks_of_the_engine(self) -> None:
        """`tokens_per_block` is the block size of an experiment's pool."""
        assert make_policy("tensorrt-llm", {"tokens_per_block": 64}, Surroundings("", 0, 4096)).block_size == 64


class Counting(TensorrtLlm):
    """Counts the plans."""

    plans: ClassVar[list[int]] = []

    def plan(self, view: View) -> Batch | None:
        self.plans.append(view.decoding)
        return super().plan(view)


@pytest.mark.parametrize("policy", ["GUARANTEED_NO_EVICT", UTILIZE, "STATIC_BATCH"])
@pytest.mark.parametrize(("blocks", "prompt"), [(2000, 8), (260, 600)])
def test_steps_of_decodes_are_not_planned(policy: str, blocks: int, prompt: int) -> None:
    """A thousand decodes need a few plans, alone or while a prompt waits for their memory."""
    Counting.plans.clear()
    requests = iter([Request(0, 0, 8, 1000), Request(1, 1, prompt, 1)])
    policy_ = Counting(capacity_scheduler_policy=policy)  # type: ignore[arg-type]
    log = simulate(requests, policy_, GpuTimes(ONE_SECOND_A_STEP), block_size=4, num_blocks=blocks)
    assert len(log.iterations["end_ns"]) >= 1000
    assert len(Counting.plans) < 12
