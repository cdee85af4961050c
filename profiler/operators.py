"""A layer's operators other than attention: what they compute, and the calls of each that are timed.

The functions at the top are a forward pass's building blocks. The classes below hold random weights, never
zeros (zeros draw less power and run faster), in as many copies as exceed the L2 several times over;
activations stay in one place, since in a forward pass the operator before has just written them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from profiler.fused import Fused, rotary_table
from profiler.grid import Point
from profiler.timing import Call
from simulator.models import ModelShape

if TYPE_CHECKING:
    import torch

L2_MULTIPLE = 6
MOST_COPIES = 64


def linear(x: "torch.Tensor", weight: "torch.Tensor") -> "torch.Tensor":
    """(tokens, in) times a weight of (out, in): (tokens, out), without a bias."""
    import torch

    return torch.nn.functional.linear(x, weight)


def mlp(x: "torch.Tensor", up: "torch.Tensor", down: "torch.Tensor", fused: Fused, gated: bool) -> "torch.Tensor":
    """The MLP of (tokens, hidden): one product with gate and up together, SiLU(gate) * up, the product down.

    Ungated: up, GELU, down.
    """
    wide = linear(x, up)
    return linear(fused.silu_mul(wide) if gated else fused.gelu(wide), down)


def embed(ids: "torch.Tensor", table: "torch.Tensor", first: int | None = None) -> "torch.Tensor":
    """Rows of `table` (vocabulary, hidden) for int64 (tokens) `ids`: (tokens, hidden).

    With `first` the table is a rank's part of the vocabulary, from that id on; other ids give zeros, to which the
    ranks' all-reduce adds the row that another holds.
    """
    from torch.nn.functional import embedding

    if first is None:
        return embedding(ids, table)
    own = ids - first
    held = own.clamp(0, len(table) - 1)
    return embedding(held, table).masked_fill_((held != own).unsqueeze(-1), 0)


def sample_greedily(
    hidden: "torch.Tensor",
    residual: "torch.Tensor",
    rows: "torch.Tensor",
    norm_weight: "torch.Tensor",
    head: "torch.Tensor",
    fused: Fused,
    gathered: "torch.Tensor | None" = None,
) -> "torch.Tensor":
    """The end of a step: final norm, LM head and the most likely token of each of `rows`; int64 (rows).

    `gathered`, (rows, whole vocabulary): the logits of all ranks, which each rank samples from where the LM head is
    divided; how they come together is not part of this.
    """
    normed, _ = fused.add_rms_norm(hidden.index_select(0, rows), residual.index_select(0, rows), norm_weight)
    logits = linear(normed, head)
    return (logits if gathered is None else gathered).argmax(dim=-1)


@dataclass(frozen=True)
class Bench:
    """What the operators are built from: the model's shape, where they run, and how large a step may be.

    `l2_bytes` is 0 where rotating weights is not worth the trouble (CPU). Above a `tensor_parallel` of 1 the shape is
    that of one rank (`ModelShape.shard`).
    """

    shape: ModelShape
    device: str
    dtype: "torch.dtype"
    fused: Fused
    max_tokens: int
    l2_bytes: int
    tensor_parallel: int = 1

    def normal(self, *size: int, scale: float = 1.0) -> "torch.Tensor":
        """Random normal numbers of the given size."""
        import torch

        return torch.empty(size, device=self.device, dtype=self.dtype).normal_(std=scale)

    def weight(self, out_features: int, in_features: int) -> "torch.Tensor":
        """A random weight that keeps the scale of its input."""
        return self.normal(out_features, in_features, scale=in_features**-0.5)

    def copies(self, elements: int) -> int:
        """Copies of a weight of so many elements that a round over them leaves nothing in the L2."""
        return copies_of(elements * self.dtype.itemsize, self.l2_bytes)


def copies_of(weight_bytes: int, l2_bytes: int) -> int:
    """Copies that together exceed L2_MULTIPLE times the L2; at least two."""
    return max(2, min(MOST_COPIES, -(-L2_MULTIPLE * l2_bytes // weight_bytes)))


class Operator(Protocol):
    """Makes the calls whose mean time is a row of the table."""

    def calls(self, point: Point) -> Sequence[Call]:
        """Calls of the point's size, the same work on different buffers."""
        ...


