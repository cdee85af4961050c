"""vLLM's scheduler before version 1 (V0; Kwon et al., SOSP'23), as Sarathi-Serve's baseline
(`sarathi/core/scheduler/vllm_scheduler.py`), and with `enable_chunked_prefill` as in vLLM 0.6.3 itself.

Whole prompts go first: a step that admits any runs nothing else, so decodes pause for it. Otherwise all decode. A
prompt above the token budget is dropped when it reaches the head of the queue. Memory as in `policies/_memory.py`.

With chunked prefill (`vllm/core/scheduler.py`, `Scheduler._schedule_chunked_prefill`) a budget of tokens serves the
running queue, decodes before the prompt in progress, then waiting prompts. Each running request asks for a free block
(`BlockSpaceManagerV2.can_append_slots`), also if it takes none; while there is none, the last of the queue is
preempted, in the end the asking one itself (`_schedule_running`). Admission goes on in such a step, but not of its
victims, which wait in front of all others from the next one on. vLLM 0.6 turns it on by itself where `max_model_len`
exceeds 32,768 (`EngineArgs.create_engine_config`); here it is off unless it is asked for. Modelled: there are no
recorded decisions of vLLM 0.6.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge

from policies._memory import PromptBlocks, decode_step, prompts_alone, watermark
from simulator.core import Batch, Request, View
from simulator.policy import Surroundings
from simulator.promises import Promises

CHUNKED_BUDGET = 512


@dataclass(frozen=True)
class VllmV0(PromptBlocks):
    """Options by vLLM's names. `max_num_batched_tokens`: of the prompts of a step, at most `max_model_len`; with
    chunked prefill of the whole step, decodes included (None: 512)."""

    max_num_seqs: Annotated[int, Ge(1)] = 256
    max_num_batched_tokens: Annotated[int, Ge(1)] | None = None
    max_model_len: Annotated[int, Ge(1)] | None = None
    enable_chunked_prefill: bool = False

    def __post_init__(self) -> None:
        if self.enable_chunked_prefill and self._budget < self.max_num_seqs:
            raise ValueError(
                f"with chunked prefill max_num_batched_tokens ({self._budget}) must be at least max_num_seqs"
                f" ({self.max_num_seqs})"
            )

    @classmethod
    def defaults_for(cls, surroundings: Surroundings, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The model's longest sequence, and a budget for a prompt as long as that, or of 512 tokens for chunks
        (`SchedulerConfig.__init__`)."""
        length = given.get("max_model_len") or surroundings.max_position_embeddings
        budget = max(length, 2048) if isinstance(length, int) else None
        if given.get("enable_chunked_prefill") is True:
            budget = CHUNKED_BUDGET
        return {"max_num_batched_tokens": budget, "max_model_len": length}

    @property
    def model_length(self) -> int | None:
        """Output is cut where prompt and output together reach it; Sarathi-Serve's copy has no such limit."""
        return self.max_model_len

    @property
    def promises(self) -> Promises:
        """Prompts go first, and yet decodes do not starve: once the memory is full no prompt is admitted."""
        limit = self._limit
        return Promises(
            token_budget=self._budget if self.enable_chunked_prefill else None,
            prefill_budget=None if self.enable_chunked_prefill or isinstance(limit, float) else limit,
            sequence_limit=self.max_num_seqs,
            work_conserving=True,
            starvation_free=True,
        )

    def rejects(self, request: Request, view: View) -> str | None:
        """Besides what can never fit: a prompt above the limit, or one in chunks that preempts itself for ever."""
        reason = self._too_long(request) or super().rejects(request, view)
        if reason is not None or not self.enable_chunked_prefill or request.known <= self._budget:
            return reason
        blocks, more = -(-request.known // view.block_size), request.target_tokens - request.generated > 1
        if blocks == view.total_blocks and (more or self._asks(request, view)):
            return f"takes all {blocks} KV-cache blocks and would ask for another before it is done"
        return None

    def plan(self, view: View) -> Batch | None:
        """Prompts if any is admitted or dropped, otherwise the decodes; with chunked prefill both. O(prefilling +
        admitted) unless a request lacks a block."""
        if self.enable_chunked_prefill:
            return self._mixed(view)
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

    def _mixed(self, view: View) -> Batch | None:
        """Decodes and chunks of prompts within the budget."""
        budget, free = self._budget - view.decodes.count, view.free_blocks - view.decode_blocks
        if free <= 0 and (view.decodes.count or view.prefilling):
            return self._short_of_memory(view)
        chunks: list[tuple[Request, int]] = []
        for request in view.prefilling:
            tokens = min(request.known - request.computed, budget)
            if not tokens:
                break
            chunks.append((request, tokens))
            budget -= tokens
        self._admit(view, chunks, budget, free, len(view.running))
        if chunks:
            return Batch(chunks, holds=view.holds_after(chunks, self.max_num_seqs))
        return decode_step(view, kept_out=not view.prefilling)

    def _short_of_memory(self, view: View) -> Batch | None:
        """The running queue one by one: who asks in vain for a free block has the last of it preempted. O(running).

        In a pipeline the last one left waits for those out of reach, which may give it their blocks later.
        """
        queue = deque([*view.decoding_requests(), *view.prefilling])
        budget, free = self._budget, view.free_blocks
        decodes: list[Request] = []
        chunks: list[tuple[Request, int]] = []
        preempted: list[Request] = []
        while queue:
            request = queue.popleft()
            decoding = request.state == Request.DECODING
            tokens = 1 if decoding else min(request.known - request.computed, budget)
            if not tokens:
                break
            while free < self._asks(request, view):
                if not queue and view.elsewhere:
                    break
                victim = queue.pop() if queue else request
                preempted.append(victim)
                free += view.held_blocks(victim)
                if victim is request:
                    break
            else:
                budget -= tokens
                free -= view.blocks_for(request, tokens)
                if decoding:
                    decodes.append(request)
                else:
                    chunks.append((request, tokens))
        self._admit(view, chunks, budget, free, len(view.running) - len(preempted))
        return Batch(chunks, decodes, preempted) if chunks or decodes or preempted else None

    def _admit(self, view: View, chunks: list[tuple[Request, int]], budget: int, free: int, running: int) -> None:
        """Waiting prompts in order, up to the first that does not fit; the last may be cut."""
        for request in view.waiting:
            free -= -(-request.known // view.block_size)
            if not budget or free < watermark(view) or running >= self.max_num_seqs:
                return
            tokens = min(request.known, budget)
            chunks.append((request, tokens))
            budget -= tokens
            running += 1

    @staticmethod
    def _asks(request: Request, view: View) -> bool:
        """Whether a running request has to see a free block: unless its whole prompt fills the last of its own."""
        return request.state == Request.DECODING or request.known % view.block_size > 0

    @property
    def _budget(self) -> int:
        """Tokens of a step with chunked prefill."""
        return self.max_num_batched_tokens or CHUNKED_BUDGET

    @property
    def _limit(self) -> float:
        """Tokens of the prompts of a step, and so of one prompt; with chunked prefill of one prompt alone."""
        if self.enable_chunked_prefill:
            return self.max_model_len or float("inf")
        return min(self.max_num_batched_tokens or float("inf"), self.max_model_len or float("inf"))

    def _too_long(self, request: Request) -> str | None:
        if request.known > self._limit:
            if self.enable_chunked_prefill:
                return f"prompt of {request.known} tokens, max_model_len {self.max_model_len}"
            return f"prompt of {request.known} tokens, at most {self._limit} fit into a step"
        return None
