"""A few steps of an engine with a host, every time worked out by hand. All times are microseconds.

The GPU takes 10 and 1 a token; the model has two layers; 1, 2, 4 and 8 tokens have CUDA graphs.
"""

import pytest

from policies.vllm import Vllm
from simulator.core import Request
from simulator.costs import LinearCosts
from simulator.engine import simulate
from simulator.engines.profile import Aftermath, CudaGraphs, EngineProfile, HostTime, Launch, Mode
from simulator.engines.times import engine_times
from tests.simulator.runs import Outcome, Watched, trace_of

COSTS = LinearCosts(fixed_ns=10_000, per_token_ns=1_000)
GRAPHS = CudaGraphs((1, 2, 4, 8))
SECOND_US = 10**6


def run(
    mode: Mode,
    *requests: tuple[int, int, int],
    in_flight: bool = False,
    graphs: CudaGraphs = GRAPHS,
    max_num_seqs: int = 64,
) -> Outcome:
    """vLLM's scheduler over requests (arrival in us, prompt, output), in one mode or with steps in flight."""
    policy = Vllm(max_num_seqs=max_num_seqs, async_scheduling=in_flight, max_model_len=10_000)
    profile = EngineProfile("tiny", "by hand", mode, mode, graphs)
    depth = policy.steps_in_flight
    times = engine_times(COSTS, profile, 2, max_num_seqs=max_num_seqs, steps_in_flight=depth)
    watched = Watched(policy)
    jobs = (Request(index, 1000 * arrival, *rest) for index, (arrival, *rest) in enumerate(requests))
    log = simulate(jobs, watched, times, block_size=16, num_blocks=1000)
    trace = trace_of([(arrival / SECOND_US, *rest) for arrival, *rest in requests])
    return Outcome(trace, log, watched.steps, watched.victims)


def ends(outcome: Outcome) -> list[float]:
    """When the steps end."""
    return [time / 1000 for time in outcome.log.iterations["end_ns"].tolist()]


def starts(outcome: Outcome) -> list[float]:
    """When they start."""
    return [time / 1000 for time in outcome.log.iterations["start_ns"].tolist()]


def column(outcome: Outcome, name: str) -> list[float]:
    """A column of requests.csv in microseconds."""
    return [round(value * SECOND_US, 6) for value in outcome.column(name)]


ALL_PARTS = Mode(
    schedule=HostTime(1),
    collect_us=3,
    update=HostTime(3, 2),
    between=HostTime(2),
    full=Launch(HostTime(2, 1)),
    piecewise=Launch(HostTime(3, 1)),
    arrival_us=6,
    delivery_us=7,
)


