"""Pipelines of a few micro-batches, every start, end and bubble worked out by hand; a layer takes 1 ns a token."""

from policies.orca import Orca
from policies.static import Static
from policies.vllm import Vllm
from simulator.costs import LinearCosts
from tests.simulator.pipeline.runs import pipeline

ONE_REQUEST = Orca(max_batch_size=1)
"""A request a micro-batch."""
CONTEXTS = LinearCosts(fixed_ns=2, per_context_token_ns=2)
"""A stage of half the layers takes 1 ns and 1 ns for each token of context."""


class Ahead(Orca):
    """Orca with a step planned while as many run as there are stages."""

    steps_in_flight = 2  # type: ignore[assignment]


def test_unequal_prompts() -> None:
    """PB1. Prompts of 10, 6 and 4 on two stages. Two are under way until the first is complete at 20; the first stage
    is done with both at 16, and waits 4 because 6 is less than 10. The second stage is never without work."""
    run = pipeline(ONE_REQUEST, (0, 10, 1), (0, 6, 1), (0, 4, 1))
    assert run.worked == [[(0, 10), (10, 16), (20, 24)], [(10, 20), (20, 26), (26, 30)]]
    assert run.tokens == [[20], [26], [30]]
    assert run.causes == [{"prefill_lengths": 4}, {}]
    assert run.found.of_batch_ns.tolist() == [0, 0, 4]
    assert run.found.before_ns.tolist() == [0, 10]
    assert run.found.after_ns.tolist() == [6, 0]
    assert run.found.busy_ns.tolist() == [20, 20]
    assert run.found.span_ns.tolist() == [24, 20]


def test_a_prompt_beside_a_decode() -> None:
    """PB2. Prompts of 10 twice, then a decode of 1: the first stage does that from 20 to 21 and waits until 30, 9, for
    the second prompt to be complete. The third prompt then takes the first stage 9 longer than the decode the second,
    which waits from 31 to 40."""
    run = pipeline(ONE_REQUEST, (0, 10, 2), (0, 10, 1), (0, 10, 1))
    assert run.steps == [{0: 10}, {1: 10}, {0: 1}, {2: 10}]
    assert run.worked == [
        [(0, 10), (10, 20), (20, 21), (30, 40)],
        [(10, 20), (20, 30), (30, 31), (40, 50)],
    ]
    assert run.causes == [{"prefill_and_decode": 9}, {"prefill_and_decode": 9}]
    assert run.found.of_batch_ns.tolist() == [0, 0, 0, 18]


def test_decodes_of_unequal_context() -> None:
    """PB3. A stage takes 1 + context: prompts 6 and 2, decodes by turns 7 and 3, then 8 and 4.

    First stage: 8 to 12 it waits for the prompt of 5, behind one of 1 (PB1, 4); 22 to 26 for the decode of 7, behind
    one of 3 (PB3, 4). Second stage: 14 to 19, as the decode takes the first 7 and the prompt took this one 2 (PB2, 5);
    29 to 34, as 8 comes after 3 (PB3, 5)."""
    run = pipeline(ONE_REQUEST, (0, 5, 3), (0, 1, 3), costs=CONTEXTS)
    assert run.worked == [
        [(0, 6), (6, 8), (12, 19), (19, 22), (26, 34), (34, 38)],
        [(6, 12), (12, 14), (19, 26), (26, 29), (34, 42), (42, 46)],
    ]
    assert run.causes == [
        {"prefill_lengths": 4, "decode_contexts": 4},
        {"prefill_and_decode": 5, "decode_contexts": 5},
    ]
    assert run.found.of_batch_ns.tolist() == [0, 0, 4 + 5, 0, 4 + 5, 0]


def test_chunks_of_unequal_context() -> None:
    """Four chunks of 4 take 5, 9, 13 and 17 on a stage: the second waits 4 before each but the first. There is no
    decode, so their prompts differ."""
    options = {"async_scheduling": False, "max_num_batched_tokens": 4, "max_num_seqs": 4, "max_model_len": 100}
    run = pipeline(Vllm(**options), (0, 16, 1), costs=CONTEXTS)
    assert run.worked == [[(0, 5), (5, 14), (14, 27), (27, 44)], [(5, 10), (14, 23), (27, 40), (44, 61)]]
    assert run.causes == [{}, {"prefill_lengths": 12}]


def test_a_longer_last_stage() -> None:
    """One layer, then two: the first stage is done with two prompts of 4 at 8, the second with one at 12: 4 wait."""
    run = pipeline(ONE_REQUEST, (0, 4, 1), (0, 4, 1), (0, 4, 1), layers=(1, 2))
    assert run.worked == [[(0, 4), (4, 8), (12, 16)], [(4, 12), (12, 20), (20, 28)]]
    assert run.causes == [{"uneven_stages": 4}, {}]


