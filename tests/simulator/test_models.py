"""Model shapes: their sizes, where they are read from, and which are refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.models import ModelShape, load_model, model_names

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "rope_theta": 500000.0,
}
GPT2 = {
    "model_type": "gpt2",
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "n_positions": 1024,
    "n_inner": None,
    "vocab_size": 50257,
}


def config(folder: Path, raw: dict[str, Any], name: str = "some-model") -> Path:
    """A `config.json` as a model's folder holds it."""
    path = folder / name / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(raw))
    return path


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_model(str(path))
    return str(caught.value).removeprefix(f"{path.parent}/")


def test_llama_weights() -> None:
    """Llama 3.1 8B has 8.03 billion weights of two bytes."""
    assert load_model("llama-3.1-8b").weight_bytes == pytest.approx(16.06e9, rel=1e-3)


def test_llama_kv_cache() -> None:
    """A token of Llama 3.1 8B takes 2 x 32 layers x 8 heads x 128 x 2 bytes = 128 KiB."""
    assert load_model("llama-3.1-8b").kv_bytes_per_token == 131072


def test_llama_13b() -> None:
    """LLaMA 13B attends with all 40 heads: 800 KiB a token, 26 GB of weights."""
    shape = load_model("llama-13b")
    assert shape.kv_bytes_per_token == 800 * 1024
    assert shape.weight_bytes == pytest.approx(26.0e9, rel=5e-3)


def test_weights_by_hand() -> None:
    """One layer of hidden size 4: q, k and v 4 x 8, o 4 x 4, three MLP matrices 4 x 6, two norms of 4, then two
    embeddings 10 x 4 and the last norm."""
    shape = ModelShape("tiny", 1, 4, 2, 1, 2, 6, 10, 100)
    assert shape.qkv_features == 8
    assert shape.layer_parameters == 4 * 8 + 4 * 4 + 3 * 4 * 6 + 2 * 4
    assert shape.weight_bytes == 2 * (128 + 2 * 40 + 4)


def test_a_shard_by_hand() -> None:
    """Two ranks: half of the query heads, KV heads, MLP and padded vocabulary each; the width and the norms whole."""
    whole = ModelShape("tiny", 3, 16, 4, 2, 4, 12, 100, 50)
    shard = whole.shard(2)
    assert shard == ModelShape("tiny", 3, 16, 2, 1, 4, 6, 64, 50)
    assert shard.qkv_features == whole.qkv_features // 2
    assert shard.layer_parameters - 2 * 16 == (whole.layer_parameters - 2 * 16) // 2
    assert shard.kv_bytes_per_token == whole.kv_bytes_per_token // 2


def test_one_rank_is_the_model() -> None:
    """Nothing is padded where nothing is divided."""
    whole = ModelShape("tiny", 3, 16, 4, 2, 4, 12, 100, 50)
    assert whole.shard(1) == whole


def test_kv_heads_are_repeated_where_ranks_are_more() -> None:
    """Four ranks of a model with two KV heads hold one each, not a half."""
    shape = ModelShape("tiny", 1, 32, 8, 2, 4, 16, 128, 50)
    assert [shape.shard(ranks).num_key_value_heads for ranks in (1, 2, 4, 8)] == [2, 1, 1, 1]


def test_gpt3_over_eight_gpus() -> None:
    """The vocabulary of 50257 is padded to 50304 = 8 x 6288; an eighth of the weights is 44 GB."""
    shard = load_model("gpt3-175b").shard(8)
    assert (shard.num_attention_heads, shard.intermediate_size, shard.vocab_size) == (12, 6144, 6288)
    assert shard.weight_bytes == pytest.approx(350e9 / 8, rel=2e-3)


@pytest.mark.parametrize(
    ("model", "ranks", "message"),
    [
        ("qwen2.5-7b", 8, "--tp: qwen2.5-7b does not divide over 8 ranks (28 attention heads); it does over 1, 2, 4"),
        ("llama-33b", 8, "--tp: llama-33b does not divide over 8 ranks (52 attention heads); it does over 1, 2, 4"),
        ("llama-3.1-8b", 3, "(32 attention heads); it does over 1, 2, 4, 8, 16, 32"),
    ],
)
def test_what_does_not_divide(model: str, ranks: int, message: str) -> None:
    """The message says what does not, and over how many ranks it does."""
    with pytest.raises(InputError) as caught:
        load_model(model).shard(ranks, "--tp")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("size", "what"),
    [({"intermediate_size": 15}, "15 features"), ({"num_key_value_heads": 3}, "3 KV heads")],
)
def test_each_part_must_divide(size: dict[str, int], what: str) -> None:
    """The MLP, and KV heads that are neither a multiple of the ranks nor a divisor."""
    shape = replace(ModelShape("tiny", 1, 24, 6, 6, 4, 12, 64, 50), **size)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=what):
        shape.shard(2)


def test_learned_positions_are_weights() -> None:
    """A row for each position, on every rank."""
    rotated = ModelShape("tiny", 1, 4, 2, 2, 2, 6, 64, 100)
    learned = replace(rotated, position_embedding="learned")
    assert learned.weight_bytes - rotated.weight_bytes == 2 * 100 * 4
    assert learned.shard(2).weight_bytes - rotated.shard(2).weight_bytes == 2 * 100 * 4


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-2-7b", 6.738), ("llama-33b", 32.529), ("llama-3.1-70b", 70.554), ("qwen2.5-7b", 7.616),
        ("qwen2.5-32b", 32.764), ("mistral-7b", 7.248), ("gpt3-175b", 174.6),
    ],
)  # fmt: skip
def test_bundled_weights(name: str, billions: float) -> None:
    """As many parameters as the models' cards count (their checkpoints' total size / 2), biases of Qwen included."""
    assert load_model(name).weight_bytes / 2e9 == pytest.approx(billions, rel=1e-3)


