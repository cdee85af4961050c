"""How many micro-batches are under way, and whose requests the next one may have, engine by engine."""

from policies.sarathi import Sarathi
from policies.vllm import Vllm
from tests.simulator.pipeline.runs import Pipelined, pipeline

SMALL = {"max_num_batched_tokens": 4, "max_num_seqs": 4, "max_model_len": 100}
SARATHI_SERVE = Sarathi(chunk_size=4, tile_size=0, max_prefills_per_batch=0)


def most_under_way(run: Pipelined) -> int:
    """Micro-batches planned and not complete, at most."""
    complete = run.times.end_ns[:, -1].tolist()
    planned = enumerate(run.times.planned_ns.tolist())
    return max(k + 1 - sum(end <= at for end in complete[: k + 1]) for k, at in planned)


def test_sarathi_serve_skips_requests_under_way() -> None:
    """Prompts of 12 and 4 in chunks of 4 on two stages. While a chunk of the first is under way the other request has
    the next step; its decode cannot follow its prompt at once either."""
    run = pipeline(SARATHI_SERVE, (0, 12, 2), (0, 4, 2))
    assert run.steps == [{0: 4}, {1: 4}, {0: 4}, {1: 1}, {0: 4}, {0: 1}]
    assert run.times.planned_ns.tolist() == [0, 0, 8, 12, 16, 24]  # whenever the step before the last is complete


def test_sarathi_serve_has_as_many_under_way_as_stages() -> None:
    """Six short prompts on three stages, each a step: three are planned at 0, then one whenever one is complete."""
    run = pipeline(SARATHI_SERVE, *[(0, 4, 1)] * 6, layers=(1, 1, 1))
    assert run.times.planned_ns.tolist() == [0, 0, 0, 12, 16, 20]
    assert most_under_way(run) == 3


def test_vllm_has_as_many_under_way_as_stages() -> None:
    """Without asynchronous scheduling, as Sarathi-Serve."""
    run = pipeline(Vllm(async_scheduling=False, **SMALL), *[(0, 4, 1)] * 6, layers=(1, 1, 1))
    assert run.times.planned_ns.tolist() == [0, 0, 0, 12, 16, 20]
    assert most_under_way(run) == 3


def test_vllm_has_chunks_of_a_prompt_in_consecutive_steps() -> None:
    """Without asynchronous scheduling: a prompt of 12 in chunks of 4, then the prompt that came with it. The decode of
    the first waits until its prompt is complete at 16."""
    run = pipeline(Vllm(async_scheduling=False, **SMALL), (0, 12, 2), (0, 4, 2))
    assert run.steps == [{0: 4}, {0: 4}, {0: 4}, {1: 4}, {0: 1}, {1: 1}]
    assert run.times.planned_ns.tolist() == [0, 0, 8, 12, 16, 20]


def test_asynchronous_vllm_has_one_step_more_under_way() -> None:
    """Six prompts on three stages: four are planned at 0."""
    run = pipeline(Vllm(**SMALL), *[(0, 4, 1)] * 6, layers=(1, 1, 1))
    assert run.times.planned_ns.tolist() == [0, 0, 0, 0, 12, 16]
    assert most_under_way(run) == 4


def test_asynchronous_vllm_has_chunks_of_a_prompt_in_consecutive_steps() -> None:
    """Three chunks of a prompt of 12 are planned at once. Step 2 completes it, so it decodes in step 4 = 2 + stages,
    planned at 12 although its first token is there only at 16; then it starts."""
    run = pipeline(Vllm(**SMALL), (0, 12, 2), (0, 4, 2))
    assert run.steps == [{0: 4}, {0: 4}, {0: 4}, {1: 4}, {0: 1}, {1: 1}]
    assert run.times.planned_ns.tolist() == [0, 0, 0, 8, 12, 16]
    assert run.worked[0] == [(0, 4), (4, 8), (8, 12), (12, 16), (16, 17), (20, 21)]


def test_asynchronous_vllm_decodes_again_after_as_many_steps_as_stages() -> None:
    """Three requests on three stages: each decodes in every third step, planned before its last token is there."""
    run = pipeline(Vllm(**SMALL), *[(0, 4, 4)] * 3, layers=(1, 1, 1))
    assert run.steps == [{0: 4}, {1: 4}, {2: 4}, *[{0: 1}, {1: 1}, {2: 1}] * 3]
    planned, tokens_at = run.times.planned_ns.tolist(), run.times.depends_ns.tolist()
    assert all(at < there for at, there in zip(planned[3:], tokens_at[3:], strict=True))
    assert tokens_at[3:] == run.times.end_ns[:-3, -1].tolist()


def test_an_empty_step_holds_a_place() -> None:
    """One request on two stages. Step 0 is its prompt, step 1 is empty, step 2 its decode, step 3 is empty, and so on;
    of three places they take all. Step 2 is planned once step 0 is complete at 8, step 4 once step 1 is, which ends
    with step 0; step 6 once step 3 is, which ends with step 2 at 10."""
    run = pipeline(Vllm(**SMALL), (0, 4, 4))
    assert run.times.planned_ns.tolist() == [0, 8, 8, 10]
    assert run.worked[0] == [(0, 4), (8, 9), (10, 11), (12, 13)]


def test_who_comes_late_takes_a_free_place() -> None:
    """At 1 a second request comes; a place is free, and it follows the first one on each stage, at 4 and 8."""
    run = pipeline(SARATHI_SERVE, (0, 4, 1), (1, 4, 1))
    assert run.times.planned_ns.tolist() == [0, 1]
    assert run.worked == [[(0, 4), (4, 8)], [(4, 8), (8, 12)]]


def test_vllm_waits_for_its_oldest_step() -> None:
    """The same request is planned when the oldest step is complete, at 8, though the first stage is free from 4 on."""
    run = pipeline(Vllm(**(SMALL | {"async_scheduling": False})), (0, 4, 1), (1, 4, 1))
    assert run.times.planned_ns.tolist() == [0, 8]
    assert run.causes[0] == {"fill_and_drain": 4}