class TestWithoutStepsInFlight:
    """One after the other: schedule, prepare, GPU, collect, update, between."""

    def test_every_part_takes_its_time(self) -> None:
        """
        | step | planned | prepared | GPU done | output | next planned |
        | 3 prompt tokens, as 4 | 6 | 6 + 1 + 4 = 11 | 11 + 14 = 25 | 28 | 28 + 5 + 2 = 35 |
        | decode | 35 | 35 + 1 + 3 = 39 | 50 | 53 | 60 |
        | decode | 60 | 64 | 75 | 78 | |
        """
        outcome = run(ALL_PARTS, (0, 3, 3))
        assert starts(outcome) == [6, 35, 60]
        assert ends(outcome) == [28, 53, 78]

    def test_clients_wait_for_arrival_and_delivery(self) -> None:
        """The steps of the test before, 6 after the arrival; clients have tokens 7 later; gaps are the engine's."""
        outcome = run(ALL_PARTS, (0, 3, 3))
        assert column(outcome, "queue_s") == [6]
        assert column(outcome, "first_scheduled_s") == [6]
        assert column(outcome, "first_token_s") == column(outcome, "ttft_s") == [28 + 7]
        assert column(outcome, "finish_s") == column(outcome, "e2e_s") == [78 + 7]
        assert column(outcome, "tpot_s") == column(outcome, "itl_max_s") == [25]

    def test_times_grow_with_sequences(self) -> None:
        """
        | step | planned | prepared | GPU done | output | next planned |
        | two prompts of 2 | 6 | 6 + 1 + 3 + 2 = 12 | 12 + 14 = 26 | 29 | 29 + 3 + 2 x 2 + 2 = 38 |
        | two decodes | 38 | 38 + 1 + 2 + 2 = 43 | 43 + 12 = 55 | 58 | |
        """
        assert ends(run(ALL_PARTS, (0, 2, 2), (0, 2, 2))) == [29, 58]

    def test_who_comes_while_the_host_updates_joins_the_next_step(self) -> None:
        """Output at 28, planned at 35: a request that the scheduler sees at 35 is in, one that it sees at 36 waits for
        the step after."""
        for arrival, steps in ((29, [{0: 3}, {0: 1, 1: 1}]), (30, [{0: 3}, {0: 1}])):
            assert run(ALL_PARTS, (0, 3, 3), (arrival, 1, 1)).steps[:2] == steps

    @pytest.mark.parametrize(
        ("tokens", "time"), [(1, 11), (2, 12), (3, 14), (4, 14), (5, 18), (8, 18), (9, 19), (13, 23)]
    )
    def test_steps_are_padded_to_captured_sizes(self, tokens: int, time: int) -> None:
        """Up to the largest; what is above runs as it is."""
        assert ends(run(Mode(), (0, tokens, 1))) == [time]

    def test_decodes_are_padded_too(self) -> None:
        """Three prompts of one token as 4; three decodes as 4; then two, then one."""
        outcome = run(Mode(), (0, 1, 4), (0, 1, 3), (0, 1, 2))
        assert ends(outcome) == [14, 14 + 14, 28 + 12, 40 + 11]

    def test_sequences_limit_the_captured_sizes(self) -> None:
        """With twice `max_num_seqs` as the limit, 2 sequences leave 1, 2 and 4: five tokens run as they are."""
        graphs = CudaGraphs((1, 2, 4, 8), per_max_num_seqs=2)
        assert ends(run(Mode(), (0, 5, 1), graphs=graphs, max_num_seqs=2)) == [15]
        assert ends(run(Mode(), (0, 5, 1), graphs=graphs, max_num_seqs=4)) == [18]

    @pytest.mark.parametrize(("tokens", "launch"), [(3, 2 * 20), (9, 2 * 30)], ids=["piecewise", "eager"])
    def test_the_gpu_is_not_done_before_the_last_launch(self, tokens: int, launch: int) -> None:
        """Two layers at 20 or 30 each take longer than 14 and 19 of the GPU; from the prepared inputs, 5, on."""
        mode = Mode(piecewise=Launch(HostTime(5), 20), eager=Launch(HostTime(5), 30), collect_us=1)
        assert ends(run(mode, (0, tokens, 1))) == [5 + launch + 1]

    def test_a_long_step_hides_its_launches(self) -> None:
        """90 tokens take 100 of the GPU, 60 to launch."""
        assert ends(run(Mode(eager=Launch(HostTime(5), 30)), (0, 90, 1))) == [105]

    def test_gpu_time_beyond_the_table(self) -> None:
        """3 a step and 1 a sequence more, which launches run beside."""
        mode = Mode(piecewise=Launch(layer_us=8, gpu=HostTime(3, 1)))
        assert ends(run(mode, (0, 3, 1))) == [14 + 4]

    def test_decodes_after_an_eager_step_take_longer(self) -> None:
        """
        | step | GPU |
        | 9 prompt tokens, eager | 19 |
        | two decodes in its aftermath | 11 + 5 each |
        | two more | 11 each |
        """
        mode = Mode(aftermath=Aftermath(5, 2))
        assert ends(run(mode, (0, 9, 5))) == [19, 35, 51, 62, 73]

    def test_prompts_in_an_aftermath_take_as_long_as_ever(self) -> None:
        """
        | step | GPU |
        | 9 prompt tokens, eager | 19 |
        | a decode and 3 prompt tokens, as 4 | 14 |
        | two decodes, the last step of the aftermath | 12 + 5 |
        | two decodes | 12 |
        """
        mode = Mode(aftermath=Aftermath(5, 2))
        assert ends(run(mode, (0, 9, 4), (1, 3, 3))) == [19, 33, 50, 62]

    def test_eager_decodes_have_an_aftermath_and_are_in_none(self) -> None:
        """
        | step | GPU |
        | nine prompts of one token, eager | 19 |
        | nine decodes, eager | 19 |
        | nine decodes, eager: one ends | 19 |
        | eight decodes in the aftermath of these | 18 + 5 |
        | eight decodes | 18 |
        """
        mode = Mode(aftermath=Aftermath(5, 1))
        outcome = run(mode, (0, 1, 3), *[(0, 1, 5)] * 8)
        assert ends(outcome) == [19, 38, 57, 80, 98]


