"""Traces of a few requests at one second a step, every time worked out by hand."""

import pytest

from policies.orca import Orca
from policies.sarathi import Sarathi
from policies.simple_chunking import SimpleChunking
from policies.static import Static
from policies.vllm import Vllm
from policies.vllm_v0 import VllmV0
from simulator.core import Request
from simulator.costs import LinearCosts
from simulator.engine import simulate
from simulator.policy import Policy
from simulator.runlog import FINISHED, STALLED
from simulator.scheduler import Scheduler
from simulator.step_times import GpuTimes
from tests.simulator.runs import ONE_SECOND_A_STEP, SECOND, Outcome, replay

SYNC = {"async_scheduling": False, "max_model_len": 10_000}
MIXING_POLICIES = [
    Orca(),
    Sarathi(tile_size=0),
    Sarathi(max_prefills_per_batch=0, tile_size=0),
    Vllm(**SYNC),
]
EVERY_POLICY = [
    *MIXING_POLICIES,
    Static(max_model_len=1000),
    SimpleChunking(),
    VllmV0(),
    Vllm(max_model_len=10_000),
]


def vllm(**options: object) -> Vllm:
    """vLLM that plans each step with the outputs of the one before."""
    return Vllm(**{**SYNC, **options})  # type: ignore[arg-type]


class TestOrca:
    """Three requests; the third arrives at the very end of the first step."""

    @pytest.fixture
    def outcome(self) -> Outcome:
        return replay(Orca(), (0, 5, 3), (0.5, 7, 1), (1, 4, 2))

    def test_steps(self, outcome: Outcome) -> None:
        """Whole prompts run beside the decodes."""
        assert outcome.steps == [{0: 5}, {0: 1, 1: 7, 2: 4}, {0: 1, 2: 1}]

    def test_tokens(self, outcome: Outcome) -> None:
        """The step that ends a prompt yields the first token, each further step one more."""
        assert outcome.tokens == [[1, 2, 3], [2], [2, 3]]

    def test_ttft(self, outcome: Outcome) -> None:
        """Time to first token counts from the arrival."""
        assert outcome.column("ttft_s") == [1, 1.5, 1]

    def test_queue(self, outcome: Outcome) -> None:
        """Queueing lasts from the arrival to the start of the first step that runs the request."""
        assert outcome.column("queue_s") == [0, 0.5, 0]
        assert outcome.column("first_scheduled_s") == [0, 1, 1]

    def test_itl(self, outcome: Outcome) -> None:
        """The gaps of all requests are pooled: two of the first, one of the third."""
        assert outcome.result.gaps.gap_s.repeat(outcome.result.gaps.count).tolist() == [1, 1, 1]
        assert outcome.column("itl_max_s") == [1, None, 1]

    def test_tpot(self, outcome: Outcome) -> None:
        """A request of one token has no time per output token."""
        assert outcome.column("tpot_s") == [1, None, 1]

    def test_finish(self, outcome: Outcome) -> None:
        """The last token is the end."""
        assert outcome.column("finish_s") == [3, 2, 3]
        assert outcome.column("e2e_s") == [3, 1.5, 2]

    def test_iterations(self, outcome: Outcome) -> None:
        """Queues and memory of a row are those after scheduling, before the outputs."""
        rows = outcome.iterations
        assert rows["start_s"].tolist() == [0, 1, 2]
        assert rows["end_s"].tolist() == [1, 2, 3]
        assert rows["num_decodes"].tolist() == [0, 1, 2]
        assert rows["num_prefills"].tolist() == [1, 2, 0]
        assert rows["prefill_tokens"].tolist() == [5, 11, 0]
        assert rows["kv_tokens"].tolist() == [5, 17, 12]  # 5; 6 + 7 + 4; 7 + 5
        assert rows["free_blocks"].tolist() == [999, 997, 998]
        assert rows["running"].tolist() == [1, 3, 2]
        assert rows["waiting"].tolist() == [0, 0, 0]

    def test_summary(self, outcome: Outcome) -> None:
        """Three requests and six tokens in three seconds."""
        row = outcome.result.summary
        assert row["duration_s"] == 3
        assert row["requests_per_s"] == 1
        assert row["output_tokens_per_s"] == 2
        assert row["total_tokens_per_s"] == pytest.approx(22 / 3)
        assert (row["iterations"], row["preemptions"], row["bubble_fraction"]) == (3, 0, 0)
        assert row["kv_peak_fraction"] == pytest.approx(3 / 1000)
        assert row["ttft_mean_s"] == pytest.approx(3.5 / 3)
        assert row["ttft_p50_s"] == 1
        assert row["ttft_p90_s"] == pytest.approx(1.4)


