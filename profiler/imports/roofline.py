"""The roofline model of a whole layer: microseconds of any row of a cost table, from a datasheet."""

from dataclasses import dataclass

from profiler.grid import Point
from profiler.imports.attention_model import attention_us
from profiler.imports.datasheet import Hardware
from profiler.imports.gemm import gemm_us
from simulator.models import ModelShape

EMBEDDING_US = 1.5  # of one small kernel, as measured on an H200
ACTIVATION_US = 1.5
SAMPLING_US = 12.0  # final norm, argmax and gathering rows: what an H200's LM head takes beyond its matrix product


@dataclass(frozen=True)
class Roofline:
    """Times of the operators of `shape` (a shard's where tensor-parallel) on `hardware`."""

    shape: ModelShape
    hardware: Hardware

    def time_us(self, point: Point) -> float:
        """Microseconds of one call of the point's operator in one layer."""
        if point.operator == "attention":
            return attention_us(point, self.shape, self.hardware)
        if point.operator == "lm_head":
            return self.product_us("lm_head", point.sequences) + self.rest_us("lm_head", point.sequences)
        if point.operator == "elementwise":
            return self._elementwise_us(point.tokens)
        if point.operator == "embedding":
            return EMBEDDING_US + self._traffic_us(2 * point.tokens * self.shape.hidden_size)
        return self.product_us(point.operator, point.tokens) + self.rest_us(point.operator, point.tokens)

    def product_us(self, operator: str, rows: int) -> float:
        """The matrix products of an operator alone."""
        return sum(gemm_us(rows, n, k, self.hardware) for n, k in products(self.shape)[operator])

    def rest_us(self, operator: str, rows: int) -> float:
        """What an operator does beside its matrix products: the activation, or final norm and sampling."""
        shape = self.shape
        if operator == "mlp":
            wide = (2 if shape.gated_mlp else 1) * shape.intermediate_size
            return ACTIVATION_US + self._traffic_us(rows * (wide + shape.intermediate_size))
        if operator == "lm_head":
            return SAMPLING_US + self._traffic_us(rows * (shape.vocab_size + 3 * shape.hidden_size))
        return 0.0

    def _elementwise_us(self, tokens: int) -> float:
        """Two norms with residual adds (each reads and writes both streams), rope and KV write."""
        elements = tokens * (8 * self.shape.hidden_size + 2 * self.shape.qkv_features)
        return self.hardware.constants.elementwise_us + self._traffic_us(elements)

    def _traffic_us(self, elements: int) -> float:
        bandwidth = self.hardware.sheet.memory_bandwidth * self.hardware.constants.elementwise_memory_share
        return self.shape.dtype_bytes * elements / bandwidth * 1e6


def products(shape: ModelShape) -> dict[str, tuple[tuple[int, int], ...]]:
    """Output and input features (n, k) of each operator's matrix products."""
    hidden, wide = shape.hidden_size, shape.intermediate_size
    return {
        "qkv_proj": ((shape.qkv_features, hidden),),
        "o_proj": ((hidden, shape.num_attention_heads * shape.head_dim),),
        "mlp": (((2 if shape.gated_mlp else 1) * wide, hidden), (hidden, wide)),
        "lm_head": ((shape.vocab_size, hidden),),
    }
