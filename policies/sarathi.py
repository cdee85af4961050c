"""Chunked prefill with decode-maximal batching: SARATHI (Agrawal et al., arXiv 2308.16369, section 4) and, with
`max_prefills_per_batch: 0`, the stall-free batching of Sarathi-Serve (OSDI'24, Algorithm 3; `SarathiScheduler`).

Every iteration runs all decodes and fills the rest with prompt chunks. SARATHI takes one chunk of a fixed size, cut so
that chunk and decodes together fill whole matrix tiles; Sarathi-Serve spends a token budget on any number of prompts.
Memory as in `policies/_memory.py`: the whole prompt's blocks at admission, 1 % of the pool kept free then, one more
block when a decode fills its last, the last running request preempted when none is left. Unlike in Sarathi-Serve a step
that preempts admits nobody.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from policies._memory import PromptBlocks, decode_step, make_room, watermark
from simulator.core import Batch, Request, View
from simulator.promises import Promises


@dataclass(frozen=True)
class Sarathi(PromptBlocks):
    """`chunk_size`: the prefill chunk, or with `max_prefills_per_batch: 0` the tokens of a step, decodes included."""

    chunk_size: Annotated[int, Ge(1)] = 512
    max_num_seqs: Annotated[int, Ge(1)] = 128
    tile_size: Annotated[int, Ge(0)] = 128
    max_prefills_per_batch: Annotated[int, Ge(0)] = 1

    @property
    def promises(self) -> Promises:
        """Decodes always run, so where they share the budget with chunks they alone may exceed it."""
        budget = max(self.chunk_size, self.max_num_seqs)
        return Promises(
            token_budget=self.chunk_size + self.max_num_seqs if self.max_prefills_per_batch else budget,
            prefill_budget=self.chunk_size,
            max_prefills=self.max_prefills_per_batch or None,
            sequence_limit=self.max_num_seqs,
            work_conserving=True,
            starvation_free=True,
        )

    def plan(self, view: View) -> Batch | None:
        """The next iteration. O(prefilling + admitted) unless a decode lacks a block."""
        if not view.prefilling and not view.waiting:
            return decode_step(view)
        preempted: list[Request] = []
        decodes: list[Request] | None = None
        decoding, free = view.decodes.count, view.free_blocks - view.decode_blocks
        if decoding and free <= 0:
            decodes, preempted, free = make_room(view)
            decoding = len(decodes)
        chunks = self._chunks(view, decoding, free, preempted)
        if chunks and decodes is None:
            return Batch(chunks, holds=view.holds_after(chunks, self.max_num_seqs))
        if chunks or decodes is not None:
            return Batch(chunks, decodes, preempted)
        return decode_step(view, kept_out=not view.prefilling)

    def _chunks(self, view: View, decoding: int, free: int, preempted: list[Request]) -> list[tuple[Request, int]]:
        """Prompts in progress first, then admissions, within the chunk size and the number of prefills."""
        chunks: list[tuple[Request, int]] = []
        spent = 0
        for request in view.prefilling:
            if request in preempted:
                continue
            tokens = self._chunk(request.known - request.computed, decoding, spent, len(chunks))
            if tokens > 0:
                chunks.append((request, tokens))
                spent += tokens
        running = len(view.running) - (view.elsewhere if self.max_prefills_per_batch else 0)
        for request in view.waiting if not preempted else ():
            blocks = -(-request.known // view.block_size)
            if running >= self.max_num_seqs or free - blocks < watermark(view):
                break
            tokens = self._chunk(request.known, decoding, spent, len(chunks))
            if tokens <= 0:
                break
            chunks.append((request, tokens))
            spent += tokens
            free -= blocks
            running += 1
        return chunks

    def _chunk(self, left: int, decoding: int, spent: int, prefills: int) -> int:
        """Tokens of the next chunk; 0 = no room for one."""
        if self.max_prefills_per_batch and prefills >= self.max_prefills_per_batch:
            return 0
        if self.max_prefills_per_batch == 0:
            room = self.chunk_size - decoding - spent
        else:
            room = self.chunk_size - spent
        if left <= room or not self.max_prefills_per_batch or not self.tile_size:
            return min(left, room)
        aligned = (room + decoding) // self.tile_size * self.tile_size - decoding
        return aligned if aligned > 0 else room