def test_a_longer_first_stage() -> None:
    """Two layers, then one: the second stage takes 4 for a prompt and gets one in 8, so it waits 4 before each."""
    run = pipeline(ONE_REQUEST, (0, 4, 1), (0, 4, 1), (0, 4, 1), layers=(2, 1))
    assert run.worked == [[(0, 8), (8, 16), (16, 24)], [(8, 12), (16, 20), (24, 28)]]
    assert run.causes == [{}, {"uneven_stages": 8}]
    assert run.found.of_batch_ns.tolist() == [0, 4, 4]


def test_a_decode_depends_on_its_last_stage() -> None:
    """One request: each step can start when the one before has left the last stage. The first stage waits 10 after the
    prompt and 1 after a decode, the second 1 before each of two decodes."""
    run = pipeline(ONE_REQUEST, (0, 10, 3))
    assert run.worked == [[(0, 10), (20, 21), (22, 23)], [(10, 20), (21, 22), (23, 24)]]
    assert run.causes == [{"dependency": 11}, {"dependency": 2}]


def test_drain_arrivals_and_fill() -> None:
    """A prompt of 10 at 0 and one of 6 at 100. From 10 to 20 the first stage idles while the pipeline drains, from 106
    to 112 (after its last work) as well, but that is not in its span. From 20 to 100 there is nobody, which is no
    bubble. From 100 to 106 the second stage waits for the first, which fills the pipeline."""
    run = pipeline(ONE_REQUEST, (0, 10, 1), (100, 6, 1))
    assert run.worked == [[(0, 10), (100, 106)], [(10, 20), (106, 112)]]
    assert run.causes == [{"fill_and_drain": 10, "arrivals": 80}, {"fill_and_drain": 6, "arrivals": 80}]
    assert run.found.idle_ns.tolist() == [80, 80]
    assert run.found.of_batch_ns.tolist() == [0, 16]
    assert run.found.after_ns.tolist() == [6, 0]


def test_not_ready() -> None:
    """Two requests of which `max_num_seqs` 1 lets one run at a time: the first stage waits for the other from 10 to 20
    although it is there. Then the second waits from 20 to 26, for want of another one, too."""
    policy = Vllm(async_scheduling=False, max_num_seqs=1, max_num_batched_tokens=10, max_model_len=100)
    run = pipeline(policy, (0, 10, 1), (0, 6, 1))
    assert run.worked == [[(0, 10), (20, 26)], [(10, 20), (26, 32)]]
    assert run.causes == [{"not_ready": 10}, {"not_ready": 6}]


def test_transfer() -> None:
    """Five prompts of 4, 3 from stage to stage. The first comes to the second stage at 7 and is complete at 11: the
    first stage has waited 3 since it was done with two. So again for every second prompt; the second stage waits 3
    with it. Equal micro-batches leave nothing to other causes."""
    run = pipeline(ONE_REQUEST, *[(0, 4, 1)] * 5, send=lambda _: 3)
    assert run.worked == [
        [(0, 4), (4, 8), (11, 15), (15, 19), (22, 26)],
        [(7, 11), (11, 15), (18, 22), (22, 26), (29, 33)],
    ]
    assert run.causes == [{"transfer": 6}, {"transfer": 6}]


def test_transfer_and_unequal_prompts() -> None:
    """Prompts of 10 and 6 by turns, 3 from stage to stage: of the 7 that the first stage waits from 16 to 23 and from
    39 to 46, 3 are the sending of the 10 and 4 that 6 is less than 10. The second waits from 29 to 36: 4 as 10 takes
    the first stage longer than 6 took it, and 3 passed on, 3 x 3 / 7 of transfer and the rest of PB1."""
    run = pipeline(ONE_REQUEST, (0, 10, 1), (0, 6, 1), (0, 10, 1), (0, 6, 1), (0, 10, 1), send=lambda _: 3)
    assert run.worked == [
        [(0, 10), (10, 16), (23, 33), (33, 39), (46, 56)],
        [(13, 23), (23, 29), (36, 46), (46, 52), (59, 69)],
    ]
    assert run.causes == [
        {"prefill_lengths": 2 * 4, "transfer": 2 * 3},
        {"prefill_lengths": 2 * (4 + 2), "transfer": 2 * 1},
    ]


