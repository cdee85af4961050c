"""Which layers a stage holds, what it therefore computes, and what it keeps in memory."""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.errors import InputError
from simulator.models import ModelShape


@dataclass(frozen=True, slots=True)
class Stage:
    """`layers` of a model; the `first` stage has the embedding too, the `last` the final norm, LM head and sampling."""

    layers: int
    first: bool
    last: bool


def split_layers(layers: int, stages: int, given: Sequence[int] | None = None) -> tuple[Stage, ...]:
    """The stages of a model of so many layers, as many of them as `given` says for each, or even.

    What does not divide goes to the last stages before the last, which has the LM head (vLLM's
    `distributed/utils.py`, `get_pp_indices`). Raises InputError where stages and layers do not fit.
    """
    if given is None and stages > layers:
        raise InputError(f"{stages} stages, but the model has {layers} layers", key="parallel.pipeline")
    counts = list(given) if given is not None else _even(layers, stages)
    if len(counts) != stages:
        raise InputError(f"{len(counts)} numbers of layers for {stages} stages", key="parallel.pipeline_layers")
    if sum(counts) != layers or min(counts) < 1:
        split = f"{' + '.join(map(str, counts))} = {sum(counts)}"
        raise InputError(f"{split} layers; the model has {layers}, and each stage needs one", key=_key(given))
    return tuple(Stage(count, place == 0, place == stages - 1) for place, count in enumerate(counts))


def _key(given: Sequence[int] | None) -> str:
    return "parallel.pipeline_layers" if given is not None else "parallel.pipeline"


def _even(layers: int, stages: int) -> list[int]:
    counts = [layers // stages] * stages
    for place in range(2, layers % stages + 2):
        counts[-place] += 1
    return counts


def stage_kv_bytes(model: ModelShape, stage: Stage) -> int:
    """Key and value of one token in the stage's layers."""
    return model.kv_bytes_per_token // model.num_hidden_layers * stage.layers


def stage_weight_bytes(model: ModelShape, stage: Stage) -> int:
    """Weights of the stage: its layers, the embedding on the first and the LM head and final norm on the last.

    A tied embedding is on both.
    """
    layers = stage.layers * model.layer_parameters * model.dtype_bytes
    if stage.first and stage.last:
        return model.weight_bytes
    rows = model.vocab_size * model.hidden_size
    positions = model.max_position_embeddings * model.hidden_size if model.position_embedding == "learned" else 0
    of_first = rows + positions if stage.first else 0
    of_last = rows + model.hidden_size if stage.last else 0
    return layers + (of_first + of_last) * model.dtype_bytes
