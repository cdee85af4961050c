"""The four arrays that an engine builds for one step of a paged, variable-length batch.

A step runs some tokens of several requests at once: one token of each decode, a chunk of each prompt. Their
queries lie end to end; their keys and values lie in pages of the KV cache. The kernels learn what belongs
together from `cu_seqlens_q`, `cu_seqlens_k`, `block_table` and `slot_mapping`, built here and nowhere else
(vLLM builds the same in `v1/worker/gpu_model_runner.py`). Plain numpy: no torch, no GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One request's share of a step: `context` tokens are cached already, the `new` ones are computed now.

    `emits`: its last position yields a token, which is so for a decode and for the last chunk of a prompt
    only.
    """

    context: int
    new: int
    emits: bool = True

    def __post_init__(self) -> None:
        if self.context < 0 or self.new < 1:
            raise ValueError(f"a request needs context >= 0 and new >= 1, not {self.context} and {self.new}")

    @property
    def length(self) -> int:
        """KV entries that its last new token attends to, its own included."""
        return self.context + self.new


def decode(context_after: int) -> Scheduled:
    """A decode that attends to `context_after` KV entries, its own new token included."""
    return Scheduled(context_after - 1, 1)


def chunk(context: int, new: int, prompt_tokens: int) -> Scheduled:
    """`new` tokens of a prompt of `prompt_tokens` after `context`; emits a token if the prompt ends here."""
    if context + new > prompt_tokens:
        raise ValueError(f"{context} + {new} tokens of a prompt of {prompt_tokens}")
    return Scheduled(context, new, emits=context + new == prompt_tokens)


def pages_of(scheduled: Sequence[Scheduled], page_size: int) -> list[int]:
    """Pages that each request's KV entries fill after the step; a last page counts whole."""
    return [-(-one.length // page_size) for one in scheduled]


def share_pages(scheduled: Sequence[Scheduled], page_size: int, free_pages: Sequence[int]) -> list[list[int]]:
    """Hand `free_pages` out in order, to each request as many as it needs. ValueError if they run out."""
    counts = pages_of(scheduled, page_size)
    if sum(counts) > len(free_pages):
        raise ValueError(f"the batch needs {sum(counts)} pages; {len(free_pages)} are free")
    ends = np.cumsum(counts)
    return [list(free_pages[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def table_of(pages: Sequence[Sequence[int]]) -> Int32:
    """`block_table`, (sequences, most pages of one): row i is request i's pages in order, padded with 0."""
    table = np.zeros((len(pages), max(len(own) for own in pages)), np.int32)
    for row, own in zip(table, pages, strict=True):
        row[: len(own)] = own
    return table


@dataclass(frozen=True)
class VarlenBatch:
    """A step's arrays.

    `cu_seqlens_q`, int32 (sequences + 1): where each request's queries start. `cu_seqlens_k`, the same for
    the KV entries attended to. `block_table`, int32 (sequences, pages). `slot_mapping`, int64 (tokens): page
    * page_size + place, where each new token's key and value are written. `positions`, int64 (tokens): for
    the rotary embedding.
    """

    scheduled: tuple[Scheduled, ...]
    page_size: int
    cu_seqlens_q: Int32
    cu_seqlens_k: Int32
    block_table: Int32
    slot_mapping: Int64
    positions: Int64

    @classmethod
    def build(cls, scheduled: Sequence[Scheduled], page_size: int, pages: Sequence[Sequence[int]]) -> "VarlenBatch":
        """The arrays of `scheduled`, request i holding `pages[i]`.

        O(tokens). ValueError for an empty batch, too few pages, or two tokens written to one slot.
        """
        if not scheduled or len(pages) != len(scheduled):
            raise ValueError(f"{len(scheduled)} requests with {len(pages)} lists of pages")
        for one, own, needed in zip(scheduled, pages, pages_of(scheduled, page_size), strict=True):
            if len(own) < needed:
                raise ValueError(f"{one.length} tokens need {needed} pages of {page_size}; {len(own)} given")
        new = np.array([one.new for one in scheduled])
        table = table_of(pages)
        positions = np.concatenate([np.arange(one.context, one.length, dtype=np.int64) for one in scheduled])
        rows = np.repeat(np.arange(len(scheduled)), new)
        slots = table[rows, positions // page_size].astype(np.int64) * page_size + positions % page_size
        if len(np.unique(slots)) != len(slots):
            raise ValueError("two requests write to one page")
        return cls(
            scheduled=tuple(scheduled),
            page_size=page_size,
            cu_seqlens_q=_cumulative(new),
            cu_seqlens_k=_cumulative(np.array([one.length for one in scheduled])),
            block_table=table,
            slot_mapping=slots,
            positions=positions,
        )

    @property
    def tokens(self) -> int:
        """New tokens of the step: the rows of every linear operator."""
        return int(self.cu_seqlens_q[-1])

    @property
    def lengths(self) -> Int32:
        """KV entries of each request after the step (`seqused_k` of FlashAttention-3)."""
        return np.diff(self.cu_seqlens_k)

    @property
    def max_seqlen_q(self) -> int:
        """Most new tokens of one request."""
        return max(one.new for one in self.scheduled)

    @property
    def max_seqlen_k(self) -> int:
        """Most KV entries of one request."""
        return max(one.length for one in self.scheduled)

    @property
    def logits_indices(self) -> Int32:
        """The last new token of each request: the rows that the LM head reads."""
        return self.cu_seqlens_q[1:] - 1

    @property
    def emitting(self) -> list[int]:
        """Places of the requests that emit a token in this step: decodes and prompts that end in it."""
        return [place for place, one in enumerate(self.scheduled) if one.emits]


def _cumulative(counts: NDArray[np.int64]) -> Int32:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