FLYING = Mode(
    schedule=HostTime(1), full=Launch(HostTime(2)), piecewise=Launch(HostTime(2)), update=HostTime(1), collect_us=1
)


class TestWithStepsInFlight:
    """The host works on the next step while the GPU runs one."""

    def test_a_busy_gpu_hides_the_host(self) -> None:
        """
        | step | planned | prepared | GPU | output |
        | 3 prompt tokens, as 4 | 0 | 3 | 3 to 17 | 18 |
        | decode | 0 | 3 | 17 to 28 | 29 |
        | decode | 18 + 1 = 19 | 22 | 28 to 39 | 40 |
        | decode | 30 | 33 | 39 to 50 | 51 |
        """
        outcome = run(FLYING, (0, 3, 7), in_flight=True)
        assert ends(outcome) == [18, 29, 40, 51, 62, 73, 84]
        assert starts(outcome) == [0, *ends(outcome)[:-1]]

    def test_launching_an_eager_step_puts_off_the_output_before(self) -> None:
        """
        | step | planned | prepared | launched | GPU | output |
        | decode (the third step) | 19 | 22 | 22 | 28 to 39 | 40, but the host launches until 53 |
        | decode and 20 prompt tokens | 29 + 1 = 30 | 33 | 33 + 2 x 10 = 53 | 39 to 70 | 71 |
        | two decodes | 53 + 1 = 54 | 57 | 57 | 70 to 82 | 83 |
        """
        mode = Mode(
            schedule=FLYING.schedule,
            full=FLYING.full,
            piecewise=FLYING.piecewise,
            eager=Launch(HostTime(2), 10),
            update=FLYING.update,
            collect_us=1,
        )
        outcome = run(mode, (0, 3, 5), (25, 20, 2), in_flight=True)
        assert ends(outcome) == [18, 29, 53, 71, 83]
        assert starts(outcome) == [0, 18, 29, 53, 71]
        assert outcome.steps[3] == {0: 1, 1: 20}

    def test_a_slow_host_sets_the_pace(self) -> None:
        """
        | step | planned | prepared, launched | GPU | output |
        | 3 prompt tokens | 0 | 22 | 22 to 36 | 37 |
        | decode | 0 | 22 | 36 to 47 | 48, but the host prepares until 60 |
        | decode | 37 + 1 = 38 | 60 | 60 to 71 | 72, until 83 |
        | decode | 60 + 1 = 61 | 83 | 83 to 94 | 95, until 106 |
        | decode | 84 | 106 | 106 to 117 | 118 |
        """
        mode = Mode(
            schedule=HostTime(20), full=FLYING.full, piecewise=FLYING.piecewise, update=FLYING.update, collect_us=1
        )
        assert ends(run(mode, (0, 3, 5), in_flight=True)) == [37, 60, 83, 106, 118]

    def test_after_idling_the_host_is_seen_again(self) -> None:
        """At 1000 nothing is under way: the GPU waits for the inputs, 3, and takes 14; collecting takes 1."""
        outcome = run(FLYING, (0, 3, 2), (1000, 3, 1), in_flight=True)
        assert starts(outcome) == [0, 18, 1000]
        assert ends(outcome) == [18, 29, 1018]
