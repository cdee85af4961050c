"""KV memory that keeps the blocks of ended prompts in a trie, as text-generation-inference does.

(`backends/v3/src/radix.rs`, `RadixAllocator`.) An allocation lasts for a request's whole life. Its prompt enters the
trie when the allocation is released, so running requests do not share blocks of prompts that are being computed, and
answers are never cached. Whatever is released enters, computed or not.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from simulator.core import Batch, Request
from simulator.prompt_trie import Node, PromptTrie


class _Allocation(NamedTuple):
    """A request's blocks: `cached` of its prompt's were in the trie, in `node` and those before it; `own` were not."""

    node: Node
    cached: int
    own: int


class PromptMemory:
    """`blocks` that can be handed out; see `simulator.memory.ContentMemory`. `beyond` more are never used."""

    by_residue = False
    coasts = True

    def __init__(self, blocks: int, block_size: int, beyond: int = 0) -> None:
        self._free = blocks
        self._block_size = block_size
        self._beyond = beyond
        self._trie = PromptTrie()
        self.allocated = 0
        """Blocks of all running requests together; what several start with counts for each."""
        self._allocations: dict[Request, _Allocation] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks that no running request holds, those of the trie included."""
        return self._beyond + self._free + self._trie.blocks - self._trie.held

    def allocate(self, request: Request, tokens: int) -> int | None:
        """Take blocks for `tokens` tokens; returns the prompt's tokens found, or None where memory is short.

        What was evicted for it stays evicted. At least one token of a prompt is left to be computed.
        """
        full = self._full(request)
        node, cached = self._trie.find(request.keys, full)
        self._trie.hold(node)
        own = -(-tokens // self._block_size) - cached
        if own > self._free:
            self._free += self._trie.evict(own - self._free)
        if own > self._free:
            self._trie.let_go(node)
            return None
        self._free -= own
        self.allocated += cached + own
        self._allocations[request] = _Allocation(node, cached, own)
        return min(cached * self._block_size, request.prompt_tokens - 1)

    def release(self, request: Request) -> None:
        """Let go of all blocks, if any; the prompt enters the trie."""
        allocation = self._allocations.pop(request, None)
        if allocation is None:
            return
        node, cached, own = allocation
        self._trie.let_go(node)
        self.allocated -= cached + own
        full = self._full(request)
        self._free += own
        if full and request.prompt_tokens > cached * self._block_size:
            self._free -= full - max(cached, self._trie.insert(request.keys, full))

    def serve(self, batch: Batch) -> int:
        """The admitted, who have their blocks, start with what was found. See `ContentMemory`."""
        found = 0
        for request, _ in batch.chunks:
            if request.state == Request.WAITING:
                cached = self._allocations[request].cached * self._block_size
                request.computed = request.cached_tokens = min(cached, request.prompt_tokens - 1)
                found += request.computed
        return found

    def serve_preempting(self, batch: Batch) -> int:
        """See `ContentMemory`; memory is reserved for a request's whole life, so nobody is ever preempted."""
        raise AssertionError(f"{batch.preempted} lost the blocks reserved for them")

    def coasted(self, steps: int) -> None:
        """Decodes take no blocks: theirs are reserved."""

    def held_blocks(self, running: Iterable[Request]) -> int:
        """See `ContentMemory`."""
        return sum(self._allocations[request].own for request in running) + self._trie.held

    def in_order(self, finishing: Sequence[Request]) -> Sequence[Request]:
        """As they stand in the batch."""
        return sorted(finishing, key=lambda request: request.admission)

    def picture(self, holders: Sequence[Request]) -> Hashable:
        """See `ContentMemory`; asked for only after a preemption, of which there are none."""
        raise AssertionError(f"one of {holders} lost the blocks reserved for it")

    def _full(self, request: Request) -> int:
        """Full blocks of its prompt whose contents are known."""
        return min(request.prompt_tokens // self._block_size, len(request.keys))