def test_tied_embeddings() -> None:
    """Tied embeddings are held once."""
    untied = ModelShape("tiny", 1, 4, 2, 1, 2, 6, 10, 100)
    tied = ModelShape("tiny", 1, 4, 2, 1, 2, 6, 10, 100, tie_word_embeddings=True)
    assert untied.weight_bytes - tied.weight_bytes == 2 * 10 * 4


@pytest.mark.parametrize("name", model_names())
def test_bundled_shapes(name: str) -> None:
    """Every bundled model can be read and bears its file's name."""
    assert load_model(name).name == name


def test_hugging_face_config(tmp_path: Path) -> None:
    """A `config.json` gives the bundled shape under its folder's name; the head size is computed."""
    shape = load_model(str(config(tmp_path, LLAMA, "llama-3.1-8b")))
    assert shape == load_model("llama-3.1-8b")


def test_folder_of_a_model(tmp_path: Path) -> None:
    """The folder that holds a `config.json` will do."""
    assert load_model(str(config(tmp_path, LLAMA).parent)).name == "some-model"


def test_older_spellings(tmp_path: Path) -> None:
    """GPT-2's keys: full attention, an MLP of four times the width, not gated."""
    shape = load_model(str(config(tmp_path, GPT2)))
    assert (shape.num_hidden_layers, shape.num_attention_heads, shape.hidden_size) == (12, 12, 768)
    assert (shape.num_key_value_heads, shape.head_dim, shape.intermediate_size) == (12, 64, 3072)
    assert (shape.max_position_embeddings, shape.gated_mlp) == (1024, False)


def test_other_aliases(tmp_path: Path) -> None:
    """`num_layers`, `ffn_dim` and `max_seq_len`."""
    raw = {**GPT2, "num_layers": 3, "ffn_dim": 99, "max_seq_len": 77}
    raw = {key: value for key, value in raw.items() if key not in ("n_layer", "n_inner", "n_positions")}
    shape = load_model(str(config(tmp_path, raw)))
    assert (shape.num_hidden_layers, shape.intermediate_size, shape.max_position_embeddings) == (3, 99, 77)


def test_text_config(tmp_path: Path) -> None:
    """The language part of a multimodal model."""
    raw = {"model_type": "llava", "vision_config": {"hidden_size": 1024}, "text_config": LLAMA}
    assert load_model(str(config(tmp_path, raw))).num_hidden_layers == 32


def test_yaml(tmp_path: Path) -> None:
    """A YAML of the same keys is named after its file."""
    path = tmp_path / "mine.yaml"
    keys = "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads vocab_size"
    path.write_text("\n".join(f"{key}: {LLAMA[key]}" for key in keys.split()) + "\nhead_dim: 128\n")
    assert refused(path) == "mine.yaml, max_position_embeddings: missing"
    path.write_text(path.read_text() + "max_position_embeddings: 131072\n")
    assert load_model(str(path)).name == "mine"


@pytest.mark.parametrize(
    "key", ["num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size", "num_experts_per_tok"]
)
def test_mixture_of_experts(tmp_path: Path, key: str) -> None:
    """A mixture of experts is refused in words, whatever its family calls it."""
    message = refused(config(tmp_path, {**LLAMA, key: 8}))
    assert message.startswith(f"config.json, {key}: a mixture-of-experts model")
    assert "only dense decoders are supported" in message


def test_one_expert_is_dense(tmp_path: Path) -> None:
    """Some dense configs say that they have one expert, or none."""
    load_model(str(config(tmp_path, {**LLAMA, "num_experts_per_tok": 1, "num_local_experts": 0})))


def test_mixture_of_experts_in_a_text_config(tmp_path: Path) -> None:
    """The language part is looked at as well."""
    raw = {"text_config": {**LLAMA, "num_local_experts": 16}}
    assert "mixture-of-experts" in refused(config(tmp_path, raw))


def test_quantized(tmp_path: Path) -> None:
    """A quantized model is refused in words."""
    message = refused(config(tmp_path, {**LLAMA, "quantization_config": {"quant_method": "fp8"}}))
    assert message.startswith("config.json, quantization_config: a quantized model")
    assert "only unquantized models are supported" in message


def test_encoder_decoder(tmp_path: Path) -> None:
    """So is an encoder-decoder."""
    assert "only decoders are supported" in refused(config(tmp_path, {**LLAMA, "is_encoder_decoder": True}))


def test_unknown_name() -> None:
    """The nearest name is suggested."""
    with pytest.raises(InputError, match=r'unknown model "llama-3.1-8"; did you mean "llama-3.1-8b"\? models: '):
        load_model("llama-3.1-8")


@pytest.mark.parametrize("text", ["{", "[1, 2]", '"x"'])
def test_broken_file(tmp_path: Path, text: str) -> None:
    """A file that is no mapping is refused with its name."""
    path = tmp_path / "config.json"
    path.write_text(text)
    assert refused(path).startswith("config.json: ")


def test_unknown_key(tmp_path: Path) -> None:
    """A misspelt key in a YAML is named; a `config.json` may hold anything."""
    path = tmp_path / "mine.yaml"
    path.write_text("hidden_sise: 3\n")
    assert refused(path).startswith('mine.yaml, hidden_sise: unknown key; did you mean "hidden_size"?')


@pytest.mark.parametrize("value", [0, -1, "many", 1.5, None])
def test_impossible_size(tmp_path: Path, value: object) -> None:
    """Sizes are integers above zero."""
    message = refused(config(tmp_path, {**LLAMA, "num_hidden_layers": value}))
    assert message.startswith("config.json, num_hidden_layers: ")
