"""Whole forward passes of a model, as an engine runs them: every layer with its own weights and paged KV cache.

A step is embedding, all layers (QKV, rotary embedding, cache write, varlen attention, output projection, MLP, norms
with their residual adds), final norm and LM head on the last position of each sequence, and greedy sampling. Weights
are random, never zeros (zeros draw less power and run faster). Of several tensor-parallel ranks it is one, without the
all-reduces between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from profiler.attention import Attend, AttentionBackend
from profiler.batch import Scheduled, VarlenBatch, chunk, decode
from profiler.fused import Fused, rotary_table
from profiler.operators import embed, linear, mlp, sample_greedily
from simulator.batch_file import ListedBatch
from simulator.models import ModelShape

if TYPE_CHECKING:
    import torch


def scheduled_of(batch: ListedBatch) -> list[Scheduled]:
    """The sequences of a listed batch: decodes first, as vLLM orders them, then chunks."""
    decodes = [decode(context_after) for context_after in batch.decodes]
    return [*decodes, *(chunk(before, new, before + new) for before, new in batch.prefills)]


@dataclass(frozen=True)
class Place:
    """What a model is built for: the shape of one of `ranks` ranks, kernels, device, type, and sizes.

    `pages` of KV cache in each layer; `positions`: longest sequence; `sequences`: most of a step.
    """

    shape: ModelShape
    backend: AttentionBackend
    fused: Fused
    device: str
    dtype: "torch.dtype"
    pages: int
    positions: int
    sequences: int
    ranks: int = 1

    def normal(self, *size: int, scale: float = 1.0) -> "torch.Tensor":
        """Random normal numbers of the given size."""
        import torch

        return torch.empty(size, device=self.device, dtype=self.dtype).normal_(std=scale)

    def weight(self, out_features: int, in_features: int) -> "torch.Tensor":
        """A random weight that keeps the scale of its input."""
        return self.normal(out_features, in_features, scale=in_features**-0.5)

    def upload(self, array: "NDArray[np.int32] | NDArray[np.int64]") -> "torch.Tensor":
        """The array on the device."""
        import torch

        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)


class Layer:
    """Weights and KV cache of one layer."""

    def __init__(self, place: Place):
        shape = place.shape
        hidden, queries = shape.hidden_size, shape.num_attention_heads * shape.head_dim
        wide = shape.intermediate_size * (2 if shape.gated_mlp else 1)
        cache = (place.pages, place.backend.page_size, shape.num_key_value_heads, shape.head_dim)
        self.qkv, self.output = place.weight(shape.qkv_features, hidden), place.weight(hidden, queries)
        self.up, self.down = place.weight(wide, hidden), place.weight(hidden, shape.intermediate_size)
        self.norms = [place.normal(hidden) for _ in range(shape.norms_per_layer)]
        self.head_norms = [place.normal(shape.head_dim) for _ in range(2 if shape.qk_norm else 0)]
        self.key_cache, self.value_cache = place.normal(*cache), place.normal(*cache)


class Model:
    """A model on a device. Memory: see `profiler.room`."""

    def __init__(self, place: Place):
        shape = place.shape
        self.place = place
        self.layers = [Layer(place) for _ in range(shape.num_hidden_layers)]
        self.embedding = place.weight(shape.vocab_size, shape.hidden_size)
        self.head = self.embedding if shape.tie_word_embeddings else place.weight(*self.embedding.shape)
        self.norm = place.normal(shape.hidden_size)
        self.rotary = self.position_table = None
        if shape.position_embedding == "rope":
            self.rotary = rotary_table(place.positions, shape.head_dim, place.device)
        if shape.position_embedding == "learned":
            self.position_table = place.weight(shape.max_position_embeddings, shape.hidden_size)
        self.vocabulary = shape.vocab_size * place.ranks
        self.gathered = place.normal(place.sequences, self.vocabulary) if place.ranks > 1 else None

    def step(
        self, scheduled: Sequence[Scheduled], pages: Sequence[Sequence[int]], ids: "torch.Tensor | None" = None
    ) -> "Step":
        """One step of `scheduled`, sequence i holding `pages[i]`; `ids`, int64 (tokens), random ones unless given.

        Uploads what the lengths decide; ValueError where pages are missing or shared.
        """
        import torch

        batch = VarlenBatch.build(scheduled, self.place.backend.page_size, pages)
        if ids is None:
            ids = torch.randint(self.vocabulary, (batch.tokens,), device=self.place.device)
        return Step(self, batch, ids)


class Step:
    """A step that is ready to run; calling it only launches, so a CUDA graph can capture it."""

    def __init__(self, model: Model, batch: VarlenBatch, ids: "torch.Tensor"):
        import torch

        place = model.place
        self.model, self.batch, self.ids = model, batch, ids
        self.attend: Attend = place.backend.prepare(batch, place.shape, place.device)
        self.table, self.slots = place.upload(batch.block_table), place.upload(batch.slot_mapping)
        self.positions, self.last = place.upload(batch.positions), place.upload(batch.logits_indices).long()
        self.zeros = torch.zeros(batch.tokens, place.shape.hidden_size, device=place.device, dtype=place.dtype)

    def __call__(self) -> "torch.Tensor":
        """The sampled token of each sequence, int64 (sequences)."""
        model = self.model
        gathered = None if model.gathered is None else model.gathered[: len(self.last)]
        return sample_greedily(
            *self.run_layers(), self.last, model.norm, model.head, model.place.fused, gathered
        )  # fmt: skip

    def logits(self) -> "torch.Tensor":
        """This rank's logits of each sequence's last position: (sequences, vocabulary of the rank)."""
        hidden, residual = (part.index_select(0, self.last) for part in self.run_layers())
        normed, _ = self.model.place.fused.add_rms_norm(hidden, residual, self.model.norm)
        return linear(normed, self.model.head)

    def run_layers(self) -> tuple["torch.Tensor", "torch.Tensor"]:
        """(what the last layer adds, the residual before it), (tokens, hidden) each."""
        hidden, residual = self._embed(), self.zeros
        for layer in self.model.layers:
            hidden, residual = self._layer(layer, hidden, residual)
        return hidden, residual

    def _embed(self) -> "torch.Tensor":
        model = self.model
        hidden = embed(self.ids, model.embedding, None if model.place.ranks == 1 else 0)
        if model.position_table is None:
            return hidden
        # Contexts beyond the model's are timed too; a row costs the same wherever it lies.
        return hidden.add_(embed(self.positions % len(model.position_table), model.position_table))

    def _layer(
        self, layer: Layer, hidden: "torch.Tensor", residual: "torch.Tensor"
    ) -> tuple["torch.Tensor", "torch.Tensor"]:
        """Norms as `Elementwise` times them: the larger half at attention, the other at the MLP.

        A second norm of a half normalizes what the half adds; with one norm attention and MLP read the same.
        """
        fused, shape, norms = self.model.place.fused, self.model.place.shape, layer.norms
        at_attention = (len(norms) + 1) // 2
        normed, residual = fused.add_rms_norm(hidden, residual, norms[0])
        added = self._attention(layer, normed)
        if at_attention == 2:
            added, _ = fused.add_rms_norm(added, self.zeros, norms[1])
        if len(norms) == 1:
            return added.add_(mlp(normed, layer.up, layer.down, fused, shape.gated_mlp)), residual
        normed, residual = fused.add_rms_norm(added, residual, norms[at_attention])
        added = mlp(normed, layer.up, layer.down, fused, shape.gated_mlp)
        if len(norms) == 4:
            added, _ = fused.add_rms_norm(added, self.zeros, norms[3])
        return added, residual

    def _attention(self, layer: Layer, normed: "torch.Tensor") -> "torch.Tensor":
        fused, shape = self.model.place.fused, self.model.place.shape
        heads, kv_heads = shape.num_attention_heads, shape.num_key_value_heads
        qkv = linear(normed, layer.qkv)
        for weight, first, count in zip(layer.head_norms, (0, heads), (heads, kv_heads), strict=False):
            fused.head_norm_(qkv, first, count, weight)
        if self.model.rotary is not None:
            fused.rotary_(qkv, heads + kv_heads, self.model.rotary, self.positions)
        return linear(self.attend_to(qkv, layer), layer.output)

    def attend_to(self, qkv: "torch.Tensor", layer: Layer) -> "torch.Tensor":
        """Write keys and values to the layer's cache and attend: (tokens, query features)."""
        shape = self.model.place.shape
        self.model.place.fused.write_kv_(qkv, layer.key_cache, layer.value_cache, self.slots)
        queries = qkv[:, : shape.num_attention_heads * shape.head_dim]
        queries = queries.view(-1, shape.num_attention_heads, shape.head_dim)
        return self.attend(queries, layer.key_cache, layer.value_cache, self.table).reshape(len(qkv), -1)
