"""SGLang's rules on traces worked out by hand: a step takes a second, pages have one token unless said otherwise."""

from typing import Any, ClassVar

import pytest

from policies._sglang_loop import SglangLoop
from policies.sglang import Sglang
from simulator.core import Batch, Request, View
from simulator.errors import InputError
from simulator.plugins import make_policy
from simulator.runlog import REJECTED
from simulator.scheduler import Scheduler
from simulator.step_times import GpuTimes
from tests.policies.test_names import A6000, H200
from tests.simulator.runs import ONE_SECOND_A_STEP, SECOND, Outcome, replay
from tests.simulator.test_coasting import run

Requests = tuple[float, int, int]


def serve(*requests: Requests, pool: int = 1000, **options: Any) -> Outcome:
    """Requests `(second of arrival, prompt, output)` under the normal loop without radix cache."""
    options = {"disable_overlap_schedule": True, "disable_radix_cache": True, **options}
    policy = Sglang(**options)
    return replay(policy, *requests, block_size=policy.page_size, num_blocks=pool // policy.page_size)


class TestPrefillFirst:
    def test_decodes_wait_for_a_prompt(self) -> None:
        """A new prompt runs alone, and who decodes gets no token in that second."""
        outcome = serve((0, 5, 4), (1, 3, 2))
        assert outcome.steps == [{0: 5}, {1: 3}, {0: 1, 1: 1}, {0: 1}, {0: 1}]
        assert outcome.tokens == [[1, 3, 4, 5], [2, 3]]

    def test_one_prompt_in_progress(self) -> None:
        """What a chunk leaves of the budget begins the next prompt, which alone is then in progress."""
        steps = serve((0, 6, 2), (0, 6, 2), chunked_prefill_size=4).steps
        assert steps == [{0: 4}, {0: 2, 1: 2}, {1: 4}, {0: 1, 1: 1}]

    def test_whole_prompts(self) -> None:
        """Without chunks the input limit is looked at between prompts: it is exceeded, then nobody follows."""
        steps = serve((0, 6, 1), (0, 6, 1), (0, 6, 1), chunked_prefill_size=-1, max_prefill_tokens=7).steps
        assert steps == [{0: 6, 1: 6}, {2: 6}]

    def test_places(self) -> None:
        """No more run than may."""
        assert serve((0, 2, 2), (0, 2, 1), max_running_requests=1).steps == [{0: 2}, {0: 1}, {1: 2}]


class TestMixedChunk:
    def test_decodes_ride_along(self) -> None:
        """Each takes a token of the chunk."""
        steps = serve((0, 2, 4), (1, 6, 1), chunked_prefill_size=4, enable_mixed_chunk=True).steps
        assert steps == [{0: 2}, {1: 3, 0: 1}, {1: 3, 0: 1}, {0: 1}]

    def test_more_decodes_than_a_chunk_has_tokens(self) -> None:
        """Two decodes use up a chunk of two: the prompt waits until one of them ends."""
        options: dict[str, Any] = {"chunked_prefill_size": 2, "enable_mixed_chunk": True}
        steps = serve((0, 1, 3), (0, 1, 9), (1, 2, 1), **options).steps
        assert steps[:5] == [{0: 1, 1: 1}, {0: 1, 1: 1}, {0: 1, 1: 1}, {2: 1, 1: 1}, {2: 1, 1: 1}]


class TestAdmission:
    OPTIONS: ClassVar[dict[str, Any]] = {"ignore_eos": False, "max_new_tokens": 50, "pool": 100}

    @pytest.mark.parametrize(("prompt", "joins"), [(4, True), (5, False)])
    def test_new_token_ratio(self, prompt: int, joins: bool) -> None:
        """Of 90 free tokens 0.7 x 49 are reckoned with, so 55.7 remain: a prompt of 4 + 50 + 1 fits, one of 5 not."""
        steps = serve((0, 10, 3), (1, prompt, 1), **self.OPTIONS).steps
        assert steps[1] == ({1: prompt} if joins else {0: 1})

    def test_conservativeness(self) -> None:
        """Half as careful, half the ratio."""
        steps = serve((0, 10, 3), (1, 5, 1), schedule_conservativeness=0.5, **self.OPTIONS).steps
        assert steps[1] == {1: 5}

    @pytest.mark.parametrize(("output", "joins"), [(38, True), (39, False)])
    def test_completion_order(self, output: int, joins: bool) -> None:
        """With known lengths: 79 are free beside the prompt and a page. Two use 76 in 38 steps; 78 are too many."""
        outcome = serve((0, 10, 60), (1, 10, output), pool=100)
        assert (outcome.steps[1] == {1: 10}) is joins

    @pytest.mark.parametrize(("prompt", "joins"), [(3189, True), (3190, False)])
    def test_shut_until_somebody_leaves(self, prompt: int, joins: bool) -> None:
        """Who was refused by one token would fit after a step, in which the ratio falls; but nobody is asked again."""
        steps = serve((0, 10, 5), (1, prompt, 1), ignore_eos=False, max_new_tokens=4000, pool=10000).steps
        alone = [{0: 1}] * 4
        assert steps == [{0: 10}, *([{1: prompt}, *alone] if joins else [*alone, {1: prompt}])]


class TestRatio:
    def ratios(self, *requests: tuple[int, int, int]) -> list[float]:
        """The ratio after each plan."""
        policy = Sglang(disable_overlap_schedule=True, disable_radix_cache=True)
        scheduler = Scheduler(policy, GpuTimes(ONE_SECOND_A_STEP), block_size=1, num_blocks=5000)
        assert isinstance(scheduler.planner, SglangLoop)
        found = []
        for index, (_, prompt, output) in enumerate(requests):
            scheduler.arrive(Request(index, 0, prompt, output))
            while scheduler.schedule(0) is not None:
                found.append(scheduler.planner.ratio)
                scheduler.complete()
        return found

    def test_falls_with_every_decode(self) -> None:
        """Not with a prefill; in 600 steps to a seventh of 0.7."""
        ratios = self.ratios((0, 5, 700))
        assert ratios[0] == 0.7
        assert ratios[1] == 0.7 - (0.7 - 0.14 * 0.7) / 600
        assert ratios[600] == pytest.approx(0.098)
        assert ratios[-1] == 0.14 * 0.7

    def test_begins_again_when_idle(self) -> None:
        """A server with nothing to do forgets it."""
        assert self.ratios((0, 5, 10), (0, 5, 1))[-1] == 0.7


class TestRetraction:
    OPTIONS: ClassVar[dict[str, Any]] = {"ignore_eos": False, "schedule_conservativeness": 0.01, "pool": 24}

    def test_longest_prompt_of_those_with_fewest_tokens(self) -> None:
        """Seven steps fill the memory; the longer prompt gives way, and comes back with its eight tokens."""
        outcome = serve((0, 4, 10), (0, 6, 10), **self.OPTIONS)
        assert outcome.steps == [{0: 4}, {1: 6}, *[{0: 1, 1: 1}] * 7, {0: 1}, {0: 1}, {1: 14}, {1: 1}]
        assert outcome.victims[9] == [1]

    def test_fewest_tokens_first(self) -> None:
        """Also where the prompt is the shorter one."""
        outcome = serve((0, 6, 12), (2, 3, 12), **self.OPTIONS)
        assert outcome.steps[:11] == [{0: 6}, {0: 1}, {1: 3}, *[{0: 1, 1: 1}] * 7, {0: 1}]
        assert outcome.victims[10] == [1]

    def test_sets_the_ratio(self) -> None:
        """To what lets the survivor, at 8 of 100 tokens, run for another 20 steps."""
        policy = Sglang(
            disable_overlap_schedule=True, ignore_eos=False, schedule_conservativeness=0.001, max_new_tokens=100
        )
        scheduler = Scheduler(policy, GpuTimes(ONE_SECOND_A_STEP), block_size=1, num_blocks=130)
        assert isinstance(scheduler.planner, SglangLoop)
        for index, prompt in enumerate((4, 20)):
            scheduler.arrive(Request(index, 0, prompt, 100))
        preempting: list[float] = []
        while not preempting:
            scheduler.schedule(0)
            scheduler.complete()
            preempting += [scheduler.planner.ratio] * scheduler.preemptions
        generated = scheduler.view.context_tokens(next(iter(scheduler.view.running))) - 4
        assert preempting == [min(1.0, (generated + 20) / 101)]


class TestOverlap:
    def test_an_arrival_is_seen_a_step_later(self) -> None:
        """The step after the prompt is planned when the prompt starts."""
        outcome = serve((0, 5, 3), (0.5, 3, 1), disable_overlap_schedule=False)
        assert outcome.steps == [{0: 5}, {0: 1}, {1: 3}, {0: 1}]

    @pytest.mark.parametrize(("ignore_eos", "steps"), [(True, 2), (False, 3)])
    def test_the_end_is_not_foreseen(self, ignore_eos: bool, steps: int) -> None:
        """Who ends by a token decodes once more in vain; at the declared limit nobody does."""
        declared = None if ignore_eos else 10
        outcome = serve((0, 5, 2), disable_overlap_schedule=False, ignore_eos=ignore_eos, max_new_tokens=declared)
        assert outcome.tokens == [[1, 2]]
        assert outcome.log.iterations["end_ns"].tolist() == [step * SECOND for step in range(1, steps + 1)]

    def test_a_place_is_free_a_step_later(self) -> None:
        """The plan made while the last token is under way still counts its request."""
        outcome = serve((0, 5, 2), (0, 3, 1), max_running_requests=1, disable_overlap_schedule=False)
        assert outcome.tokens == [[1, 2], [3]]


class TestCoasting:
    @pytest.fixture
    def ratios(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """The ratio after each plan of a loop."""
        found: list[float] = []
        plan = SglangLoop.plan

        def noting(loop: SglangLoop, view: View) -> Batch | None:
            batch = plan(loop, view)
            found.append(loop.ratio)
            return batch

        monkeypatch.setattr(SglangLoop, "plan", noting)
        return found

    @pytest.mark.parametrize("overlap", [False, True])
    def test_decodes_are_not_planned_one_by_one(self, overlap: bool, ratios: list[float]) -> None:
        """Neither while nobody waits nor while those who wait are kept out."""
        policy = Sglang(disable_overlap_schedule=not overlap, max_running_requests=2, page_size=16)
        run(policy, (0, 5, 900), (0, 5, 500), (1, 5, 400))
        assert len(ratios) < 20

    def test_ratio_of_steps_that_were_not_planned(self, ratios: list[float]) -> None:
        """A prompt that comes after a hundred decodes meets the ratio of a hundred."""
        log = run(Sglang(disable_overlap_schedule=True, page_size=16), (0, 5, 900), (100_000, 5, 1))
        decodes = log.iterations["num_prefills"].tolist().index(1, 1) - 1
        assert decodes > 50
        assert ratios[1] == pytest.approx(0.7 - decodes * (0.7 - 0.14 * 0.7) / 600)


class TestOptions:
    def test_chunk_by_gpu_memory(self) -> None:
        """8192 on an H200, 4096 on 48 GB."""
        chunks = [make_policy("sglang", {}, where).chunked_prefill_size for where in (H200, A6000)]  # type: ignore[attr-defined]
        assert chunks == [8192, 4096]

    @pytest.mark.parametrize("options", [{"chunked_prefill_size": 0}, {"chunked_prefill_size": 24, "page_size": 16}])
    def test_refused(self, options: dict[str, Any]) -> None:
        """A chunk of nothing, and one that is no whole number of pages."""
        with pytest.raises(InputError, match="chunked_prefill_size"):
            make_policy("sglang", options, H200)

    def test_limit_is_cut_at_the_pool(self) -> None:
        """Prompt, output and a page have to fit with one token to spare."""
        outcome = serve((0, 10, 500), pool=100, disable_radix_cache=False)
        assert len(outcome.tokens[0]) == 88

    def test_what_sglang_never_admits_is_rejected(self) -> None:
        """There a request whose output was cut at the pool blocks the queue for ever if its length is known."""
        outcome = serve((0, 10, 500), (0, 10, 1), pool=100)
        assert outcome.log.requests["status"].tolist()[0] == REJECTED
        assert outcome.steps == [{1: 10}]

    def test_slots_by_the_pool(self) -> None:
        """512 for each of the longest sequences that fit, within limits; half the tokens of a small pool."""
        assert Sglang(context_length=8192).most_running(10) == 5
        assert Sglang(context_length=8192).most_running(40_000) == 2500
        assert Sglang(context_length=131072).most_running(450_000) == 2048
        assert Sglang(context_length=1024).most_running(450_000) == 4096


def test_it_plans_nothing_by_itself() -> None:
    """Only the loop that it starts does."""
    with pytest.raises(TypeError, match="defines no plan"):
        Sglang().plan(View.__new__(View))
