"""vLLM's scheduler before version 1 (V0, without chunked prefill; Kwon et al., SOSP'23), as Sarathi-Serve's baseline
(`sarathi/core/scheduler/vllm_scheduler.py`).

Whole prompts go first: a step that admits any runs nothing else, so decodes pause for it. Otherwise all decode. A
prompt above the token budget is dropped when it reaches the head of the queue. Memory as in `policies/_memory.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge

from policies._memory import PromptBlocks, decode_step, prompts_alone, watermark
from simulator.core import Batch, Request, Surroundings, View
from simulator.promises import Promises


@dataclass(frozen=True)
class VllmV0(PromptBlocks):
    """Options by vLLM's names; the token budget is that of the prompts of a step, at most `max_model_len`."""

    max_num_seqs: Annotated[int, Ge(1)] = 256
    max_num_batched_tokens: Annotated[int, Ge(1)] | None = None
    max_model_len: Annotated[int, Ge(1)] | None = None

    @classmethod
    def defaults_for(cls, surroundings: Surroundings, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The model's longest sequence, and a budget for one prompt as long as that."""
        length = given.get("max_model_len") or surroundings.max_position_embeddings
        return {"max_num_batched_tokens": length, "max_model_len": length}

    @property
    def model_length(self) -> int | None:
        """Output is cut where prompt and output together reach it; Sarathi-Serve's copy has no such limit."""
        return self.max_model_len

    @property
    def promises(self) -> Promises:
        """Prompts go first, and yet decodes do not starve: once the memory is full no prompt is admitted."""
        limit = self._limit
        return Promises(
            prefill_budget=None if isinstance(limit, float) else limit,
            sequence_limit=self.max_num_seqs,
            work_conserving=True,
            starvation_free=True,
        )

    def rejects(self, request: Request, view: View) -> str | None:
        """Besides what can never fit: a prompt above the limit."""
        return self._too_long(request) or super().rejects(request, view)

    def plan(self, view: View) -> Batch | None:
        """Prompts if any is admitted or dropped, otherwise the decodes. O(admitted) unless a decode lacks a block."""
        if view.waiting:
            chunks, dropped = self._prompts(view)
            if chunks or dropped:
                return prompts_alone(view, chunks, dropped)
        return decode_step(view, kept_out=True)

    def _prompts(self, view: View) -> tuple[list[tuple[Request, int]], list[tuple[Request, str]]]:
        """Waiting prompts in order, up to the first that does not fit, and those dropped on the way."""
        chunks: list[tuple[Request, int]] = []
        dropped: list[tuple[Request, str]] = []
        budget, free, running = self._limit, view.free_blocks - watermark(view), len(view.running)
        for request in view.waiting:
            reason = self._too_long(request)
            if reason is not None:
                dropped.append((request, reason))
                continue
            free -= -(-request.known // view.block_size)
            if free < 0 or request.known > budget or running >= self.max_num_seqs:
                break
            chunks.append((request, request.known))
            budget -= request.known
            running += 1
        return chunks, dropped

    @property
    def _limit(self) -> float:
        """Tokens of the prompts of a step, and so of one prompt."""
        return min(self.max_num_batched_tokens or float("inf"), self.max_model_len or float("inf"))

    def _too_long(self, request: Request) -> str | None:
        if request.known > self._limit:
            return f"prompt of {request.known} tokens, at most {self._limit} fit into a step"
        return None
