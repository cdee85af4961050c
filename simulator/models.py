"""Transformer shapes: what the profiler times and what decides how many KV-cache blocks fit beside the weights.

A shape is read from `profiler/models/NAME.yaml`, from a YAML of the same keys, or from a Hugging Face
`config.json`; the keys are those of `config.json`. Mixture-of-experts and quantized models are refused:
neither their weights nor their kernels are the dense bf16 ones that the cost tables hold.
"""

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Literal

import yaml
from annotated_types import Ge, Le

from simulator.bundled import bundled_files
from simulator.errors import InputError, nearest
from simulator.hugging_face import from_hugging_face
from simulator.unpriceable import refuse_unpriceable
from simulator.validation import parse

VOCABULARY_PADDING = 64  # vLLM's DEFAULT_VOCAB_PADDING_SIZE

Positive = Annotated[int, Ge(1)]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A dense decoder. Sizes are counts of elements; weights and KV cache take `dtype_bytes` each.

    `position_embedding`: `rope` rotates queries and keys in each layer; `learned` adds a row of a table after the
    embedding; `alibi` is a bias of attention. `norms_per_layer`: 2 unless attention and MLP share one, or have
    another behind them. `qk_norm`: queries and keys are normalized by head. `approximations` say where the costs are
    those of a simpler model. Biases are left out, of the weights (under 0.1 %) and of the time.
    """

    name: str
    num_hidden_layers: Positive
    hidden_size: Positive
    num_attention_heads: Positive
    num_key_value_heads: Positive
    head_dim: Positive
    intermediate_size: Positive
    vocab_size: Positive
    max_position_embeddings: Positive
    gated_mlp: bool = True
    tie_word_embeddings: bool = False
    dtype_bytes: Positive = 2
    position_embedding: Literal["rope", "learned", "alibi"] = "rope"
    norms_per_layer: Annotated[int, Ge(1), Le(4)] = 2
    qk_norm: bool = False
    approximations: tuple[str, ...] = ()

    @property
    def qkv_features(self) -> int:
        """Output features of the fused query, key and value projection."""
        return (self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer's matrices and norms."""
        attention = self.hidden_size * self.qkv_features + self.num_attention_heads * self.head_dim * self.hidden_size
        mlp = (3 if self.gated_mlp else 2) * self.hidden_size * self.intermediate_size
        return attention + mlp + self.norms_per_layer * self.hidden_size + (2 * self.head_dim if self.qk_norm else 0)

    @property
    def weight_bytes(self) -> int:
        """All weights: layers, embedding, LM head (once if tied), learned positions and the final norm."""
        embeddings = (1 if self.tie_word_embeddings else 2) * self.vocab_size * self.hidden_size
        positions = self.max_position_embeddings * self.hidden_size if self.position_embedding == "learned" else 0
        total = self.num_hidden_layers * self.layer_parameters + embeddings + positions + self.hidden_size
        return total * self.dtype_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Key and value of one token over all layers."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim * self.dtype_bytes

    def shard(self, tensor_parallel: int, key: str | None = None) -> "ModelShape":
        """What one of `tensor_parallel` ranks holds and computes, cut as Megatron-LM (arXiv:1909.08053) and vLLM do.

        QKV and the MLP's first product are divided by output features, the output projection and the MLP's second by
        input features; KV heads are divided, or repeated where there are fewer than ranks; embedding and LM head are
        divided by vocabulary, padded to a multiple of 64 first; norms and learned positions are on every rank.
        Raises InputError about `key`, naming the degrees that are possible, where something does not divide.
        """
        if tensor_parallel == 1:
            return self
        problem = self._indivisible(tensor_parallel)
        if problem:
            possible = [str(ranks) for ranks in range(1, self.num_attention_heads + 1) if not self._indivisible(ranks)]
            raise InputError(
                f"{self.name} does not divide over {tensor_parallel} ranks ({problem}); it does over"
                f" {', '.join(possible)}",
                key=key,
            )
        return replace(
            self,
            num_attention_heads=self.num_attention_heads // tensor_parallel,
            num_key_value_heads=max(self.num_key_value_heads // tensor_parallel, 1),
            intermediate_size=self.intermediate_size // tensor_parallel,
            vocab_size=self._padded_vocabulary // tensor_parallel,
        )

    @property
    def _padded_vocabulary(self) -> int:
        return -(-self.vocab_size // VOCABULARY_PADDING) * VOCABULARY_PADDING

    def _indivisible(self, ranks: int) -> str | None:
        """What does not divide over `ranks`, None if all does."""
        for size, what in (
            (self.num_attention_heads, "attention heads"),
            (self.intermediate_size, "features of the MLP"),
            (self._padded_vocabulary, "rows of the padded vocabulary"),
        ):
            if size % ranks:
                return f"{size} {what}"
        heads = self.num_key_value_heads
        return f"{heads} KV heads" if max(heads, ranks) % min(heads, ranks) else None


def model_names() -> list[str]:
    """Names accepted by `load_model` beside paths."""
    return sorted(path.stem for path in bundled_files("profiler", "models", "*.yaml"))


def load_model(name_or_path: str) -> ModelShape:
    """The shape named `name_or_path`, or read from that YAML or `config.json`.

    Raises InputError for an unknown name, a broken file, and a model that is not a dense unquantized decoder.
    """
    for path in bundled_files("profiler", "models", "*.yaml"):
        if path.stem == name_or_path:
            return _read_shape(path)
    path = Path(name_or_path)
    if path.is_dir() and (path / "config.json").is_file():
        path = path / "config.json"
    if path.is_file():
        return _read_shape(path)
    raise InputError(f'unknown model "{name_or_path}"; {nearest(name_or_path, model_names(), "models")}', key="model")


def _read_shape(path: Path) -> ModelShape:
    text = path.read_text(encoding="utf-8")
    try:
        raw = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(f"not readable: {' '.join(str(error).split())}", path=path) from None
    if not isinstance(raw, dict):
        raise InputError("a model shape is a mapping", path=path)
    refuse_unpriceable(raw, path)
    if path.suffix == ".json":
        known = {field.name for field in fields(ModelShape)}
        raw = {key: value for key, value in from_hugging_face(raw, path).items() if key in known}
    else:
        raw = {"name": path.stem, **raw}
    return parse(ModelShape, raw, path=path)
