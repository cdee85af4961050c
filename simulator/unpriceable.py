"""Models whose costs the tables do not hold, refused in words: sparse, quantized, with another attention or none."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.errors import InputError

_EXPERT_KEYS = (
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "moe_intermediate_size",
    "num_experts_per_tok",
    "moe_num_experts",
    "num_moe_experts",
)
_RECURRENT_KEYS = (  # state-space, linear-attention and other recurrent layers, in the words of their families
    "layers_block_type",
    "hybrid_override_pattern",
    "block_types",
    "ssm_cfg",
    "state_size",
    "mamba_d_state",
    "mamba_num_heads",
    "linear_num_value_heads",
    "attn_type_list",
)
_ATTENDING = ("full_attention", "sliding_attention")


def refuse_unpriceable(raw: Mapping[str, Any], path: str | Path | None = None) -> None:
    """Raise InputError where the shape is a mixture of experts or quantized."""
    inner = raw.get("ffn_config")  # where DBRX keeps its experts
    for where in (raw, inner if isinstance(inner, Mapping) else {}):
        for key in _EXPERT_KEYS:
            if isinstance(where.get(key), int | float) and where[key] > 1:
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


def refuse_other_layers(raw: Mapping[str, Any], path: str | Path | None = None) -> None:
    """Raise InputError where a `config.json` is not of a decoder whose layers all are attention and a dense MLP."""
    if raw.get("is_encoder_decoder"):
        raise InputError("an encoder-decoder model; only decoders are supported", path=path, key="is_encoder_decoder")
    if "bert" in str(raw.get("model_type")):
        raise InputError("an encoder; only decoders are supported", path=path, key="model_type")
    if raw.get("kv_lora_rank"):
        raise InputError(
            "multi-head latent attention: its KV cache and kernels are not those measured here; multi-head,"
            " grouped-query and multi-query attention are supported",
            path=path,
            key="kv_lora_rank",
        )
    for key in _RECURRENT_KEYS:
        if raw.get(key):
            raise InputError(
                "some layers are recurrent (state-space or linear attention); only models whose layers all attend"
                " are supported",
                path=path,
                key=key,
            )
    if raw.get("cross_attention_layers"):
        raise InputError(
            "some layers attend to an image; only decoders are supported", path=path, key="cross_attention_layers"
        )
    if raw.get("block_configs"):
        raise InputError(
            "layers of different sizes; only models whose layers are all alike are supported",
            path=path,
            key="block_configs",
        )
    kinds = raw.get("layer_types")
    for kind in kinds if isinstance(kinds, list) else ():
        if kind not in _ATTENDING:
            raise InputError(
                f'a layer of type "{kind}"; supported are {" and ".join(_ATTENDING)}', path=path, key="layer_types"
            )
    width = raw.get("word_embed_proj_dim")  # OPT-350m
    if width is not None and width != raw.get("hidden_size"):
        raise InputError(
            f"embeddings {width} wide, projected to layers of {raw.get('hidden_size')}; one width is supported",
            path=path,
            key="word_embed_proj_dim",
        )
