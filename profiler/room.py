"""What a model and its steps take of the device's memory, and how many pages of KV cache that leaves."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from profiler.batch import pages_of
from profiler.forward import scheduled_of
from simulator.batch_file import ListedBatch
from simulator.errors import InputError
from simulator.models import ModelShape

GIB = 2**30
SLACK_BYTES = GIB
"""For loaded kernels, workspaces and fragments; on a CPU none."""


@dataclass(frozen=True)
class Room:
    """Memory of steps of a model; `shape` is that of one of `ranks` ranks."""

    shape: ModelShape
    element_bytes: int
    page_size: int
    device: str
    ranks: int = 1

    @property
    def weight_bytes(self) -> int:
        """All weights in the type that is measured."""
        return self.shape.weight_bytes // self.shape.dtype_bytes * self.element_bytes

    @property
    def page_bytes(self) -> int:
        """A page in all layers."""
        return self.shape.kv_bytes_per_token // self.shape.dtype_bytes * self.element_bytes * self.page_size

    def pages(self, batch: ListedBatch) -> int:
        """Pages that a batch fills; each sequence's last counts whole."""
        return sum(pages_of(scheduled_of(batch), self.page_size))

    def step_bytes(self, batch: ListedBatch) -> int:
        """Activations of a step; on a GPU as much again for the partial results of kernels that split a context."""
        shape = self.shape
        wide = shape.intermediate_size * (2 if shape.gated_mlp else 1)
        attention = shape.qkv_features + 2 * shape.num_attention_heads * shape.head_dim
        row = 5 * shape.hidden_size + max(wide + shape.intermediate_size, attention)
        logits = batch.sequences * shape.vocab_size
        return (batch.tokens * row + logits) * self.element_bytes * (1 if self.device == "cpu" else 2)

    def fixed_bytes(self, batches: Sequence[ListedBatch]) -> int:
        """Weights, the rotary table, the logits that other ranks would send, and slack."""
        positions = max(longest(batch) for batch in batches) * self.shape.head_dim * 4
        logits = max(batch.sequences for batch in batches) * self.shape.vocab_size * self.ranks * self.element_bytes
        slack = 0 if self.device == "cpu" else SLACK_BYTES
        return self.weight_bytes + positions + (logits if self.ranks > 1 else 0) + slack


def longest(batch: ListedBatch) -> int:
    """KV entries of the longest sequence."""
    return max([*batch.decodes, *(before + new for before, new in batch.prefills)])


def cache_pages(
    room: Room, batches: Sequence[ListedBatch], free_bytes: int, path: Path, least: int = 1
) -> tuple[int, list[ListedBatch], dict[str, str]]:
    """Pages of the KV cache, the batches that then fit, in their order, and why others do not, by id.

    The cache is what the largest of those that fit needs, and not under `least` pages. The largest are left out first.
    Raises InputError where `free_bytes` are too few for the model with `least` pages, or for every batch.
    """
    by_size = sorted(batches, key=lambda batch: (room.pages(batch), room.step_bytes(batch)))
    smallest = by_size[0]
    left_out: dict[str, str] = {}
    while by_size:
        largest, fixed = by_size[-1], room.fixed_bytes(by_size)
        pages = max(room.pages(largest), least)
        if fixed + pages * room.page_bytes + room.step_bytes(largest) <= free_bytes:
            return pages, [batch for batch in batches if batch.id not in left_out], left_out
        left_out[largest.id] = _needs(room, largest, fixed, free_bytes)
        by_size.pop()
    fixed = room.fixed_bytes([smallest])
    if fixed + least * room.page_bytes > free_bytes:
        raise InputError(
            f"too little memory: the weights of {room.shape.name} and what is needed beside them take"
            f" {_gib(fixed + least * room.page_bytes)}, {_gib(free_bytes)} are free; --tp measures a shard",
            key="--model",
        )
    raise InputError(
        f"{left_out[smallest.id]}; no batch is smaller",
        path=path,
        line=smallest.line,
        key=f'batch "{smallest.id}"',
    )


def _needs(room: Room, batch: ListedBatch, fixed_bytes: int, free_bytes: int) -> str:
    return (
        f"too little memory: it needs {_gib(room.pages(batch) * room.page_bytes)} of KV cache and"
        f" {_gib(room.step_bytes(batch))} of activations beside {_gib(fixed_bytes)} of weights and workspace,"
        f" {_gib(free_bytes)} are free"
    )


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
