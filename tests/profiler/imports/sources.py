"""Small sources in the formats that import-costs reads, with times whose sums are in your head."""

from itertools import product
from pathlib import Path

import duckdb
import pandas as pd

MODEL = """hidden_size: 4096
intermediate_size: 8192
num_hidden_layers: 2
num_attention_heads: 32
num_key_value_heads: 8
head_dim: 128
vocab_size: 8192
max_position_embeddings: 4096
"""
TOKENS = (1, 64, 128, 129, 256)
SIZES = (4096, 8192, 16384)
HEADS = [(32, 8), (32, 4), (8, 2)]


def write_model(folder: Path) -> Path:
    """A model of two layers: products of (6144, 4096), (4096, 4096), (16384, 4096) and (4096, 8192)."""
    path = folder / "two-layers.yaml"
    path.write_text(MODEL, encoding="utf-8")
    return path


def gemm_ms(m: int, n: int, k: int) -> float:
    """Linear in n and in k, with a step from 128 to 129 tokens."""
    return n * k / 2**24 * (0.02 if m > 128 else 0.01)


def write_package(folder: Path, *, gpu: str = "h200_sxm", engine: str = "vllm", version: str = "0.24.0") -> Path:
    """A package folder in the layout of aiconfigurator-core; returns the folder that holds it."""
    package = folder / "aiconfigurator_core"
    (package / "systems/data").mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("raise ImportError('data only')", encoding="utf-8")
    data = package / "systems/data" / gpu
    products = [
        {"gemm_dtype": dtype, "m": m, "n": n, "k": k, "latency": gemm_ms(m, n, k) * scale}
        for dtype, scale in (("bfloat16", 1), ("fp8", 0.1))
        for m, n, k in product(TOKENS, SIZES, SIZES)
    ]
    _write(data / f"gemm/{engine}/{version}/gemm_perf.parquet", products)
    attention = data / f"attention/{engine}/{version}"
    prefills = [
        _call(heads, batch, isl, 0, batch * isl / 1000) for heads in HEADS for batch in (1, 2) for isl in (64, 256)
    ]
    decodes = [
        _call(heads, batch, 1, step, batch * (step + 1) / 100_000)
        for heads in HEADS
        for batch in (1, 16)
        for step in (63, 1023)
    ]
    _write(attention / "context_attention_perf.parquet", prefills)
    _write(attention / "generation_attention_perf.parquet", decodes)
    return folder


def _call(heads: tuple[int, int], batch: int, isl: int, step: int, latency: float) -> dict[str, object]:
    return {
        "kernel_source": "fa3", "batch_size": batch, "isl": isl, "step": step, "num_heads": heads[0],
        "num_key_value_heads": heads[1], "head_dim": 128, "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16",
        "window_size": 0, "latency": latency,
    }  # fmt: skip


def _write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame(rows)
    duckdb.connect().from_df(frame).write_parquet(str(path))


OPERATIONS = (
    "emb", "input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "post_attention_layernorm",
    "mlp_up_proj", "mlp_act", "mlp_down_proj", "add",
)  # fmt: skip


def write_vidur(folder: Path, *, attention: bool = True, kv_heads: int = 8) -> Path:
    """A folder in Vidur's format of the model above: every operation takes 1 us, 2 above 128 tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    model = {"n_embd": 4096, "n_kv_head": kv_heads, "num_tensor_parallel_workers": 1}
    rows = []
    for tokens in TOKENS:
        time = 0.002 if tokens > 128 else 0.001
        times = {
            f"time_stats.{name}.{statistic}": time * factor
            for name in OPERATIONS
            for statistic, factor in (("min", 0.5), ("max", 2), ("mean", 1), ("median", 1), ("std", 0))
        }
        rows.append({**times, **model, "n_head": 32, "n_expanded_embd": 8192, "vocab_size": 8192, "num_tokens": tokens})
    pd.DataFrame(rows).to_csv(folder / "mlp.csv", index=False)
    if attention:
        calls = [
            {**_timed("attn_prefill", 0.010), "batch_size": 1, "prefill_chunk_size": 128, "kv_cache_size": 0},
            {**_timed("attn_prefill", 0.015), "batch_size": 1, "prefill_chunk_size": 128, "kv_cache_size": 256},
            {**_timed("attn_decode", 0.005), "batch_size": 1, "prefill_chunk_size": 0, "kv_cache_size": 127},
            {**_timed("attn_decode", 0.020), "batch_size": 16, "prefill_chunk_size": 0, "kv_cache_size": 1023},
        ]
        frame = pd.DataFrame(calls).assign(**model, n_q_head=32, attention_backend="AttentionBackend.FLASHINFER")
        frame["is_prefill"] = frame["prefill_chunk_size"] > 0
        frame.to_csv(folder / "attention.csv", index=False)
    return folder


def _timed(name: str, time: float) -> dict[str, float]:
    return {f"time_stats.{name}.{statistic}": time for statistic in ("min", "max", "mean", "median")}
