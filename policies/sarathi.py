"""Chunked prefill with decode-maximal batching: SARATHI (Agrawal et al., arXiv 2308.16369, section 4) and, with
`max_prefills_per_batch: 0`, the stall-free batching of Sarathi-Serve (OSDI'24, Algorithm 3; `SarathiScheduler`).

Every iteration runs all decodes and fills the rest with prompt chunks. SARATHI takes one chunk of a fixed size, cut so
that chunk and decodes together fill whole matrix tiles; Sarathi-Serve spends a token budget on any number of prompts.
Memory as in Sarathi-Serve's block manager: the whole prompt's blocks at admission, 1 % of the pool kept free at
admission, one more block when a decode fills its last, the last running request preempted when none is left. Unlike
there, a preempted request keeps its generated tokens (vLLM's recompute) and a step that preempts admits nobody.
"""

from collections import deque
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from simulator.core import DECODES_ONLY, Batch, PolicyBase, Request, View
from simulator.promises import Promises


@dataclass(frozen=True)
class Sarathi(PolicyBase):
    """`chunk_size`: the prefill chunk, or with `max_prefills_per_batch: 0` the tokens of a step, decodes included."""

    chunk_size: Annotated[int, Ge(1)] = 512
    max_num_seqs: Annotated[int, Ge(1)] = 128
    tile_size: Annotated[int, Ge(0)] = 128
    max_prefills_per_batch: Annotated[int, Ge(0)] = 1

    def reserve_tokens(self, request: Request) -> int:
        """The whole prompt (and what a preempted request had generated)."""
        return request.known

    def rejects(self, request: Request, view: View) -> str | None:
        """A prompt that leaves less than the watermark free can never be admitted."""
        blocks, usable = -(-request.known // view.block_size), view.total_blocks - self._watermark(view)
        if blocks > usable:
            return f"prompt needs {blocks} KV-cache blocks at once, {usable} of {view.total_blocks} can be admitted"
        return None

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
        preempted: list[Request] = []
        decodes: list[Request] | None = None
        decoding, free = view.decodes.count, view.free_blocks
        if decoding and free <= view.decode_blocks:
            # A decode asks for a free block even if it would not take one, so who comes when matters.
            decodes, preempted, free = self._make_room(view)
            decoding = len(decodes)
        else:
            free -= view.decode_blocks
        if decoding and not view.prefilling and not view.waiting and not preempted:
            return DECODES_ONLY if decodes is None else Batch((), decodes)
        chunks = self._chunks(view, decoding, free, preempted)
        if not decoding and not chunks and not preempted:
            return None
        return Batch(chunks, decodes, preempted)

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
        running = len(view.running)
        for request in view.waiting if not preempted else ():
            blocks = -(-request.known // view.block_size)
            if running >= self.max_num_seqs or free - blocks < self._watermark(view):
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

    def _make_room(self, view: View) -> tuple[list[Request], list[Request], int]:
        """Decodes in order of arrival, each with a free block in sight; the last running is preempted for it."""
        queue = deque(sorted(view.running, key=lambda request: (request.arrival_ns, request.index)))
        free = view.free_blocks
        decodes: list[Request] = []
        preempted: list[Request] = []
        while queue:
            request = queue.popleft()
            if request.state != Request.DECODING:
                continue
            while free <= 0:
                victim = queue.pop() if queue else request
                preempted.append(victim)
                free += view.held_blocks(victim)
                if victim is request:
                    break
            else:
                free -= view.blocks_for(request, 1)
                decodes.append(request)
        return decodes, preempted, free

    @staticmethod
    def _watermark(view: View) -> int:
        return view.total_blocks // 100
