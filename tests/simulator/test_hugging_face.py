"""`config.json` files of dense decoders: as published, cut to the keys that matter here.

The expected parameters are those of the family's class in transformers 4.57, counted without weights; biases, which
are left out here, are under 0.1 % of each.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.models import ModelShape, load_model

LLAMA_2_70B = {
    "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "max_position_embeddings": 4096,
    "num_attention_heads": 64, "num_hidden_layers": 80, "num_key_value_heads": 8, "tie_word_embeddings": False,
    "vocab_size": 32000,
}  # fmt: skip
QWEN3_8B = {
    "model_type": "qwen3", "head_dim": 128, "hidden_size": 4096, "intermediate_size": 12288,
    "max_position_embeddings": 40960, "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8,
    "sliding_window": None, "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN2_05B = {
    "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 131072,
    "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "sliding_window": 4096,
    "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
MISTRAL_NEMO = {
    "model_type": "mistral", "head_dim": 128, "hidden_size": 5120, "intermediate_size": 14336,
    "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
    "sliding_window": None, "tie_word_embeddings": False, "vocab_size": 131072,
}  # fmt: skip
GEMMA_2_9B = {
    "model_type": "gemma2", "attn_logit_softcapping": 50.0, "head_dim": 256, "hidden_size": 3584,
    "intermediate_size": 14336, "max_position_embeddings": 8192, "num_attention_heads": 16, "num_hidden_layers": 42,
    "num_key_value_heads": 8, "sliding_window": 4096, "vocab_size": 256000,
}  # fmt: skip
GEMMA_3_4B = {
    "model_type": "gemma3", "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "sliding_window": 1024,
    },
}  # fmt: skip
PHI_3_MINI = {
    "model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "sliding_window": 2047,
    "tie_word_embeddings": False, "vocab_size": 32064,
}  # fmt: skip
OPT_13B = {
    "model_type": "opt", "ffn_dim": 20480, "hidden_size": 5120, "max_position_embeddings": 2048,
    "num_attention_heads": 40, "num_hidden_layers": 40, "vocab_size": 50272, "word_embed_proj_dim": 5120,
}  # fmt: skip
GPT_NEOX_20B = {
    "model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576, "max_position_embeddings": 2048,
    "num_attention_heads": 64, "num_hidden_layers": 44, "rotary_pct": 0.25, "tie_word_embeddings": False,
    "vocab_size": 50432,
}  # fmt: skip
FALCON_7B = {
    "model_type": "falcon", "alibi": False, "bias": False, "hidden_size": 4544, "multi_query": True,
    "new_decoder_architecture": False, "num_attention_heads": 71, "num_hidden_layers": 32, "parallel_attn": True,
    "vocab_size": 65024,
}  # fmt: skip
FALCON_40B = {
    "model_type": "falcon", "alibi": False, "bias": False, "hidden_size": 8192, "new_decoder_architecture": True,
    "num_attention_heads": 128, "num_hidden_layers": 60, "num_kv_heads": 8, "parallel_attn": True,
    "vocab_size": 65024,
}  # fmt: skip
FALCON_RW_1B = {
    "model_type": "falcon", "alibi": True, "bias": True, "hidden_size": 2048, "multi_query": False,
    "new_decoder_architecture": False, "num_attention_heads": 32, "num_hidden_layers": 24, "parallel_attn": False,
    "vocab_size": 50304,
}  # fmt: skip
BLOOM_7B = {
    "model_type": "bloom", "n_embed": 4096, "n_layer": 30, "num_attention_heads": 32, "seq_length": 2048,
    "vocab_size": 250880,
}  # fmt: skip
STARCODER = {
    "model_type": "gpt_bigcode", "multi_query": True, "n_embd": 6144, "n_head": 48, "n_inner": 24576, "n_layer": 40,
    "n_positions": 8192, "vocab_size": 49152,
}  # fmt: skip
STARCODER2_7B = {
    "model_type": "starcoder2", "hidden_size": 4608, "intermediate_size": 18432, "max_position_embeddings": 16384,
    "num_attention_heads": 36, "num_hidden_layers": 32, "num_key_value_heads": 4, "sliding_window": 4096,
    "vocab_size": 49152,
}  # fmt: skip
INTERNLM2_20B = {
    "model_type": "internlm2", "hidden_size": 6144, "intermediate_size": 16384, "max_position_embeddings": 32768,
    "num_attention_heads": 48, "num_hidden_layers": 48, "num_key_value_heads": 8, "tie_word_embeddings": False,
    "vocab_size": 92544,
}  # fmt: skip
GLM_4_9B = {
    "model_type": "chatglm", "ffn_hidden_size": 13696, "hidden_size": 4096, "kv_channels": 128,
    "multi_query_attention": True, "multi_query_group_num": 2, "num_attention_heads": 32, "num_layers": 40,
    "padded_vocab_size": 151552, "seq_length": 131072, "tie_word_embeddings": False,
}  # fmt: skip
GLM_4_32B = {
    "model_type": "glm4", "head_dim": 128, "hidden_size": 6144, "intermediate_size": 23040,
    "max_position_embeddings": 32768, "num_attention_heads": 48, "num_hidden_layers": 61, "num_key_value_heads": 2,
    "tie_word_embeddings": False, "vocab_size": 151552,
}  # fmt: skip
OLMO_2_7B = {
    "model_type": "olmo2", "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 4096,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "tie_word_embeddings": False,
    "vocab_size": 100352,
}  # fmt: skip
GRANITE_8B = {
    "model_type": "granite", "hidden_size": 4096, "intermediate_size": 12800, "max_position_embeddings": 131072,
    "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "tie_word_embeddings": True,
    "vocab_size": 49155,
}  # fmt: skip
COMMAND_R = {
    "model_type": "cohere", "hidden_size": 8192, "intermediate_size": 22528, "max_position_embeddings": 8192,
    "num_attention_heads": 64, "num_hidden_layers": 40, "num_key_value_heads": 64, "use_qk_norm": False,
    "vocab_size": 256000,
}  # fmt: skip
YI_34B = {
    "model_type": "llama", "hidden_size": 7168, "intermediate_size": 20480, "max_position_embeddings": 4096,
    "num_attention_heads": 56, "num_hidden_layers": 60, "num_key_value_heads": 8, "tie_word_embeddings": False,
    "vocab_size": 64000,
}  # fmt: skip

PARAMETERS = [
    (LLAMA_2_70B, 68.977), (YI_34B, 34.389), (QWEN2_05B, 0.494), (QWEN3_8B, 8.191), (MISTRAL_NEMO, 12.248),
    (GEMMA_2_9B, 9.242), (GEMMA_3_4B, 3.880), (PHI_3_MINI, 3.821), (OPT_13B, 12.853), (GPT_NEOX_20B, 20.555),
    (FALCON_7B, 6.922), (FALCON_40B, 41.303), (FALCON_RW_1B, 1.312), (BLOOM_7B, 7.069), (STARCODER, 15.517),
    (STARCODER2_7B, 7.174), (INTERNLM2_20B, 19.861), (GLM_4_9B, 9.400), (GLM_4_32B, 32.566), (OLMO_2_7B, 7.299),
    (GRANITE_8B, 8.171), (COMMAND_R, 34.981),
]  # fmt: skip


def read(folder: Path, raw: dict[str, Any]) -> ModelShape:
    """The shape in a `config.json` of these keys."""
    path = folder / "config.json"
    path.write_text(json.dumps(raw))
    return load_model(str(path))


def refused(folder: Path, raw: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        read(folder, raw)
    return str(caught.value).removeprefix(f"{folder}/config.json, ")


@pytest.mark.parametrize(("raw", "billions"), PARAMETERS, ids=lambda value: str(value)[:24])
def test_as_many_parameters_as_the_family_s_class(tmp_path: Path, raw: dict[str, Any], billions: float) -> None:
    """Sizes, tied embeddings, gate, learned positions: a mistake in any would show here."""
    assert read(tmp_path, raw).weight_bytes / 2e9 == pytest.approx(billions, rel=1e-3)


@pytest.mark.parametrize(
    ("raw", "heads", "kv_heads", "head_dim"),
    [
        (FALCON_7B, 71, 1, 64),
        (FALCON_40B, 128, 8, 64),
        (FALCON_RW_1B, 32, 32, 64),
        (STARCODER, 48, 1, 128),
        (GLM_4_9B, 32, 2, 128),
        (GEMMA_3_4B, 8, 4, 256),
        (QWEN3_8B, 32, 8, 128),
        (MISTRAL_NEMO, 32, 8, 128),
        (PHI_3_MINI, 32, 32, 96),
    ],
)
def test_heads(tmp_path: Path, raw: dict[str, Any], heads: int, kv_heads: int, head_dim: int) -> None:
    """Multi-query, grouped and multi-head; heads that are no equal part of the width."""
    shape = read(tmp_path, raw)
    assert (shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim) == (heads, kv_heads, head_dim)


@pytest.mark.parametrize(
    ("raw", "norms", "qk_norm", "positions"),
    [
        (LLAMA_2_70B, 2, False, "rope"),
        (FALCON_7B, 1, False, "rope"),
        (FALCON_40B, 2, False, "rope"),
        ({**FALCON_40B, "num_ln_in_parallel_attn": 1}, 1, False, "rope"),
        (FALCON_RW_1B, 2, False, "alibi"),
        (COMMAND_R, 1, False, "rope"),
        ({**COMMAND_R, "use_qk_norm": True}, 1, True, "rope"),
        (GEMMA_2_9B, 4, False, "rope"),
        (GEMMA_3_4B, 4, True, "rope"),
        (GLM_4_32B, 4, False, "rope"),
        (OLMO_2_7B, 2, True, "rope"),
        (OPT_13B, 2, False, "learned"),
        (BLOOM_7B, 2, False, "alibi"),
    ],
)
def test_layers(tmp_path: Path, raw: dict[str, Any], norms: int, qk_norm: bool, positions: str) -> None:
    """What a layer does beside its matrix products."""
    shape = read(tmp_path, raw)
    assert (shape.norms_per_layer, shape.qk_norm, shape.position_embedding) == (norms, qk_norm, positions)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (LLAMA_2_70B, []),
        (QWEN2_05B, []),  # it names a window and says that it does not use it
        (QWEN3_8B, []),
        ({**QWEN2_05B, "use_sliding_window": True}, ["window of 4096"]),
        ({**QWEN3_8B, "sliding_window": 4096, "layer_types": ["full_attention"] * 36}, []),
        (GEMMA_2_9B, ["window of 4096", "cap on attention logits"]),
        (GEMMA_3_4B, ["not what reads images", "window of 1024"]),
        (STARCODER2_7B, ["window of 4096"]),
        ({**PHI_3_MINI, "sliding_window": 262144}, []),
        (BLOOM_7B, ["ALiBi"]),
        ({**LLAMA_2_70B, "model_type": "novel"}, ['model type "novel" is not known']),
    ],
)
def test_what_is_not_priced_is_said(tmp_path: Path, raw: dict[str, Any], words: list[str]) -> None:
    """A sentence for each; none where the costs are those of the model."""
    said = read(tmp_path, raw).approximations
    assert len(said) == len(words)
    assert all(word in sentence for word, sentence in zip(words, said, strict=True))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kv_lora_rank": 512}, "kv_lora_rank: multi-head latent attention"),
        ({"layers_block_type": ["mamba", "attention"]}, "layers_block_type: some layers are recurrent"),
        ({"layer_types": ["full_attention", "linear_attention"]}, 'layer_types: a layer of type "linear_attention"'),
        ({"cross_attention_layers": [3, 8]}, "cross_attention_layers: some layers attend to an image"),
        ({"block_configs": [{}]}, "block_configs: layers of different sizes"),
        ({"model_type": "bert"}, "model_type: an encoder"),
        ({"word_embed_proj_dim": 512}, "word_embed_proj_dim: embeddings 512 wide"),
        ({"ffn_config": {"moe_num_experts": 16}}, "moe_num_experts: a mixture-of-experts model"),
        ({"intermediate_size": [1, 2]}, "intermediate_size: "),
    ],
)
def test_other_architectures_are_refused(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    """With the key that tells."""
    assert refused(tmp_path, {**LLAMA_2_70B, **keys}).startswith(message)


def test_qwen_1_counts_gate_and_up_together(tmp_path: Path) -> None:
    """Its `intermediate_size` of 22016 is two products 11008 wide."""
    assert read(tmp_path, {**LLAMA_2_70B, "model_type": "qwen", "intermediate_size": 22016}).intermediate_size == 11008


def test_mpt_keeps_its_attention_in_a_mapping(tmp_path: Path) -> None:
    """Grouped heads and ALiBi are found there; the MLP is four times as wide."""
    raw = {"model_type": "mpt", "attn_config": {"alibi": True, "kv_n_heads": 8}, "d_model": 4096, "n_heads": 32}
    shape = read(tmp_path, {**raw, "n_layers": 32, "max_seq_len": 2048, "vocab_size": 50432, "expansion_ratio": 4})
    assert (shape.num_key_value_heads, shape.position_embedding, shape.intermediate_size) == (8, "alibi", 16384)
