"""Chunked prefills that take turns with decodes: Sarathi-Serve without hybrid batches (OSDI'24, ablation of table 4;
`sarathi/core/scheduler/simple_chunking_scheduler.py`).

A step runs either up to `chunk_size` tokens of prompts (one in progress, otherwise newly admitted ones) or one token of
each decoding request. After a step of prefills it is the decodes' turn, after any other the prefills'; a turn for which
there is nothing to do passes on. Memory as in `policies/_memory.py`.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from policies._memory import PromptBlocks, decode_step, prompts_alone, watermark
from simulator.core import Batch, Request, View
from simulator.promises import Promises


@dataclass(frozen=True)
class SimpleChunking(PromptBlocks):
    """`chunk_size`: the tokens of a step of prefills."""

    chunk_size: Annotated[int, Ge(1)] = 512
    max_num_seqs: Annotated[int, Ge(1)] = 128

    @property
    def promises(self) -> Promises:
        """A step has either prompts or decodes."""
        return Promises(
            token_budget=max(self.chunk_size, self.max_num_seqs),
            prefill_budget=self.chunk_size,
            sequence_limit=self.max_num_seqs,
            work_conserving=True,
            starvation_free=True,
        )

    def plan(self, view: View) -> Batch | None:
        """The next turn. O(prefilling + admitted) unless a decode lacks a block.

        The engine answers a decode turn without decodes with an empty batch and is asked again at once. That takes no
        GPU time, so here the turn passes within the call.
        """
        if not view.last_prefills or not view.decodes.count:
            chunks = self._in_progress(view) or self._admitted(view)
            if chunks:
                return prompts_alone(view, chunks)
            return decode_step(view, kept_out=True)
        return decode_step(view)

    def _in_progress(self, view: View) -> list[tuple[Request, int]]:
        """Running prompts that are not complete, within the chunk size."""
        chunks: list[tuple[Request, int]] = []
        room = self.chunk_size
        for request in view.prefilling:
            tokens = min(request.known - request.computed, room)
            if tokens:
                chunks.append((request, tokens))
                room -= tokens
        return chunks

    def _admitted(self, view: View) -> list[tuple[Request, int]]:
        """Waiting prompts in order, up to the first for which there is no room."""
        chunks: list[tuple[Request, int]] = []
        room, free, running = self.chunk_size, view.free_blocks - watermark(view), len(view.running)
        for request in view.waiting:
            free -= -(-request.known // view.block_size)
            if not room or free < 0 or running >= self.max_num_seqs:
                break
            tokens = min(request.known, room)
            chunks.append((request, tokens))
            room -= tokens
            running += 1
        return chunks
