"""What a stage holds: layers as vLLM splits them, its part of the weights, and as many blocks as the fullest can."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.experiment_keys import resolve_experiment
from simulator.models import load_model, model_names
from simulator.pipeline.layers import split_layers, stage_kv_bytes, stage_weight_bytes

MODELS = [load_model(name) for name in model_names()]
UNTIED = [model for model in MODELS if not model.tie_word_embeddings]


def split(layers: int, stages: int) -> list[int]:
    """Layers by stage."""
    return [stage.layers for stage in split_layers(layers, stages)]


def test_layers_by_hand() -> None:
    """vLLM's `get_pp_indices`: what does not divide goes one each to the stages before the last, from the back."""
    assert split(32, 2) == [16, 16]
    assert split(33, 2) == [17, 16]
    assert split(32, 3) == [11, 11, 10]
    assert split(22, 4) == [5, 6, 6, 5]
    assert split(61, 8) == [7, 7, 8, 8, 8, 8, 8, 7]


@given(st.integers(1, 200), st.integers(1, 16))
def test_an_even_split_as_vllm_describes_it(layers: int, stages: int) -> None:
    """Every layer once, no stage more than one above another, the last none above any; the first none above any
    either where the stages between can take what is left."""
    if layers < stages:
        with pytest.raises(InputError, match=f"{stages} stages, but the model has {layers} layers"):
            split_layers(layers, stages)
        return
    counts, left = split(layers, stages), layers % stages
    assert sum(counts) == layers
    assert max(counts) - min(counts) == (left > 0)
    assert counts[-1] == min(counts)
    assert counts[:-1] == sorted(counts[:-1])
    if stages > 2 and left <= stages - 2:
        assert counts[0] == min(counts)


def test_ends_of_the_pipeline() -> None:
    """The first stage has the embedding, the last the LM head; one stage has both."""
    assert [(stage.first, stage.last) for stage in split_layers(6, 3)] == [(True, False), (False, False), (False, True)]
    assert [(stage.first, stage.last) for stage in split_layers(6, 1)] == [(True, True)]


@pytest.mark.parametrize("given_layers", [(3, 3), (1, 2, 4), (6, 0)])
def test_layers_that_do_not_fit_are_refused(given_layers: tuple[int, ...]) -> None:
    """Too many numbers, another sum, or a stage without a layer: the message names the key."""
    with pytest.raises(InputError, match="pipeline_layers"):
        split_layers(7, 2, given_layers)


@pytest.mark.parametrize("model", UNTIED, ids=lambda model: model.name)
@pytest.mark.parametrize("stages", [1, 2, 3, 8])
def test_weights_of_stages_are_those_of_the_model(model, stages: int) -> None:  # type: ignore[no-untyped-def]
    """Nothing is held twice or not at all where LM head and embedding are two matrices."""
    stages = min(stages, model.num_hidden_layers)
    held = [stage_weight_bytes(model, stage) for stage in split_layers(model.num_hidden_layers, stages)]
    assert sum(held) == model.weight_bytes


def test_a_tied_embedding_is_on_both_ends() -> None:
    """GPT-3's LM head is its embedding, of which the last stage has a copy."""
    model = load_model("gpt3-175b")
    held = [stage_weight_bytes(model, stage) for stage in split_layers(model.num_hidden_layers, 8)]
    assert sum(held) == model.weight_bytes + model.vocab_size * model.hidden_size * model.dtype_bytes


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_stages_hold_all_of_a_token(model) -> None:  # type: ignore[no-untyped-def]
    """Key and value of a token are spread over the stages, by their layers."""
    stages = split_layers(model.num_hidden_layers, 2)
    assert sum(stage_kv_bytes(model, stage) for stage in stages) == model.kv_bytes_per_token
    assert [stage_kv_bytes(model, stage) / stage.layers for stage in stages] == [
        model.kv_bytes_per_token / model.num_hidden_layers
    ] * 2


@pytest.mark.parametrize("given_layers", [None, (8, 24), (24, 8)])
def test_the_fullest_stage_decides_how_many_blocks_there_are(given_layers: tuple[int, ...] | None) -> None:
    """A block is on every stage: 0.9 of the GPU less the stage's weights, over its layers' part of 16 tokens."""
    parallel = {"pipeline": 2} | ({"pipeline_layers": list(given_layers)} if given_layers else {})
    raw = {"costs": "h200/llama-3.1-8b", "kv_cache": {"gpu_memory_utilization": 0.9}, "parallel": parallel}
    experiment = resolve_experiment(raw, path=Path("pipeline.yaml"))
    model, rooms = experiment.model, []
    for stage in split_layers(32, 2, given_layers):
        left = int(0.9 * experiment.surroundings.gpu_memory_bytes) - stage_weight_bytes(model, stage)
        rooms.append(left // (16 * model.kv_bytes_per_token * stage.layers // 32))
    assert experiment.num_blocks == min(rooms)
    assert len(set(rooms)) == 2 or given_layers is None


def test_more_stages_have_room_for_more_blocks() -> None:
    """Half of the layers leave more than twice the blocks: there are fewer weights beside them."""
    blocks = [resolve_experiment({"parallel": {"pipeline": stages}}).num_blocks for stages in (1, 2, 4, 8)]
    assert all(more > 2 * fewer for fewer, more in pairwise(blocks))