def test_three_stages() -> None:
    """Prompts of 10, 6, 4 and 8. The fourth is planned when the first is complete at 30; the first stage is done with
    three at 20: 10 (PB1). The second is done with the third at 30 and gets the fourth at 38: 8, of which 4 because 8
    takes the first stage longer than 4 took it, the rest passed on, PB1 too. The third: from 40 to 46, 6."""
    run = pipeline(ONE_REQUEST, (0, 10, 1), (0, 6, 1), (0, 4, 1), (0, 8, 1), layers=(1, 1, 1))
    assert run.worked == [
        [(0, 10), (10, 16), (16, 20), (30, 38)],
        [(10, 20), (20, 26), (26, 30), (38, 46)],
        [(20, 30), (30, 36), (36, 40), (46, 54)],
    ]
    assert run.causes == [{"prefill_lengths": 10}, {"prefill_lengths": 8}, {"prefill_lengths": 6}]
    assert run.found.of_batch_ns.tolist() == [0, 0, 0, 24]
    assert run.found.before_ns.tolist() == [0, 10, 20]
    assert run.found.after_ns.tolist() == [16, 8, 0]


def test_three_stages_fill() -> None:
    """A prompt of 4 at 0 and one of 3 at 50; sending takes 1 a token. The first is complete at 4 x 5 = 20.

    First stage: from 4 to 20 the pipeline drains (16), until 50 nobody is there. Second: done at 12, so 8 drain; the
    second prompt is 3 on the first stage (fill) and 3 on its way. Third: done at 20; 3 + 3 on stages, 3 + 3 sent."""
    run = pipeline(ONE_REQUEST, (0, 4, 1), (50, 3, 1), layers=(1, 1, 1), send=lambda tokens: tokens)
    assert run.worked == [[(0, 4), (50, 53)], [(8, 12), (56, 59)], [(16, 20), (62, 65)]]
    assert run.causes == [
        {"fill_and_drain": 16, "arrivals": 30},
        {"fill_and_drain": 8 + 3, "transfer": 3, "arrivals": 30},
        {"fill_and_drain": 6, "transfer": 6, "arrivals": 30},
    ]


def test_static_batches() -> None:
    """Whole batches by turns: prompts of 4 and 3 (7 a stage), then one of 5, then two decodes of the first batch, for
    which the first stage waits from 12 to 14, as 5 is less than 7."""
    run = pipeline(Static(max_batch_size=2, max_model_len=64), (0, 4, 2), (0, 3, 2), (0, 5, 1))
    assert run.steps == [{0: 4, 1: 3}, {2: 5}, {0: 1, 1: 1}]
    assert run.worked == [[(0, 7), (7, 12), (14, 16)], [(7, 14), (14, 19), (19, 21)]]
    assert run.causes == [{"prefill_lengths": 2}, {}]


def test_with_one_step_more_in_flight_the_oldest_is_one_further_back() -> None:
    """Two stages and three steps in flight: the fourth prompt is planned when the first, of 10, is complete at 20. The
    first stage has waited since 12, because that was longer than the third, not because of the second, of 1 too."""
    run = pipeline(Ahead(max_batch_size=1), (0, 10, 1), (0, 1, 1), (0, 1, 1), (0, 1, 1))
    assert run.worked == [[(0, 10), (10, 11), (11, 12), (20, 21)], [(10, 20), (20, 21), (21, 22), (22, 23)]]
    assert run.causes == [{"prefill_lengths": 8}, {}]


def test_decodes_that_wait_for_their_tokens() -> None:
    """vLLM's asynchronous steps: prompts of 10 twice, then their decodes. The second decode is planned at 20 and waits
    for its token until 30, though every step between is taken: the first stage waits from 21 to 30 for the prompt,
    behind a decode (PB2)."""
    options = {"max_num_batched_tokens": 10, "max_num_seqs": 10, "max_model_len": 100}
    run = pipeline(Vllm(**options), (0, 10, 2), (0, 10, 2))
    assert run.worked == [[(0, 10), (10, 20), (20, 21), (30, 31)], [(10, 20), (20, 30), (30, 31), (31, 32)]]
    assert run.times.planned_ns.tolist() == [0, 0, 0, 20]
    assert run.causes == [{"prefill_and_decode": 9}, {}]


def test_nothing_can_run() -> None:
    """All requests are rejected: there is no micro-batch, and no stage has a span."""
    run = pipeline(Orca(max_model_len=5), (0, 10, 1))
    assert run.steps == []
    assert run.causes == [{}, {}]
    assert run.found.span_ns.tolist() == run.found.before_ns.tolist() == run.found.after_ns.tolist() == [0, 0]
