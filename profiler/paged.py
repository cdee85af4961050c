"""One layer's paged KV cache, the attention calls timed on it, and the check that they compute attention.

In a forward pass each layer reads its own cache, so keys and values come from memory, not from the L2. Here
one cache serves all: the calls of one timing use different, randomly placed pages of it, together several
times the L2.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from profiler.attention import AttentionBackend, TorchAttention
from profiler.batch import Scheduled, VarlenBatch, chunk, decode, pages_of, share_pages
from profiler.fused import relative_error
from profiler.grid import Point
from profiler.timing import Call
from simulator.attention.contexts import spread_contexts
from simulator.errors import InputError
from simulator.models import ModelShape

if TYPE_CHECKING:
    import torch

MOST_COPIES = 256
ORDERS = 4
L2_MULTIPLE = 3


def layer_bytes_per_token(shape: ModelShape, element_bytes: int) -> int:
    """Key and value of one token in one layer."""
    return 2 * shape.num_key_value_heads * shape.head_dim * element_bytes


def scheduled_of(point: Point, random: np.random.Generator | None = None) -> list[Scheduled]:
    """The batch that an attention point of the table stands for: decodes first, as vLLM orders them.

    Contexts that differ come in random order.
    """
    contexts = [point.decode_context] * point.decodes
    if point.decode_longest:
        unlike = spread_contexts(point.decodes, point.decode_context, point.decode_longest).round().astype(int)
        contexts = (unlike if random is None else random.permutation(unlike)).tolist()
    decodes = [decode(context) for context in contexts]
    end = point.prefill_context + point.prefill_tokens
    chunks = [chunk(point.prefill_context, point.prefill_tokens, end) for _ in range(point.prefills)]
    return decodes + chunks


@dataclass
class PagedAttention:
    """Makes the calls of attention points, on a cache of `pages` pages that is allocated once.

    `l2_bytes`: 0 where rotating over pages is not worth the trouble (CPU).
    """

    backend: AttentionBackend
    shape: ModelShape
    device: str
    dtype: "torch.dtype"
    pages: int
    l2_bytes: int
    seed: int = 0

    def __post_init__(self) -> None:
        import torch

        size = (self.pages, self.backend.page_size, self.shape.num_key_value_heads, self.shape.head_dim)
        self.key_cache = torch.empty(size, device=self.device, dtype=self.dtype).normal_()
        self.value_cache = torch.empty(size, device=self.device, dtype=self.dtype).normal_()
        self.random = np.random.default_rng(self.seed)

    def calls(self, point: Point) -> list[Call]:
        """Calls of the point's batch, each on other pages. ValueError if the cache is too small for one."""
        import torch

        orders = ORDERS if point.decode_longest else 1  # what is late in the batch matters, so the mean over some
        batches = [scheduled_of(point, self.random) for _ in range(orders)]
        page_lists = self._page_lists(batches[0])
        q = torch.randn(
            sum(one.new for one in batches[0]),
            self.shape.num_attention_heads,
            self.shape.head_dim,
            device=self.device,
            dtype=self.dtype,
        )
        calls: list[Call] = []
        for place, scheduled in enumerate(batches):
            for pages in page_lists[place::orders] or page_lists[:1]:
                free = [page for own in pages for page in own]
                batch = VarlenBatch.build(
                    scheduled, self.backend.page_size, share_pages(scheduled, self.backend.page_size, free)
                )
                attend = self.backend.prepare(batch, self.shape, self.device)
                table = torch.from_numpy(batch.block_table).to(self.device)
                calls.append(partial(attend, q, self.key_cache, self.value_cache, table))
        return calls

    def _page_lists(self, scheduled: list[Scheduled]) -> list[list[list[int]]]:
        """Disjoint random pages for as many copies of the batch as exceed the L2, or as fit."""
        needed = sum(pages_of(scheduled, self.backend.page_size))
        if needed > self.pages:
            raise ValueError(f"the batch needs {needed} pages of KV cache; there are {self.pages}")
        entry_bytes = layer_bytes_per_token(self.shape, self.dtype.itemsize)
        batch_bytes = sum(one.length for one in scheduled) * entry_bytes
        copies = max(2, min(MOST_COPIES, -(-L2_MULTIPLE * self.l2_bytes // batch_bytes)))
        copies = min(copies, self.pages // needed)
        free = self.random.permutation(self.pages)[: copies * needed].tolist()
        return [
            share_pages(scheduled, self.backend.page_size, free[start : start + needed])
            for start in range(0, copies * needed, needed)
        ]


CHECKED_BATCHES = {
    "chunk with context": [chunk(300, 130, 430)],
    "decode": [decode(1), decode(121), decode(256), decode(777)],
    "hybrid": [decode(121), decode(46), chunk(517, 143, 1000), chunk(0, 65, 65)],
}


def check_attention(backend: AttentionBackend, shape: ModelShape, device: str, dtype: "torch.dtype") -> float:
    """Largest relative error of `backend` against a float32 reference: a chunk, decodes, a hybrid batch.

    Pages are shuffled and queries, keys and values random, so a kernel that reads a wrong page cannot pass.
    """
    import torch

    worst = 0.0
    for seed, scheduled in enumerate(CHECKED_BATCHES.values()):
        pages = sum(pages_of(scheduled, backend.page_size)) + 5
        paged = PagedAttention(backend, shape, device, dtype, pages, l2_bytes=0, seed=seed)
        shuffled = paged.random.permutation(pages).tolist()
        batch = VarlenBatch.build(scheduled, backend.page_size, share_pages(scheduled, backend.page_size, shuffled))
        q = torch.randn(batch.tokens, shape.num_attention_heads, shape.head_dim, device=device, dtype=dtype)
        table = torch.from_numpy(batch.block_table).to(device)
        caches = (paged.key_cache, paged.value_cache)
        attend = backend.prepare(batch, shape, device)
        for _layer in range(3):  # one schedule serves all layers, so a later call is the one to check
            actual = attend(q, *caches, table)
        reference = TorchAttention(backend.page_size).prepare(batch, shape, device)
        expected = reference(q.float(), caches[0].float(), caches[1].float(), table)
        worst = max(worst, relative_error(actual, expected))
    return worst


def require_correct(error: float, what: str, limit: float = 1e-2) -> None:
    """Refuse to time a kernel whose result is wrong: InputError if `error` exceeds `limit`."""
    if not error <= limit:
        raise InputError(
            f"{what} differs from the reference by {error:.1e} (relative; at most {limit:.0e} is rounding);"
            " its times would be those of a wrong result, so no table is written"
        )
