"""A Hugging Face `config.json` of a dense decoder as the fields of `ModelShape`.

Families name their sizes differently, and a file leaves out what is its class's default, so what is not in the file
comes from the table of families below: the classes of transformers 4.57 (`models/*/configuration_*.py`) and, for what
a layer does, their `modeling_*.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulator.unpriceable import refuse_other_layers, refuse_unpriceable

_SPELLINGS = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv"),
    "hidden_size": ("n_embd", "n_embed", "d_model"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "head_dim": ("kv_channels",),
    "vocab_size": ("padded_vocab_size",),
    "max_position_embeddings": ("n_positions", "max_seq_len", "max_sequence_length", "seq_length"),
}


@dataclass(frozen=True)
class Family:
    """What a `model_type` means: its layer, and what its files leave out."""

    gated_mlp: bool = True
    tie_word_embeddings: bool = False
    position_embedding: str = "rope"
    norms_per_layer: int = 2
    qk_norm: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)


_LLAMA = Family()
_GPT2 = Family(gated_mlp=False, tie_word_embeddings=True, position_embedding="learned")
_ONE_NORM = Family(gated_mlp=False, norms_per_layer=1)  # attention and MLP side by side behind one norm
FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("llama", "mistral", "ministral", "qwen2", "phi3", "internlm2", "granite", "glm", "olmo"), _LLAMA),
    **dict.fromkeys(("yi", "Yi", "internlm", "baichuan", "aquila", "seed_oss", "helium", "chatglm", "qwen"), _LLAMA),
    **dict.fromkeys(("qwen3", "olmo2", "olmo3", "exaone4"), Family(qk_norm=True)),
    **dict.fromkeys(("gpt2", "opt", "biogpt", "gpt_neo"), _GPT2),
    **dict.fromkeys(("gptj", "codegen", "phi"), _ONE_NORM),
    "gpt_bigcode": Family(**{**vars(_GPT2), "defaults": {"multi_query": True}}),
    "gpt_neox": Family(gated_mlp=False),
    "starcoder2": Family(gated_mlp=False, tie_word_embeddings=True),
    "nemotron": Family(gated_mlp=False),
    "arcee": Family(gated_mlp=False),
    "stablelm": _LLAMA,
    "bloom": Family(
        gated_mlp=False, tie_word_embeddings=True, position_embedding="alibi", defaults={"seq_length": 2048}
    ),
    "mpt": Family(
        gated_mlp=False,
        tie_word_embeddings=True,
        position_embedding="learned",
        defaults={"n_layers": 24, "n_heads": 16, "d_model": 2048, "max_seq_len": 2048},
    ),
    "falcon": Family(
        gated_mlp=False,
        tie_word_embeddings=True,
        defaults={"multi_query": True, "parallel_attn": True, "max_position_embeddings": 2048},
    ),
    "cohere": Family(tie_word_embeddings=True, norms_per_layer=1),
    "cohere2": Family(tie_word_embeddings=True, norms_per_layer=1, defaults={"head_dim": 128, "sliding_window": 4096}),
    "smollm3": Family(tie_word_embeddings=True),
    "ernie4_5": Family(tie_word_embeddings=True, defaults={"head_dim": 128}),
    "gemma": Family(tie_word_embeddings=True, defaults={"head_dim": 256}),
    "gemma2": Family(
        tie_word_embeddings=True,
        norms_per_layer=4,
        defaults={"head_dim": 256, "sliding_window": 4096, "attn_logit_softcapping": 50.0},
    ),
    "gemma3_text": Family(
        tie_word_embeddings=True,
        norms_per_layer=4,
        qk_norm=True,
        defaults={
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
        },
    ),
    "glm4": Family(norms_per_layer=4),
}
_OLDER_NAMES = {"RefinedWebModel": "falcon", "RefinedWeb": "falcon", "internlm3": "internlm2", "gemma3": "gemma3_text"}


def from_hugging_face(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The fields of ModelShape; sizes that the file lacks are lacking here too.

    Raises InputError for a model whose layers are not those of a dense decoder with one kind of attention.
    """
    raw, notes = _language_part(raw)
    refuse_unpriceable(raw, path)
    refuse_other_layers(raw, path)
    kind = str(raw.get("model_type"))
    family = FAMILIES.get(_OLDER_NAMES.get(kind, kind))
    if family is None:
        notes.append(f'model type "{kind}" is not known here: its layer is taken to be like Llama\'s')
        family = _LLAMA
    raw = _standard_keys({**family.defaults, **{key: value for key, value in raw.items() if value is not None}})
    raw.setdefault("name", Path(str(raw.get("_name_or_path") or path.resolve().parent.name)).name or "model")
    raw.setdefault("gated_mlp", family.gated_mlp)
    raw.setdefault("tie_word_embeddings", family.tie_word_embeddings)
    raw["position_embedding"] = _position_embedding(raw, family)
    raw["norms_per_layer"] = _norms(raw, kind, family)
    raw["qk_norm"] = bool(family.qk_norm or raw.get("use_qk_norm") or raw.get("qk_layernorm"))
    raw["approximations"] = [*notes, *_approximations(raw)]
    return raw