class TestOrcaLimits:
    def test_request_reserves_prompt_and_output(self) -> None:
        """Two requests of 60 + 20 tokens take all ten blocks at once; a third waits for them to end."""
        outcome = replay(Orca(), (0, 60, 20), (0, 60, 20), (0, 1, 1), num_blocks=10)
        assert outcome.iterations["free_blocks"].tolist()[:20] == [0] * 20
        assert outcome.tokens[2] == [21]

    def test_model_length_reserves_the_longest_sequence(self) -> None:
        """With reservations of 96 tokens only one request fits ten blocks at a time."""
        policy = Orca(reservation="max_model_len", max_model_len=96)
        outcome = replay(policy, (0, 60, 2), (0, 60, 2), num_blocks=10)
        assert outcome.tokens == [[1, 2], [3, 4]]
        assert outcome.iterations["free_blocks"].tolist() == [4, 4, 4, 4]

    def test_one_prefill_a_batch(self) -> None:
        """`max_prefills_per_batch: 1` starts one prompt a step."""
        outcome = replay(Orca(max_prefills_per_batch=1), (0, 5, 2), (0, 5, 2), (0, 5, 2))
        assert outcome.steps == [{0: 5}, {0: 1, 1: 5}, {1: 1, 2: 5}, {2: 1}]

    def test_batch_size(self) -> None:
        """`max_batch_size` counts requests."""
        outcome = replay(Orca(max_batch_size=2), (0, 5, 2), (0, 5, 3), (0, 5, 1))
        assert outcome.steps == [{0: 5, 1: 5}, {0: 1, 1: 1}, {1: 1, 2: 5}]

    def test_head_of_the_line(self) -> None:
        """A short request does not pass one that does not fit."""
        outcome = replay(Orca(), (0, 80, 16), (0, 80, 16), (0, 1, 1), num_blocks=10)
        assert outcome.tokens[1][0] == 17
        assert outcome.tokens[2] == [17]

    def test_output_is_cut(self) -> None:
        """Prompt and output together end at `max_model_len`."""
        assert replay(Orca(max_model_len=10), (0, 7, 20)).tokens == [[1, 2, 3]]

    def test_rejection(self) -> None:
        """A request that can never be held is rejected and the others run."""
        outcome = replay(Orca(), (0, 150, 11), (0, 150, 10), num_blocks=10)
        assert outcome.column("status") == ["rejected", "finished"]
        assert outcome.log.reasons == {0: "needs 11 KV-cache blocks at once, the cache has 10"}


class TestSarathi:
    """SARATHI with chunks of four tokens, one prompt at a time."""

    @pytest.fixture
    def outcome(self) -> Outcome:
        return replay(Sarathi(chunk_size=4, tile_size=0), (0, 6, 2), (0, 3, 2), (2, 1, 1))

    def test_steps(self, outcome: Outcome) -> None:
        """The second prompt starts when the first is complete, beside its decode."""
        assert outcome.steps == [{0: 4}, {0: 2}, {0: 1, 1: 3}, {1: 1, 2: 1}]

    def test_times(self, outcome: Outcome) -> None:
        """Tokens, first tokens, queueing and gaps."""
        assert outcome.tokens == [[2, 3], [3, 4], [4]]
        assert outcome.column("ttft_s") == [2, 3, 2]
        assert outcome.column("queue_s") == [0, 2, 1]
        assert outcome.column("tpot_s") == [1, 1, None]
        assert outcome.column("itl_max_s") == [1, 1, None]

    def test_budget_includes_decodes(self) -> None:
        """`max_prefills_per_batch: 0`: decodes and any number of chunks share the chunk size."""
        policy = Sarathi(chunk_size=4, tile_size=0, max_prefills_per_batch=0)
        outcome = replay(policy, (0, 6, 3), (0, 3, 2))
        assert outcome.steps == [{0: 4}, {0: 2, 1: 2}, {0: 1, 1: 1}, {0: 1, 1: 1}]
        assert outcome.tokens == [[2, 3, 4], [3, 4]]

    def test_budget_used_up_by_decodes(self) -> None:
        """When the decodes fill the budget no prompt advances."""
        policy = Sarathi(chunk_size=2, tile_size=0, max_prefills_per_batch=0)
        outcome = replay(policy, (0, 1, 3), (0, 1, 3), (0, 1, 1))
        assert outcome.steps == [{0: 1, 1: 1}, {0: 1, 1: 1}, {0: 1, 1: 1}, {2: 1}]

    @pytest.mark.parametrize(("chunk_size", "decodes", "first"), [(1024, 3, 1021), (256, 17, 239), (128, 128, 128)])
    def test_tiles(self, chunk_size: int, decodes: int, first: int) -> None:
        """Chunk and decodes together fill whole tiles of 128; the last piece of a prompt is as long as it is."""
        short = [(step, 10, 1000) for step in range(decodes)]
        policy = Sarathi(chunk_size=chunk_size, max_num_seqs=200)
        outcome = replay(policy, *short, (decodes, first + 100, 1), costs=LinearCosts(fixed_ns=10**9))
        step = outcome.steps[decodes]
        assert len(step) == decodes + 1
        assert step[decodes] == first
        assert outcome.steps[decodes + 1][decodes] == 100

    def test_without_tiles(self) -> None:
        """`tile_size: 0` gives the prompt the whole chunk size."""
        short = [(step, 10, 1000) for step in range(3)]
        outcome = replay(Sarathi(chunk_size=1024, tile_size=0), *short, (3, 5000, 1))
        assert outcome.steps[3] == {0: 1, 1: 1, 2: 1, 3: 1024}

    def test_chunk_below_a_tile(self) -> None:
        """A chunk size that fills no tile is used as it is."""
        assert replay(Sarathi(chunk_size=100, tile_size=128), (0, 150, 1)).steps == [{0: 100}, {0: 50}]

    def test_number_of_sequences(self) -> None:
        """`max_num_seqs` counts running requests."""
        policy = Sarathi(max_num_seqs=1)
        assert replay(policy, (0, 5, 2), (0, 5, 1)).tokens == [[1, 2], [3]]

    @pytest.mark.parametrize(("blocks", "first_token"), [(98, 1), (99, 3)])
    def test_watermark(self, blocks: int, first_token: int) -> None:
        """Admission keeps 1 % of the pool free: beside 100 of 200 blocks 98 are admitted, 99 wait."""
        policy = Sarathi(chunk_size=10_000, tile_size=0, max_prefills_per_batch=0)
        outcome = replay(policy, (0, 1600, 2), (0, 16 * blocks, 1), num_blocks=200)
        assert outcome.tokens[1] == [first_token]

    def test_prompt_above_the_watermark(self) -> None:
        """A prompt that would leave less than the watermark free is rejected."""
        outcome = replay(Sarathi(), (0, 16 * 198, 1), (0, 16 * 199, 1), num_blocks=200)
        assert outcome.column("status") == ["finished", "rejected"]
        assert "199 KV-cache blocks" in outcome.log.reasons[1]

    def test_preemption(self) -> None:
        """Two prompts fill ten blocks; the first decode takes the second one's and it starts over later."""
        policy = Sarathi(chunk_size=200, tile_size=0, max_prefills_per_batch=0)
        outcome = replay(policy, (0, 80, 3), (0, 80, 2), num_blocks=10)
        assert outcome.steps == [{0: 80, 1: 80}, {0: 1}, {0: 1}, {1: 81}]
        assert outcome.victims == [[], [1], [], []]
        assert outcome.tokens == [[1, 2, 3], [1, 4]]

    def test_preempting_step_admits_nobody(self) -> None:
        """In a step that preempts a short prompt waits too, though there is room; then it waits behind the victim."""
        policy = Sarathi(chunk_size=200, tile_size=0, max_prefills_per_batch=0)
        outcome = replay(policy, (0, 80, 3), (0, 80, 2), (1, 10, 1), num_blocks=10)
        assert outcome.steps == [{0: 80, 1: 80}, {0: 1}, {0: 1}, {1: 81, 2: 10}]


