"""The roofline model of a whole layer: microseconds of any row of a cost table, from a datasheet."""

from dataclasses import dataclass

from profiler.grid import Point
from profiler.imports.attention_model import attention_us
from profiler.imports.datasheet import Hardware
from profiler.imports.gemm import gemm_us
from simulator.attention.kernels import Kernel, kernel_of
from simulator.models import ModelShape

SMALL_KERNEL_US = 1.5  # as measured on an H200
USUAL_KERNELS = 4  # of elementwise work: two norms, rope, KV write; `elementwise_us` was fitted to models with these
SAMPLING_US = 12.0  # final norm, argmax and gathering rows: what an H200's LM head takes beyond its matrix product


@dataclass(frozen=True)
class Roofline:
    """Times of the operators of `shape`, that of one of `ranks` where tensor-parallel, on `hardware`."""

    shape: ModelShape
    hardware: Hardware
    ranks: int = 1

    @property
    def kernel(self) -> Kernel:
        """How the attention kernel that the model describes cuts a batch into tiles."""
        return kernel_of(self.hardware.constants.attention.kernel, self.shape, self.hardware.gpu.sm_count)

    def time_us(self, point: Point) -> float:
        """Microseconds of one call of the point's operator in one layer."""
        if point.operator == "attention":
            return attention_us(point, self.shape, self.hardware)
        if point.operator == "lm_head":
            return self.product_us("lm_head", point.sequences) + self.rest_us("lm_head", point.sequences)
        if point.operator == "elementwise":
            return self._elementwise_us(point.tokens)
        if point.operator == "embedding":
            return self._embedding_us(point.tokens)
        return self.product_us(point.operator, point.tokens) + self.rest_us(point.operator, point.tokens)

    def product_us(self, operator: str, rows: int) -> float:
        """The matrix products of an operator alone."""
        return sum(gemm_us(rows, n, k, self.hardware) for n, k in products(self.shape)[operator])

    def rest_us(self, operator: str, rows: int) -> float:
        """What an operator does beside its matrix products: the activation, or final norm and sampling."""
        shape = self.shape
        if operator == "mlp":
            wide = (2 if shape.gated_mlp else 1) * shape.intermediate_size
            return SMALL_KERNEL_US + self._traffic_us(rows * (wide + shape.intermediate_size))
        if operator == "lm_head":
            return SAMPLING_US + self._traffic_us(rows * (self.ranks * shape.vocab_size + 3 * shape.hidden_size))
        return 0.0

    def _elementwise_us(self, tokens: int) -> float:
        """Norms with residual adds (each reads and writes both streams), norms by head, rope and KV write."""
        shape = self.shape
        keys = shape.num_key_value_heads * shape.head_dim
        rotated = shape.num_attention_heads * shape.head_dim + keys
        rope = shape.position_embedding == "rope"
        moved = 4 * shape.norms_per_layer * shape.hidden_size + 2 * keys  # values are read and written once
        moved += 2 * rotated if rope else 2 * keys  # the keys that rope wrote are written from the L2
        moved += 2 * rotated if shape.qk_norm else 0
        kernels = shape.norms_per_layer + rope + 1 + 2 * shape.qk_norm
        launches_us = self.hardware.constants.elementwise_us + (kernels - USUAL_KERNELS) * SMALL_KERNEL_US
        return launches_us + self._traffic_us(tokens * moved)

    def _embedding_us(self, tokens: int) -> float:
        """A row read and written; learned positions are looked up likewise, read and added."""
        learned = self.shape.position_embedding == "learned"
        kernels, moved = (3, 7) if learned else (1, 2)
        return kernels * SMALL_KERNEL_US + self._traffic_us(moved * tokens * self.shape.hidden_size)

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