def _language_part(raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The file's keys, those of `text_config` in front, and what to note about the rest."""
    text = raw.get("text_config")
    if not isinstance(text, Mapping):
        return dict(raw), []
    other = [key for key in ("vision_config", "audio_config") if raw.get(key)]
    note = ["only the language model is priced, not what reads images or sound"] if other else []
    return {**raw, **text}, note


def _standard_keys(raw: dict[str, Any]) -> dict[str, Any]:
    for key, spellings in _SPELLINGS.items():
        for other in spellings:
            if key not in raw and other in raw:
                raw[key] = raw[other]
    hidden, heads = raw.get("hidden_size"), raw.get("num_attention_heads")
    if isinstance(hidden, int):
        raw.setdefault("intermediate_size", raw.get("expansion_ratio", 4) * hidden)
        if isinstance(heads, int) and heads > 0:
            raw.setdefault("head_dim", hidden // heads)
    if raw.get("model_type") == "qwen" and isinstance(raw["intermediate_size"], int):
        raw["intermediate_size"] //= 2  # Qwen 1 counts gate and up together
    raw["num_key_value_heads"] = _key_value_heads(raw)
    return raw


def _key_value_heads(raw: Mapping[str, Any]) -> Any:
    heads, grouped = raw.get("num_attention_heads"), raw.get("num_key_value_heads")
    if raw.get("multi_query_attention"):  # ChatGLM
        return raw.get("multi_query_group_num", grouped)
    if "multi_query" in raw and not raw.get("new_decoder_architecture"):  # Falcon, StarCoder
        return 1 if raw["multi_query"] else heads
    inner = raw.get("attn_config")
    if isinstance(inner, Mapping) and inner.get("kv_n_heads"):  # MPT
        return inner["kv_n_heads"]
    return heads if grouped is None else grouped


def _position_embedding(raw: Mapping[str, Any], family: Family) -> str:
    inner = raw.get("attn_config")
    alibi = raw.get("alibi") or (isinstance(inner, Mapping) and inner.get("alibi"))
    return "alibi" if alibi else family.position_embedding


def _norms(raw: Mapping[str, Any], kind: str, family: Family) -> int:
    """Falcon's first architecture has one norm before attention and MLP side by side, its others two."""
    falcon = _OLDER_NAMES.get(kind, kind) == "falcon"
    if falcon and raw.get("parallel_attn"):
        separate = raw.get("num_ln_in_parallel_attn", 2 if raw.get("new_decoder_architecture") else 1)
        return 2 if separate == 2 else 1
    return 1 if kind == "stablelm" and raw.get("use_parallel_residual") else family.norms_per_layer


def _approximations(raw: Mapping[str, Any]) -> list[str]:
    """Sentences about what the costs leave out."""
    notes = []
    window, longest = raw.get("sliding_window") or raw.get("window_size"), raw.get("max_position_embeddings")
    kinds = raw.get("layer_types")
    windowed = "sliding_attention" in kinds if isinstance(kinds, list) else raw.get("use_sliding_window", True)
    if windowed and isinstance(window, int) and isinstance(longest, int) and window < longest:
        notes.append(f"attention within a window of {window} tokens is priced, and stored, as attention to all tokens")
    if raw.get("attn_logit_softcapping"):
        notes.append("the cap on attention logits is not priced")
    if raw["position_embedding"] == "alibi":
        notes.append("the ALiBi bias of attention is not priced")
    return notes
