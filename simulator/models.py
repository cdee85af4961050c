"""Transformer shapes: what the profiler times and what decides how many KV-cache blocks fit beside the weights.

A shape is read from `profiler/models/NAME.yaml`, from a YAML of the same keys, or from a Hugging Face
`config.json`; the keys are those of `config.json`. Mixture-of-experts and quantized models are refused:
neither their weights nor their kernels are the dense bf16 ones that the cost tables hold.
"""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import yaml
from annotated_types import Ge

from simulator.bundled import bundled_files
from simulator.errors import InputError, nearest
from simulator.validation import parse

_EXPERT_KEYS = (
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "moe_intermediate_size",
    "num_experts_per_tok",
)
_HF_ALIASES = {
    "num_hidden_layers": ("n_layer", "num_layers"),
    "num_attention_heads": ("n_head",),
    "hidden_size": ("n_embd",),
    "intermediate_size": ("n_inner", "ffn_dim"),
    "max_position_embeddings": ("n_positions", "max_seq_len"),
}

Positive = Annotated[int, Ge(1)]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A dense decoder. Sizes are counts of elements; weights and KV cache take `dtype_bytes` each."""

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

    @property
    def qkv_features(self) -> int:
        """Output features of the fused query, key and value projection."""
        return (self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer's matrices and its two norms (biases left out: under 0.1 %)."""
        attention = self.hidden_size * self.qkv_features + self.num_attention_heads * self.head_dim * self.hidden_size
        mlp = (3 if self.gated_mlp else 2) * self.hidden_size * self.intermediate_size
        return attention + mlp + 2 * self.hidden_size

    @property
    def weight_bytes(self) -> int:
        """All weights: layers, embedding, LM head (once if tied) and the final norm."""
        embeddings = (1 if self.tie_word_embeddings else 2) * self.vocab_size * self.hidden_size
        total = self.num_hidden_layers * self.layer_parameters + embeddings + self.hidden_size
        return total * self.dtype_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Key and value of one token over all layers."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim * self.dtype_bytes


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
        raw = _from_hugging_face(raw, path)
    else:
        raw = {"name": path.stem, **raw}
    return parse(ModelShape, raw, path=path)


def refuse_unpriceable(raw: dict[str, Any], path: str | Path | None = None) -> None:
    """Raise InputError where the shape is a mixture of experts or quantized."""
    for key in _EXPERT_KEYS:
        if isinstance(raw.get(key), int | float) and raw[key] > 1:
            raise InputError(
                "a mixture-of-experts model: each token uses a few experts, so the dense MLP costs measured here"
                " do not price it; only dense decoders are supported",
                path=path,
                key=key,
            )
    for key in ("quantization_config", "quantization"):
        if raw.get(key):
            raise InputError(
                "a quantized model: its weights and kernels are not the 16-bit ones that the cost tables hold;"
                " only unquantized models are supported",
                path=path,
                key=key,
            )


def _from_hugging_face(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """`config.json` keys, with the older spellings, as the fields of ModelShape."""
    raw = {**raw, **raw.get("text_config", {})} if isinstance(raw.get("text_config"), dict) else dict(raw)
    refuse_unpriceable(raw, path)
    if raw.get("is_encoder_decoder"):
        raise InputError("an encoder-decoder model; only decoders are supported", path=path, key="is_encoder_decoder")
    for key, aliases in _HF_ALIASES.items():
        for alias in aliases:
            if key not in raw and raw.get(alias) is not None:
                raw[key] = raw[alias]
    if raw.get("intermediate_size") is None and isinstance(raw.get("hidden_size"), int):
        raw["intermediate_size"] = 4 * raw["hidden_size"]
    if raw.get("num_key_value_heads") is None:
        raw["num_key_value_heads"] = raw.get("num_attention_heads")
    heads = raw.get("num_attention_heads")
    if raw.get("head_dim") is None and isinstance(raw.get("hidden_size"), int) and isinstance(heads, int) and heads > 0:
        raw["head_dim"] = raw["hidden_size"] // heads
    raw.setdefault("name", Path(str(raw.get("_name_or_path") or path.resolve().parent.name)).name or "model")
    if "gated_mlp" not in raw:
        raw["gated_mlp"] = raw.get("model_type") not in (
            "gpt2",
            "opt",
            "gpt_neox",
            "gptj",
            "falcon",
            "phi",
            "bloom",
        )
    if raw.get("tie_word_embeddings") is None:  # the file leaves out what is its class's default
        raw["tie_word_embeddings"] = raw.get("model_type") in ("gpt2", "opt", "bloom", "falcon")
    known = {field.name for field in fields(ModelShape)}
    return {key: value for key, value in raw.items() if key in known}