class TestStatic:
    """Three requests; the second and third wait for the end of the first one's batch."""

    @pytest.fixture
    def outcome(self) -> Outcome:
        return replay(Static(max_model_len=1000), (0, 5, 3), (0.5, 7, 1), (1, 4, 2))

    def test_steps(self, outcome: Outcome) -> None:
        """Who arrives while a batch runs starts after its last token."""
        assert outcome.steps == [{0: 5}, {0: 1}, {0: 1}, {1: 7, 2: 4}, {2: 1}]

    def test_times(self, outcome: Outcome) -> None:
        """Tokens, first tokens and queueing."""
        assert outcome.tokens == [[1, 2, 3], [4], [4, 5]]
        assert outcome.column("ttft_s") == [1, 3.5, 3]
        assert outcome.column("queue_s") == [0, 2.5, 2]

    def test_seats_stay_empty(self) -> None:
        """A request that ends early makes no room for the next one."""
        outcome = replay(Static(max_batch_size=2, max_model_len=1000), (0, 5, 1), (0, 5, 3), (0, 5, 1))
        assert outcome.steps == [{0: 5, 1: 5}, {1: 1}, {1: 1}, {2: 5}]

    def test_reserves_the_longest_sequence(self) -> None:
        """With reservations of 96 tokens ten blocks hold one request, however short."""
        outcome = replay(Static(max_model_len=96), (0, 5, 2), (0, 5, 1), num_blocks=10)
        assert outcome.tokens == [[1, 2], [3]]
        assert outcome.iterations["free_blocks"].tolist() == [4, 4, 4]

    def test_padding(self) -> None:
        """Three prompts cost three of the longest; three decode beside each other to the end, at 10 tokens and more.

        With 100 s a step, 1 s a token and 1 ms a token of context: the prompts 130.03 s, the first decodes 103 s and
        33 ms, the second 103 s and 36 ms; then the next batch. What is logged are the real tokens.
        """
        costs = LinearCosts(fixed_ns=100 * SECOND, per_token_ns=SECOND, per_context_token_ns=SECOND // 1000)
        requests = (0, 5, 3), (0, 10, 1), (0, 2, 2), (1, 4, 1)
        outcome = replay(Static(max_batch_size=3, max_model_len=1000, padding=True), *requests, costs=costs)
        first, second, third = 130.03, 233.063, 336.099
        assert outcome.tokens == [[first, second, third], [first], [first, second], [440.103]]
        assert outcome.steps == [{0: 5, 1: 10, 2: 2}, {0: 1, 2: 1}, {0: 1}, {3: 4}]
        assert outcome.iterations["prefill_tokens"].tolist() == [17, 0, 0, 4]
        assert outcome.iterations["num_decodes"].tolist() == [0, 2, 1, 0]

    def test_limits(self) -> None:
        """Output is cut at `max_model_len`; a longer prompt, or a reservation above the pool, is rejected."""
        outcome = replay(Static(max_model_len=10), (0, 7, 20), (0, 11, 1))
        assert outcome.tokens == [[1, 2, 3], []]
        assert outcome.log.reasons == {1: "prompt of 11 tokens, max_model_len 10"}
        outcome = replay(Static(max_model_len=161), (0, 1, 1), num_blocks=10)
        assert outcome.log.reasons == {0: "needs 11 KV-cache blocks at once, the cache has 10"}


class TestSimpleChunking:
    """Chunks of four tokens; prefills and decodes take turns."""

    @pytest.fixture
    def outcome(self) -> Outcome:
        return replay(SimpleChunking(chunk_size=4), (0, 3, 3), (0, 6, 2), (1, 1, 1))

    def test_steps(self, outcome: Outcome) -> None:
        """Prefill, decode, prefill, decode; the third prompt starts when the second is complete."""
        assert outcome.steps == [{0: 3, 1: 1}, {0: 1}, {1: 4}, {0: 1}, {1: 1}, {1: 1}, {2: 1}]

    def test_times(self, outcome: Outcome) -> None:
        """Tokens, first tokens and queueing. After the sixth step it is the prefills' turn."""
        assert outcome.tokens == [[1, 2, 4], [5, 6], [7]]
        assert outcome.column("ttft_s") == [1, 5, 6]
        assert outcome.column("queue_s") == [0, 0, 5]

    def test_nobody_decodes(self) -> None:
        """A decode turn without decodes passes at once: the chunks of a lone prompt follow each other."""
        assert replay(SimpleChunking(chunk_size=4), (0, 10, 2)).steps == [{0: 4}, {0: 4}, {0: 2}, {0: 1}]

    def test_nothing_to_prefill(self) -> None:
        """A prefill turn without prompts passes at once, and after the decodes it is prefill's turn again."""
        outcome = replay(SimpleChunking(), (0, 5, 5), (2, 5, 1), (3, 5, 1))
        assert outcome.steps == [{0: 5}, {0: 1}, {1: 5}, {0: 1}, {2: 5}, {0: 1}, {0: 1}]

    def test_prompts_in_progress_go_alone(self) -> None:
        """Beside the rest of a prompt nobody is admitted, though the chunk size has room."""
        outcome = replay(SimpleChunking(chunk_size=4), (0, 5, 1), (0, 1, 1))
        assert outcome.steps == [{0: 4}, {0: 1}, {1: 1}]

    def test_number_of_sequences(self) -> None:
        """`max_num_seqs` counts running requests."""
        outcome = replay(SimpleChunking(max_num_seqs=1), (0, 5, 2), (0, 5, 1))
        assert outcome.tokens == [[1, 2], [3]]

    @pytest.mark.parametrize(("blocks", "first_token"), [(98, 1), (99, 3)])
    def test_watermark(self, blocks: int, first_token: int) -> None:
        """Beside 100 of 200 blocks 98 are admitted, 99 wait."""
        policy = SimpleChunking(chunk_size=10_000)
        assert replay(policy, (0, 1600, 2), (0, 16 * blocks, 1), num_blocks=200).tokens[1] == [first_token]

    def test_preemption(self) -> None:
        """The first decode takes the second prompt's blocks, though that is still in progress."""
        outcome = replay(SimpleChunking(chunk_size=100), (0, 80, 2), (0, 80, 1), num_blocks=10)
        assert outcome.steps == [{0: 80, 1: 20}, {0: 1}, {1: 80}]
        assert outcome.victims == [[], [1], []]
        assert outcome.tokens == [[1, 2], [3]]


class TestVllmV0:
    """Whole prompts first; decodes pause for them."""

    @pytest.fixture
    def outcome(self) -> Outcome:
        return replay(VllmV0(), (0, 5, 3), (0.5, 7, 1), (1, 4, 2))

    def test_steps(self, outcome: Outcome) -> None:
        """Both later prompts start together, without the first request's decode."""
        assert outcome.steps == [{0: 5}, {1: 7, 2: 4}, {0: 1, 2: 1}, {0: 1}]

    def test_times(self, outcome: Outcome) -> None:
        """The pause is the first request's longest gap."""
        assert outcome.tokens == [[1, 3, 4], [2], [2, 3]]
        assert outcome.column("ttft_s") == [1, 1.5, 1]
        assert outcome.column("itl_max_s") == [2, None, 1]

    def test_budget(self) -> None:
        """`max_num_batched_tokens` limits the prompts of a step; a short one does not pass one that does not fit."""
        outcome = replay(VllmV0(max_num_batched_tokens=10), (0, 6, 1), (0, 5, 1), (0, 1, 1))
        assert outcome.steps == [{0: 6}, {1: 5, 2: 1}]

    def test_budget_above_the_longest_sequence(self) -> None:
        """The budget is at most `max_model_len`."""
        policy = VllmV0(max_num_batched_tokens=100, max_model_len=10)
        assert replay(policy, (0, 6, 1), (0, 5, 1)).steps == [{0: 6}, {1: 5}]

    def test_number_of_sequences(self) -> None:
        """`max_num_seqs` counts running requests."""
        outcome = replay(VllmV0(max_num_seqs=2), (0, 5, 2), (0, 5, 3), (0, 5, 1))
        assert outcome.steps == [{0: 5, 1: 5}, {0: 1, 1: 1}, {2: 5}, {1: 1}]

    @pytest.mark.parametrize(("blocks", "first_token"), [(98, 1), (99, 3)])
    def test_watermark(self, blocks: int, first_token: int) -> None:
        """Beside 100 of 200 blocks 98 are admitted, 99 wait."""
        assert replay(VllmV0(), (0, 1600, 2), (0, 16 * blocks, 1), num_blocks=200).tokens[1] == [first_token]

    def test_preemption(self) -> None:
        """Two prompts fill ten blocks; the first decode takes the second one's, which keeps its token."""
        outcome = replay(VllmV0(), (0, 80, 3), (0, 80, 2), num_blocks=10)
        assert outcome.steps == [{0: 80, 1: 80}, {0: 1}, {0: 1}, {1: 81}]
        assert outcome.victims == [[], [1], [], []]
        assert outcome.tokens == [[1, 2, 3], [1, 4]]

    def test_limits(self) -> None:
        """Output is cut at `max_model_len`; a prompt above the budget is rejected and nobody waits for it."""
        policy = VllmV0(max_num_batched_tokens=8, max_model_len=10)
        outcome = replay(policy, (0, 9, 1), (0, 7, 20))
        assert outcome.steps == [{1: 7}, {1: 1}, {1: 1}]
        assert outcome.log.reasons == {0: "prompt of 9 tokens, at most 8 fit into a step"}

    def test_prompt_grown_above_the_budget(self) -> None:
        """A preempted request whose prompt and output exceed the budget can never be admitted again."""
        outcome = replay(VllmV0(max_num_batched_tokens=80), (0, 80, 3), (0, 80, 3), num_blocks=11)
        assert outcome.column("status") == ["finished", "stalled"]
        assert outcome.log.reasons == {1: "grew to 81 tokens, more than can be admitted again"}

    def test_dropped_at_the_head_of_the_queue(self) -> None:
        """Without the check at arrival: the step that drops a prompt admits who stands behind it and decodes nobody."""
        policy = VllmV0(max_num_batched_tokens=8)
        scheduler = Scheduler(
            policy, GpuTimes(ONE_SECOND_A_STEP), block_size=16, num_blocks=100, give_up_on_impossible=False
        )
        for index, prompt in enumerate((5, 9, 2, 10)):
            scheduler.arrive(Request(index, 0, prompt, 3))
        scheduler.schedule(0)
        scheduler.complete()
        assert [request.index for request in scheduler.waiting] == []
        assert scheduler.reasons.keys() == {1, 3}
        scheduler.arrive(Request(4, 1, 9, 1))
        assert scheduler.schedule(SECOND) == 2 * SECOND
        rows = scheduler.logged_run().iterations
        assert rows["num_prefills"].tolist() == [2, 0]
        assert rows["num_decodes"].tolist() == [0, 0]


class TestVllmV0Chunked:
    """vLLM 0.6's chunked prefill: a budget of tokens, decodes first."""

    @staticmethod
    def policy(budget: int, **options: int) -> VllmV0:
        options = {"max_num_seqs": min(budget, 256)} | options
        return VllmV0(max_num_batched_tokens=budget, enable_chunked_prefill=True, **options)

    def test_steps(self) -> None:
        """Decodes, then the prompt in progress, then the next in the queue for what is left of the budget."""
        outcome = replay(self.policy(4), (0, 3, 3), (0, 6, 2), (1, 1, 1))
        assert outcome.steps == [{0: 3, 1: 1}, {0: 1, 1: 3}, {0: 1, 1: 2, 2: 1}, {1: 1}]
        assert outcome.tokens == [[1, 2, 3], [3, 4], [3]]

    def test_decodes_use_up_the_budget(self) -> None:
        """Who waits is not admitted for no tokens, though there are places."""
        outcome = replay(self.policy(2), (0, 1, 3), (0, 1, 3), (0, 1, 1), block_size=4)
        assert outcome.steps == [{0: 1, 1: 1}, {0: 1, 1: 1}, {0: 1, 1: 1}, {2: 1}]

    def test_number_of_sequences(self) -> None:
        """`max_num_seqs` counts running requests."""
        outcome = replay(self.policy(100, max_num_seqs=2), (0, 5, 2), (0, 5, 3), (0, 5, 1))
        assert outcome.steps == [{0: 5, 1: 5}, {0: 1, 1: 1}, {1: 1, 2: 5}]

    def test_blocks_of_the_whole_prompt(self) -> None:
        """The first chunk of four tokens takes the blocks of all twenty; its last one is full, so it asks for none."""
        outcome = replay(self.policy(4), (0, 20, 1), (4, 4, 1), block_size=4, num_blocks=5)
        assert outcome.iterations["free_blocks"].tolist() == [0, 0, 0, 0, 0, 4]
        assert outcome.victims == [[]] * 6

    @pytest.mark.parametrize(("blocks", "first_token"), [(98, 1), (99, 3)])
    def test_watermark(self, blocks: int, first_token: int) -> None:
        """Beside 100 of 200 blocks 98 are admitted, 99 wait."""
        requests = (0, 1600, 2), (0, 16 * blocks, 1)
        assert replay(self.policy(10_000), *requests, num_blocks=200).tokens[1] == [first_token]

    def test_last_of_the_queue_is_preempted(self) -> None:
        """The first decode takes the blocks of the prompt in progress, which begins anew once they are free."""
        outcome = replay(self.policy(100), (0, 80, 3), (0, 80, 1), num_blocks=10)
        assert outcome.steps == [{0: 80, 1: 20}, {0: 1}, {0: 1}, {1: 80}]
        assert outcome.victims == [[], [1], [], []]

    def test_a_prompt_preempts_itself(self) -> None:
        """The decode opens the last block; the prompt behind it sees none and leaves, though it would take none."""
        outcome = replay(self.policy(100), (0, 64, 2), (0, 73, 1), num_blocks=10)
        assert outcome.steps == [{0: 64, 1: 36}, {0: 1}, {1: 73}]
        assert outcome.victims == [[], [1], []]

    def test_admission_beside_a_preemption(self) -> None:
        """Who waits may take what the victim held; the victim then waits in front of all others."""
        requests = (0, 64, 4), (0, 95, 1), (1, 16, 2), (1, 90, 1)
        outcome = replay(self.policy(100), *requests, num_blocks=10)
        assert outcome.steps == [{0: 64, 1: 36}, {0: 1, 2: 16}, {0: 1, 2: 1}, {0: 1}, {1: 95}, {3: 90}]
        assert outcome.victims == [[], [1], [], [], [], []]

    def test_prompt_in_a_full_pool(self) -> None:
        """In chunks it would preempt itself for ever; in one piece it runs."""
        requests = [(0, 159, 1)]
        outcome = replay(self.policy(100), *requests, num_blocks=10)
        assert outcome.log.reasons == {0: "takes all 10 KV-cache blocks and would ask for another before it is done"}
        assert replay(self.policy(159), *requests, num_blocks=10).tokens == [[1]]

    def test_prompt_above_the_budget(self) -> None:
        """It is computed in chunks; only `max_model_len` limits it."""
        outcome = replay(self.policy(4, max_model_len=10), (0, 9, 5), (0, 11, 1))
        assert outcome.steps == [{0: 4}, {0: 4}, {0: 1}]
        assert outcome.log.reasons == {1: "prompt of 11 tokens, max_model_len 10"}


class TestVllm:
    """A budget of four tokens cuts a ten-token prompt."""

    @pytest.fixture
    def outcome(self) -> Outcome:
        return replay(vllm(max_num_batched_tokens=4, max_num_seqs=4), (0, 10, 2), (0, 3, 2))

    def test_steps(self, outcome: Outcome) -> None:
        """What the first prompt leaves of the budget goes to the second."""
        assert outcome.steps == [{0: 4}, {0: 4}, {0: 2, 1: 2}, {0: 1, 1: 1}, {1: 1}]

    def test_times(self, outcome: Outcome) -> None:
        """Tokens, first tokens, queueing and gaps."""
        assert outcome.tokens == [[3, 4], [4, 5]]
        assert outcome.column("ttft_s") == [3, 4]
        assert outcome.column("queue_s") == [0, 2]
        assert outcome.column("tpot_s") == [1, 1]
        assert outcome.result.gaps.end_s.tolist() == [4, 5]

    def test_long_prefill_threshold(self) -> None:
        """vLLM's own example: a budget of 1024, a threshold of 400 and three prompts of 800."""
        policy = vllm(max_num_batched_tokens=1024, long_prefill_token_threshold=400)
        outcome = replay(policy, *[(0, 800, 2)] * 3)
        assert outcome.steps == [{0: 400, 1: 400, 2: 224}, {0: 400, 1: 400, 2: 224}, {0: 1, 1: 1, 2: 352}, {2: 1}]

    def test_threshold_leaves_room(self) -> None:
        """A long prompt cut by the threshold leaves the rest of each step to a short one behind it."""
        policy = vllm(max_num_batched_tokens=4, max_num_seqs=4, long_prefill_token_threshold=3)
        outcome = replay(policy, (0, 9, 1), (0, 1, 2))
        assert outcome.steps == [{0: 3, 1: 1}, {0: 3, 1: 1}, {0: 3}]

    def test_short_prompts_do_not_pass(self) -> None:
        """Without chunked prefill a prompt that exceeds the rest of the budget ends admission."""
        policy = vllm(max_num_batched_tokens=20, max_num_seqs=8, max_model_len=20, enable_chunked_prefill=False)
        outcome = replay(policy, (0, 12, 1), (0, 12, 1), (0, 2, 1))
        assert outcome.steps == [{0: 12}, {1: 12, 2: 2}]

    def test_threshold_chunks_without_chunked_prefill(self) -> None:
        """The threshold comes before the test of the budget, so it cuts prompts all the same."""
        policy = vllm(
            max_num_batched_tokens=20,
            max_num_seqs=8,
            max_model_len=20,
            enable_chunked_prefill=False,
            long_prefill_token_threshold=8,
        )
        assert replay(policy, (0, 12, 1)).steps == [{0: 8}, {0: 4}]

    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_preemption_by_recompute(self, asynchronous: bool) -> None:
        """Ten usable blocks, two prompts of five: the first decode preempts the second, which keeps its token."""
        policy = vllm(async_scheduling=asynchronous)
        outcome = replay(policy, (0, 80, 3), (0, 80, 2), num_blocks=11)
        assert outcome.steps == [{0: 80, 1: 80}, {0: 1}, {0: 1}, {1: 81}]
        assert outcome.victims == [[], [1], [], []]
        assert outcome.tokens == [[1, 2, 3], [1, 4]]
        assert outcome.column("preemptions") == [0, 1]
        assert outcome.column("itl_max_s") == [1, 3]
        assert outcome.iterations["free_blocks"].tolist() == [0, 4, 4, 4]

    def test_resumed_first(self) -> None:
        """A preempted request waits in front of those that came after it."""
        outcome = replay(vllm(max_num_seqs=2), (0, 80, 3), (0, 80, 2), (0, 10, 1), num_blocks=11)
        assert outcome.steps[3] == {1: 81, 2: 10}

    def test_preempting_step_admits_nobody(self) -> None:
        """In a step that preempts a short prompt waits too, though there is room; then it waits behind the victim."""
        outcome = replay(vllm(), (0, 80, 3), (0, 80, 2), (1, 10, 1), num_blocks=11)
        assert outcome.steps == [{0: 80, 1: 80}, {0: 1}, {0: 1}, {1: 81, 2: 10}]

    def test_number_of_sequences(self) -> None:
        """`max_num_seqs` counts running requests."""
        outcome = replay(vllm(max_num_seqs=2), (0, 5, 2), (0, 5, 3), (0, 5, 1))
        assert outcome.steps == [{0: 5, 1: 5}, {0: 1, 1: 1}, {1: 1, 2: 5}]

    def test_whole_prompt_must_fit(self) -> None:
        """Full-ISL admission: beside two taken of ten blocks a prompt of nine waits, though its chunk needs two."""
        policy = vllm(max_num_batched_tokens=64, max_num_seqs=8, long_prefill_token_threshold=32)
        outcome = replay(policy, (0, 96, 1), (0, 144, 1), num_blocks=11)
        assert outcome.steps[:4] == [{0: 32}, {0: 32}, {0: 32}, {1: 32}]
        assert outcome.column("preemptions") == [0, 0]

    def test_chunk_must_fit(self) -> None:
        """Without full-ISL admission the same prompt starts at once and is preempted when the pool is empty."""
        policy = vllm(
            max_num_batched_tokens=64,
            max_num_seqs=8,
            long_prefill_token_threshold=32,
            scheduler_reserve_full_isl=False,
        )
        outcome = replay(policy, (0, 96, 1), (0, 144, 1), num_blocks=11)
        assert outcome.steps[:4] == [{0: 32, 1: 32}, {0: 32, 1: 32}, {0: 32}, {1: 32}]
        assert outcome.column("preemptions") == [0, 1]

    def test_output_is_cut(self) -> None:
        """Generation ends when prompt and output reach `max_model_len`."""
        outcome = replay(vllm(max_model_len=10), (0, 7, 20))
        assert outcome.tokens == [[1, 2, 3]]
        assert outcome.column("generated_tokens") == [3]
        assert outcome.column("output_tokens") == [20]

    @pytest.mark.parametrize(("prompt", "status"), [(9, "finished"), (10, "rejected"), (11, "rejected")])
    def test_prompt_must_leave_room(self, prompt: int, status: str) -> None:
        """A prompt of `max_model_len` tokens or more cannot run."""
        assert replay(vllm(max_model_len=10), (0, prompt, 5)).column("status") == [status]

    def test_null_block(self) -> None:
        """One block of the reported number is never handed out."""
        outcome = replay(vllm(), (0, 160, 1), (0, 161, 1), num_blocks=11)
        assert outcome.column("status") == ["finished", "rejected"]
        assert outcome.iterations["free_blocks"].tolist() == [0]

    def test_outgrown_cache_stalls(self) -> None:
        """A sequence that outgrows the whole cache can never end and is dropped as stalled."""
        outcome = replay(vllm(), (0, 30, 10), num_blocks=3)
        assert outcome.column("status") == ["stalled"]
        assert outcome.column("finish_s") == [None]
        assert outcome.tokens == [[1, 2, 3]]  # tokens 31, 32 and 33; the KV entry of the 33rd has no block

    def test_priority_admission(self) -> None:
        """In priority mode the smallest number goes first; equals go by arrival."""
        policy = vllm(scheduling_policy="priority", max_num_seqs=1)
        outcome = replay(policy, (0, 5, 1, 2), (0, 5, 1, 0), (0, 5, 1, 1), (0, 5, 1, 0))
        assert [next(iter(step)) for step in outcome.steps] == [1, 3, 2, 0]

    @pytest.mark.parametrize(("mode", "victim"), [("fcfs", 1), ("priority", 0)])
    def test_victim(self, mode: str, victim: int) -> None:
        """Step 7 opens the twelfth of eleven blocks: first come first served preempts the last, priority mode the
        least urgent, although that one is already scheduled."""
        outcome = replay(vllm(scheduling_policy=mode), (0, 80, 9, 5), (1, 75, 9, 0), num_blocks=12)
        assert outcome.steps[:8] == [{0: 80}, {0: 1, 1: 75}, *[{0: 1, 1: 1}] * 5, {1 - victim: 1}]
        assert outcome.victims[7] == [victim]
        if mode == "priority":
            assert outcome.tokens == [[1, 2, 3, 4, 5, 6, 7, 11, 12], [2, 3, 4, 5, 6, 7, 8, 9, 10]]


class TestVllmAsync:
    """Asynchronous scheduling: a step is planned while the one before it runs."""

    @pytest.fixture
    def outcome(self) -> Outcome:
        return replay(Vllm(max_model_len=10_000), (0, 5, 3), (0.5, 7, 2))

    def test_arrival_joins_the_step_after_next(self, outcome: Outcome) -> None:
        """Who arrives while steps 0 and 1 are in flight joins step 2."""
        assert outcome.steps == [{0: 5}, {0: 1}, {0: 1, 1: 7}, {1: 1}]

    def test_times(self, outcome: Outcome) -> None:
        """Steps follow each other without a gap; the first request is not delayed, the second one step."""
        assert outcome.tokens == [[1, 2, 3], [3, 4]]
        assert outcome.column("ttft_s") == [1, 2.5]
        assert outcome.column("queue_s") == [0, 1.5]
        assert outcome.column("tpot_s") == [1, 1]

    def test_synchronous(self) -> None:
        """The same trace with synchronous scheduling: the second request joins step 1."""
        outcome = replay(vllm(), (0, 5, 3), (0.5, 7, 2))
        assert outcome.tokens == [[1, 2, 3], [2, 3]]
        assert outcome.column("queue_s") == [0, 0.5]

    def test_no_wasted_step(self) -> None:
        """Output lengths are known: nobody decodes past the last token."""
        outcome = replay(Vllm(max_model_len=10_000), (0, 5, 1))
        assert outcome.steps == [{0: 5}]

    def test_blocks_are_free_after_the_output(self) -> None:
        """What a finished request holds is free for the first step planned after its last output."""
        outcome = replay(Vllm(max_model_len=10_000), (0, 160, 1), (0, 160, 1), num_blocks=11)
        assert outcome.tokens == [[1], [2]]
        outcome = replay(Vllm(max_model_len=10_000), (0, 144, 2), (0, 16, 3), (0, 144, 1), num_blocks=14)
        assert outcome.steps == [{0: 144, 1: 16}, {0: 1, 1: 1}, {1: 1}, {2: 144}]


@pytest.mark.parametrize("policy", MIXING_POLICIES)
def test_arrival_at_the_end_of_a_step(policy: Policy) -> None:
    """A request that arrives at exactly a step's end joins the next step."""
    outcome = replay(policy, (0, 5, 3), (1, 5, 1))
    assert outcome.tokens == [[1, 2, 3], [2]]


@pytest.mark.parametrize("policy", MIXING_POLICIES)
def test_arrival_just_after_the_end_of_a_step(policy: Policy) -> None:
    """One nanosecond later it waits a step longer."""
    outcome = replay(policy, (0, 5, 3), (1.000000001, 5, 1))
    assert outcome.tokens == [[1, 2, 3], [3]]


def test_async_arrival_at_the_end_of_a_step() -> None:
    """Asynchronous: a request that arrives as step 0 ends joins step 2, which is planned then."""
    outcome = replay(Vllm(max_model_len=10_000), (0, 5, 4), (1, 5, 1))
    assert outcome.steps == [{0: 5}, {0: 1}, {0: 1, 1: 5}, {0: 1}]


@pytest.mark.parametrize("policy", EVERY_POLICY)
def test_idle_engine_starts_at_the_arrival(policy: Policy) -> None:
    """An idle engine runs a request as it arrives; waiting for arrivals is no bubble."""
    outcome = replay(policy, (0, 5, 1), (10.25, 5, 2))
    assert outcome.tokens == [[1], [11.25, 12.25]]
    assert outcome.iterations["start_s"].tolist() == [0, 10.25, 11.25]
    assert outcome.result.summary["bubble_fraction"] == 0


@pytest.mark.parametrize("policy", EVERY_POLICY)
def test_costs_of_a_step(policy: Policy) -> None:
    """A step costs 1000 ns, 10 a token and 1 a context token: 10 + 3 tokens alone, then their decodes."""
    costs = LinearCosts(fixed_ns=1000, per_token_ns=10, per_context_token_ns=1)
    outcome = replay(policy, (0, 10, 3), costs=costs)
    assert outcome.log.iterations["end_ns"].tolist() == [1110, 2131, 3153]  # 1000+100+10, 1000+10+11, 1000+10+12


def test_a_hopeless_request_stalls_alone() -> None:
    """Sarathi: once preempted with more tokens than admission can take, a request is dropped and the next one runs."""
    requests = [Request(0, 0, 10, 100_000), Request(1, 1, 10, 5)]
    log = simulate(
        iter(requests), Sarathi(max_num_seqs=1), GpuTimes(LinearCosts(fixed_ns=10)), block_size=16, num_blocks=200
    )
    status = dict(zip(log.requests["request"].tolist(), log.requests["status"].tolist(), strict=True))
    assert status == {0: STALLED, 1: FINISHED}
