"""A small cost table whose every time is a whole number of microseconds, for a model of two layers."""

from pathlib import Path
from typing import Any

import pandas as pd

from simulator.cost_table import Attention, CostTable, Gpu, TableMetadata, read_table, write_table
from simulator.models import ModelShape
from simulator.table_rows import TOKEN_OPERATORS

LAYERS = 2
SHAPE = ModelShape(
    name="two-layers",
    num_hidden_layers=LAYERS,
    hidden_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=128,
    vocab_size=1000,
    max_position_embeddings=4096,
)
GPU = Gpu("Test GPU", 80 * 2**30, 100, "9.0")

# microseconds; the matrix multiplications step up between 128 and 129 tokens
MLP = {1: 10, 16: 10, 32: 12, 64: 16, 128: 20, 129: 30, 256: 40}
LM_HEAD = {1: 5, 16: 5, 64: 9}
PREFILL = {(16, 0): 2, (16, 1024): 6, (64, 0): 4, (64, 1024): 12, (256, 0): 24, (256, 1024): 64}
DECODE = {(1, 16): 2, (1, 1024): 4, (16, 16): 4, (16, 1024): 36, (64, 16): 8, (64, 1024): 136}
HYBRID = {(16, 16): 8, (16, 1024): 40, (64, 16): 14, (64, 1024): 140}  # beside a chunk of 64 without context


def small_rows(hybrid: bool = True) -> pd.DataFrame:
    """The measured points."""
    rows: list[dict[str, Any]] = []
    for operator in TOKEN_OPERATORS:
        for tokens, time in MLP.items():
            rows.append({"operator": operator, "tokens": tokens, "time_us": time if operator == "mlp" else 1})
    rows += [{"operator": "lm_head", "sequences": count, "time_us": time} for count, time in LM_HEAD.items()]
    for (tokens, context), time in PREFILL.items():
        place = {"prefills": 1, "prefill_tokens": tokens, "prefill_context": context}
        rows.append({"operator": "attention", **place, "time_us": time})
    for (count, context), time in DECODE.items():
        rows.append({"operator": "attention", "decodes": count, "decode_context": context, "time_us": time})
    for (count, context), time in HYBRID.items() if hybrid else ():
        place = {"prefills": 1, "prefill_tokens": 64, "decodes": count, "decode_context": context}
        rows.append({"operator": "attention", **place, "time_us": time})
    frame = pd.DataFrame(rows)
    return frame.assign(p10_us=frame["time_us"], p90_us=frame["time_us"], repeats=10, sm_mhz=1980)


def metadata(model: ModelShape = SHAPE, tensor_parallel: int = 1) -> TableMetadata:
    """A sidecar."""
    return TableMetadata(
        gpu=GPU,
        model=model,
        attention=Attention("flash-attn", "2.8.3"),
        dtype="bfloat16",
        tensor_parallel=tensor_parallel,
        page_size=16,
        torch="2.8.0",
        cuda="12.8",
        driver=None,
        date="2025-01-01",
        repeats=10,
        command="profile-gpu",
    )


def write_small_table(folder: Path, name: str = "small.csv", *, hybrid: bool = True, tensor_parallel: int = 1) -> Path:
    """The table in `folder`, with its sidecar."""
    path = folder / name
    write_table(path, small_rows(hybrid), metadata(tensor_parallel=tensor_parallel))
    return path


def small_table(folder: Path, *, hybrid: bool = True) -> CostTable:
    """The table, written and read back."""
    return read_table(write_small_table(folder, hybrid=hybrid))


def linear_us(tokens: int) -> int:
    """What a step of a measured number of tokens costs besides attention and LM head, in microseconds."""
    return LAYERS * (1 + 1 + 1 + MLP[tokens]) + 1
