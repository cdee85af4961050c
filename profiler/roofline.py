"""Floating-point operations and bytes moved of each row of a cost table, per call and GPU.

Multiply-adds count as two. Bytes are the least that must move between the memory and the chip: weights, activations
in and out, the KV cache once. Norms, rotary embedding and sampling count their bytes only.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd

from simulator.cost_table import TableMetadata

ELEMENT_BYTES = {"float32": 4}  # else 2


def with_work(rows: pd.DataFrame, metadata: TableMetadata) -> pd.DataFrame:
    """`rows` with columns `flops`, `bytes`, `intensity` (flops per byte), `tflops` and `tbytes` (per second).

    Without those of whole layers.
    """
    counts = Work(metadata)
    rows = rows[rows["operator"].isin(counts.by_operator)].reset_index(drop=True)
    flops, moved = np.zeros(len(rows)), np.zeros(len(rows))
    for operator, count in counts.by_operator.items():
        own = rows["operator"] == operator
        flops[own], elements = count(rows[own])
        moved[own] = elements * ELEMENT_BYTES.get(metadata.dtype, 2)
    seconds = rows["time_us"] * 1e-6
    return rows.assign(
        flops=flops,
        bytes=moved,
        intensity=flops / moved,
        tflops=flops / seconds / 1e12,
        tbytes=moved / seconds / 1e12,
    )


Counts = tuple["pd.Series[float]", "pd.Series[float]"]  # flops and elements moved


class Work:
    """The counts of each operator for the model's shard on one of `tensor_parallel` GPUs."""

    def __init__(self, metadata: TableMetadata):
        shape = self.shape = metadata.model.shard(metadata.tensor_parallel)
        self.hidden = shape.hidden_size
        self.heads = shape.num_attention_heads * shape.head_dim
        self.kv = shape.num_key_value_heads * shape.head_dim
        self.inner = shape.intermediate_size
        self.wide = self.inner * (2 if shape.gated_mlp else 1)
        self.vocabulary = shape.vocab_size
        self.by_operator: dict[str, Callable[[pd.DataFrame], Counts]] = {
            "qkv_proj": lambda rows: self._product(rows["tokens"], self.hidden, self.heads + 2 * self.kv),
            "o_proj": lambda rows: self._product(rows["tokens"], self.heads, self.hidden),
            "mlp": self._mlp,
            "lm_head": lambda rows: self._product(rows["sequences"], self.hidden, self.vocabulary),
            "embedding": self._embedding,
            "elementwise": self._elementwise,
            "attention": self._attention,
        }

    @staticmethod
    def _product(tokens: "pd.Series[float]", inputs: float, outputs: float) -> Counts:
        return 2.0 * tokens * inputs * outputs, inputs * outputs + tokens * (inputs + outputs)

    def _mlp(self, rows: pd.DataFrame) -> Counts:
        up, down = (
            self._product(rows["tokens"], self.hidden, self.wide),
            self._product(rows["tokens"], self.inner, self.hidden),
        )
        return up[0] + down[0], up[1] + down[1] + rows["tokens"] * (self.wide + self.inner)  # the activation between

    def _elementwise(self, rows: pd.DataFrame) -> Counts:
        norms = self.shape.norms_per_layer * 4 * self.hidden  # each reads and writes the hidden state and the residual
        passes = (self.shape.position_embedding == "rope") + self.shape.qk_norm  # over queries and keys
        write = (3 if passes else 4) * self.kv  # keys are read unless they were just written
        return rows["tokens"] * 0.0, rows["tokens"] * (norms + 2 * passes * (self.heads + self.kv) + write)

    def _embedding(self, rows: pd.DataFrame) -> Counts:
        rows_moved = 7.0 if self.shape.position_embedding == "learned" else 2.0  # two read and written, and their sum
        return rows["tokens"] * 0.0, rows["tokens"] * rows_moved * self.hidden

    def _attention(self, rows: pd.DataFrame) -> Counts:
        new, before, decoding = (
            rows["prefill_tokens"],
            rows["prefill_context"],
            rows["decodes"] * rows["decode_context"],
        )
        pairs = rows["prefills"] * new * (before + (new + 1) / 2) + decoding
        queries = rows["prefills"] * new + rows["decodes"]
        entries = rows["prefills"] * (before + new) + decoding
        return 4.0 * self.heads * pairs, 2 * self.heads * queries + 2 * self.kv * entries