class Linear:
    """One projection, by tokens."""

    def __init__(self, bench: Bench, out_features: int, in_features: int):
        copies = bench.copies(out_features * in_features)
        self.weights = [bench.weight(out_features, in_features) for _ in range(copies)]
        self.x = bench.normal(bench.max_tokens, in_features)

    def calls(self, point: Point) -> Sequence[Call]:
        return [partial(linear, self.x[: point.tokens], weight) for weight in self.weights]


class Mlp:
    """The whole MLP, by tokens."""

    def __init__(self, bench: Bench):
        shape = bench.shape
        wide = shape.intermediate_size * (2 if shape.gated_mlp else 1)
        copies = bench.copies((wide + shape.intermediate_size) * shape.hidden_size)
        self.weights = [
            (bench.weight(wide, shape.hidden_size), bench.weight(shape.hidden_size, shape.intermediate_size))
            for _ in range(copies)
        ]
        self.x = bench.normal(bench.max_tokens, shape.hidden_size)
        self.bench = bench

    def calls(self, point: Point) -> Sequence[Call]:
        x, bench = self.x[: point.tokens], self.bench
        return [partial(mlp, x, up, down, bench.fused, bench.shape.gated_mlp) for up, down in self.weights]


class Elementwise:
    """A layer's norms with their residual adds, rotary embedding and KV-cache write, by tokens."""

    def __init__(self, bench: Bench):
        import torch

        shape, tokens = bench.shape, bench.max_tokens
        page_size = 16
        pages = -(-tokens // page_size)
        cache = (pages, page_size, shape.num_key_value_heads, shape.head_dim)
        copies = bench.copies(2 * tokens * shape.num_key_value_heads * shape.head_dim)
        self.caches = [(bench.normal(*cache), bench.normal(*cache)) for _ in range(copies)]
        self.x, self.residual = (
            bench.normal(tokens, shape.hidden_size),
            bench.normal(tokens, shape.hidden_size),
        )
        self.qkv = bench.normal(tokens, shape.qkv_features)
        self.norm_weight = bench.normal(shape.hidden_size)
        self.head_weight = bench.normal(shape.head_dim)
        self.table = rotary_table(tokens, shape.head_dim, bench.device)
        self.positions = torch.randperm(tokens, device=bench.device)
        self.slots = torch.randperm(pages * page_size, device=bench.device)[:tokens]
        self.rotated_heads = shape.num_attention_heads + shape.num_key_value_heads
        self.shape, self.fused = shape, bench.fused

    def calls(self, point: Point) -> Sequence[Call]:
        return [partial(self._layer, point.tokens, *caches) for caches in self.caches]

    def _layer(self, tokens: int, key_cache: "torch.Tensor", value_cache: "torch.Tensor") -> None:
        self.norms_of_attention(tokens)
        self.rotate_and_write(tokens, key_cache, value_cache)
        self.norms_of_mlp(tokens)

    def norms_of_attention(self, tokens: int) -> None:
        """The larger half of the layer's norms: one that attention and MLP share stands before attention."""
        for _ in range((self.shape.norms_per_layer + 1) // 2):
            self.norm(tokens)

    def norms_of_mlp(self, tokens: int) -> None:
        """The other half."""
        for _ in range(self.shape.norms_per_layer // 2):
            self.norm(tokens)

    def norm(self, tokens: int) -> None:
        """Residual add and RMS norm."""
        self.fused.add_rms_norm(self.x[:tokens], self.residual[:tokens], self.norm_weight)

    def rotate_and_write(self, tokens: int, key_cache: "torch.Tensor", value_cache: "torch.Tensor") -> None:
        """Norm by head and rotary embedding of queries and keys, where the model has them, and the KV-cache write."""
        qkv, shape = self.qkv[:tokens], self.shape
        if shape.qk_norm:
            self.fused.head_norm_(qkv, 0, shape.num_attention_heads, self.head_weight)
            self.fused.head_norm_(qkv, shape.num_attention_heads, shape.num_key_value_heads, self.head_weight)
        if shape.position_embedding == "rope":
            self.fused.rotary_(qkv, self.rotated_heads, self.table, self.positions[:tokens])
        self.fused.write_kv_(qkv, key_cache, value_cache, self.slots[:tokens])


class Embedding:
    """The lookup of the step's tokens, and of learned positions, by tokens; each call looks up other tokens.

    A rank looks up tokens of the whole vocabulary in its part.
    """

    def __init__(self, bench: Bench):
        import torch

        shape, ranks, most = bench.shape, bench.tensor_parallel, bench.max_tokens
        self.table = bench.normal(shape.vocab_size, shape.hidden_size)
        self.ids = torch.randint(shape.vocab_size * ranks, (16, most), device=bench.device)
        self.first = None if ranks == 1 else 0
        self.position_table: torch.Tensor | None = None
        if shape.position_embedding == "learned":
            self.position_table = bench.normal(shape.max_position_embeddings, shape.hidden_size)
            self.positions = torch.randint(shape.max_position_embeddings, (most,), device=bench.device)

    def calls(self, point: Point) -> Sequence[Call]:
        return [partial(self._look_up, ids[: point.tokens]) for ids in self.ids]

    def _look_up(self, ids: "torch.Tensor") -> "torch.Tensor":
        hidden = embed(ids, self.table, self.first)
        if self.position_table is None:
            return hidden
        return hidden.add_(embed(self.positions[: len(ids)], self.position_table))


class LmHead:
    """Final norm, LM head and greedy sampling, by sequences; the rows lie apart, as those of prompts do.

    A rank computes the logits of its part of the vocabulary and samples from all.
    """

    def __init__(self, bench: Bench):
        import torch

        shape = bench.shape
        copies = bench.copies(shape.vocab_size * shape.hidden_size)
        self.heads = [bench.weight(shape.vocab_size, shape.hidden_size) for _ in range(copies)]
        self.hidden = bench.normal(bench.max_tokens, shape.hidden_size)
        self.residual = bench.normal(bench.max_tokens, shape.hidden_size)
        self.norm_weight = bench.normal(shape.hidden_size)
        self.order = torch.randperm(bench.max_tokens, device=bench.device)
        self.bench = bench

    def calls(self, point: Point) -> Sequence[Call]:
        rows, bench = self.order[: point.sequences], self.bench
        vocabulary = bench.shape.vocab_size * bench.tensor_parallel
        gathered = bench.normal(point.sequences, vocabulary) if bench.tensor_parallel > 1 else None
        inputs = (self.hidden, self.residual, rows, self.norm_weight)
        return [partial(sample_greedily, *inputs, head, bench.fused, gathered) for head in self.heads]


BUILDERS: dict[str, Callable[[Bench], Operator]] = {
    "qkv_proj": lambda bench: Linear(bench, bench.shape.qkv_features, bench.shape.hidden_size),
    "o_proj": lambda bench: Linear(
        bench, bench.shape.hidden_size, bench.shape.num_attention_heads * bench.shape.head_dim
    ),
    "mlp": Mlp,
    "elementwise": Elementwise,
    "embedding": Embedding,
    "lm_head": LmHead,
}


def needed_bytes(
    shape: ModelShape, max_tokens: int, l2_bytes: int, element_bytes: int, tensor_parallel: int = 1
) -> int:
    """Memory of the largest operator: its weights, in as many copies as are timed, and its activations.

    `shape` is that of one of `tensor_parallel` ranks.
    """
    wide = shape.intermediate_size * (2 if shape.gated_mlp else 1)
    weights = {
        "mlp": (wide + shape.intermediate_size) * shape.hidden_size,
        "lm_head": shape.vocab_size * shape.hidden_size,
        "qkv_proj": shape.qkv_features * shape.hidden_size,
    }
    largest = max(count * element_bytes * copies_of(count * element_bytes, l2_bytes) for count in weights.values())
    logits = shape.vocab_size * (1 if tensor_parallel == 1 else 1 + tensor_parallel)  # its own, and all gathered
    activations = max_tokens * (2 * wide + 3 * shape.hidden_size) + min(max_tokens, 1024) * logits
    return largest + activations * element_bytes
