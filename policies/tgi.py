"""The batching of text-generation-inference, version 3 (`backends/v3/src/backend.rs`, `batching_task`, and `queue.rs`,
`State::next_batch`, at db931fcf; chunks: `server/text_generation_server/models/flash_causal_lm.py`).

A request joins with KV blocks for its whole life, first come, first served; nobody is preempted. Without prefill
chunking, decodes pause while new prompts are computed in a forward of their own, and fewer of those than
`waiting_served_ratio` of the batch wait until `max_waiting_tokens` decodes have passed. With chunking both count for
nothing: prompts ride along with the decodes as far as the prefill budget goes. After a forward in which requests joined
a running batch the next one runs without a look at the queue.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Le

from simulator.core import DECODES_ONLY, DECODES_UNTIL_ARRIVAL, DECODES_UNTIL_FINISH, Batch, Request, View
from simulator.policy import Planner, PolicyBase, Remembering, Surroundings
from simulator.promises import Promises
from simulator.prompt_memory import PromptMemory

Chunks = list[tuple[Request, int]]


@dataclass(frozen=True)
class Tgi(PolicyBase):
    """Options by the names of TGI's launcher and environment; a client declares `max_new_tokens`.

    `max_batch_total_tokens`: None = what the KV cache holds. `max_new_tokens`: what requests declare of which the trace
    does not say it; None = the output they get. `block_size`: 1 with FlashInfer. `speculate`: slots that each request
    reserves besides; drafts are not modelled. `max_concurrent_requests`: None = no request is turned away.
    """

    waiting_served_ratio: Annotated[float, Ge(0), Le(1e6)] = 0.3
    max_waiting_tokens: Annotated[int, Ge(0)] = 20
    max_batch_prefill_tokens: Annotated[int, Ge(1)] = 4096
    max_batch_total_tokens: Annotated[int, Ge(1)] | None = None
    max_batch_size: Annotated[int, Ge(1)] | None = None
    max_concurrent_requests: Annotated[int, Ge(1)] | None = None
    prefill_chunking: bool = True
    prefix_caching: bool = True
    block_size: Annotated[int, Ge(1), Le(2**20)] | None = 1
    max_new_tokens: Annotated[int, Ge(1)] | None = None
    speculate: Annotated[int, Ge(0)] = 0

    null_blocks: ClassVar[int] = 1  # block 0 is for health checks
    on_pipelines: ClassVar[bool] = False
    own_engine: ClassVar[str] = "TGI"

    @classmethod
    def defaults_for(cls, surroundings: Surroundings, _: Mapping[str, Any]) -> Mapping[str, Any]:
        """The launcher's prefill budget for a GPU that it does not know (`launcher/src/main.rs`, `main`)."""
        return {"max_batch_prefill_tokens": min(4096, surroundings.max_position_embeddings)}

    @property
    def promises(self) -> Promises:
        """First come, first served, and memory for all of a request before it begins."""
        takes_all = self.max_concurrent_requests is None and not self.prefix_caching
        return Promises(
            sequence_limit=None if self.prefill_chunking else self.max_batch_size,
            never_preempts=True,
            work_conserving=True,
            starvation_free=takes_all,
            serves_all=takes_all,
        )

    def reserve_tokens(self, request: Request) -> int:
        """Slots for the prompt and all tokens declared; the last one never enters the cache."""
        declared = request.max_tokens
        if self.max_new_tokens is not None and declared == request.output_tokens:
            declared = max(declared, self.max_new_tokens)
        return request.prompt_tokens + declared + self.speculate - 1

    def total_tokens(self, view: View) -> int:
        """Tokens of the KV cache, its reserved block included, as far as the option lets it be used."""
        held = (view.total_blocks + self.null_blocks) * view.block_size
        return held if self.max_batch_total_tokens is None else min(held, self.max_batch_total_tokens)

    def usable_blocks(self, view: View) -> int:
        """Blocks that can be handed out."""
        return max(0, self.total_tokens(view) // view.block_size - self.null_blocks)

    def rejects(self, request: Request, view: View) -> str | None:
        """What can never fit, and what comes while too many are there."""
        limit, budget = self.max_concurrent_requests, _round_up(self.max_batch_prefill_tokens, view.block_size)
        if limit is not None and len(view.running) + len(view.waiting) >= limit:
            return f"max_concurrent_requests {limit} were there already"
        if not self.prefill_chunking and request.prompt_tokens > budget:
            return f"prompt of {request.prompt_tokens} tokens, max_batch_prefill_tokens {self.max_batch_prefill_tokens}"
        needed, usable = -(-self.reserve_tokens(request) // view.block_size), self.usable_blocks(view)
        return f"needs {needed} KV-cache blocks at once, {usable} can be used" if needed > usable else None

    def start(self, view: View, *, contents: bool) -> Planner:
        """Its batching task; prompts are found again only where their contents are known."""
        blocks, memory = self.usable_blocks(view), None
        if self.prefix_caching and contents:
            memory = PromptMemory(blocks, view.block_size, beyond=view.total_blocks - blocks)
        return _BatchingTask(self, view, memory)


class _BatchingTask(Remembering):
    """The batching loop between two forwards."""

    def __init__(self, policy: Tgi, view: View, memory: PromptMemory | None) -> None:
        self.policy = policy
        self.memory: PromptMemory | None = memory
        self._ratio = np.float32(policy.waiting_served_ratio)
        self._total_tokens = policy.total_tokens(view)
        self._unusable = view.total_blocks - policy.usable_blocks(view)
        self._asleep, self._woken_again = True, False
        self._rows = 0
        """Of the last forward, those that it finished included."""
        self._joined = False
        """Whether the last forward planned let requests join a running batch."""
        self._clock = 0
        """Decode clock after the last forward in which requests joined."""

    def arrived(self, _: Request) -> None:
        """An arrival wakes the task, or stops it from falling asleep once."""
        if self._asleep:
            self._asleep = False
        else:
            self._woken_again = True

    def plan(self, view: View) -> Batch | None:
        """The next forward. O(prompts in progress + requests looked at)."""
        if not view.running:
            return self._begin(view)
        chunks = self._next_chunks(view) if view.prefilling else []
        decode_next = self._joined and view.decodes.clock == self._clock
        self._joined = False
        if not view.waiting:
            return self._decode(view, chunks, DECODES_UNTIL_ARRIVAL)
        if decode_next:
            return self._decode(view, chunks, DECODES_ONLY)
        joining = self._look_up(view, chunks)
        if not joining:
            return self._decode(view, chunks, DECODES_ONLY if joining is None else DECODES_UNTIL_FINISH)
        decoding = self.policy.prefill_chunking and view.decoding > 0
        self._note_prefill(view, len(view.running) + len(joining), decoding)
        self._joined = True
        chunks += joining
        return Batch(chunks, None if self.policy.prefill_chunking else (), holds=_after(view, chunks))

    def _begin(self, view: View) -> Batch | None:
        """A batch where none runs. One that was woken meanwhile looks twice."""
        if self._asleep:
            return None
        self._joined = False
        policy = self.policy
        while True:
            joining = self.next_batch(
                view, 0, policy.max_batch_size, policy.max_batch_prefill_tokens, self._total_tokens
            )
            if joining or not self._woken_again:
                break
            self._woken_again = False
        if not joining:  # in a prefill pool memory may yet come back from requests that have left
            self._asleep = view.free_blocks == view.total_blocks
            return None
        self._note_prefill(view, len(joining), decoding=False)
        return Batch(joining, (), holds=_after(view, joining))

    def _note_prefill(self, view: View, rows: int, decoding: bool) -> None:
        self._rows, self._clock = rows, view.decodes.clock + decoding

    def _decode(self, view: View, chunks: Chunks, decodes: Batch) -> Batch | None:
        """A forward of all rows, with chunks of the prompts in progress."""
        self._rows = len(view.running)
        if chunks:
            return Batch(chunks, holds=_after(view, chunks))
        return decodes if view.decoding else None

    def _next_chunks(self, view: View) -> Chunks:
        """The server has shared its prefill budget out after the last forward, the newest row first."""
        budget = self.policy.max_batch_prefill_tokens - (self._rows - 1)
        chunks: Chunks = []
        for request in reversed(view.prefilling):
            tokens = max(1, min(request.known - request.computed, budget))
            budget -= tokens
            chunks.append((request, tokens))
        return chunks[::-1]

    def _look_up(self, view: View, chunks: Chunks) -> Chunks | None:
        """Who joins the running batch. None: nobody yet, but decodes alone may change that."""
        policy, rows = self.policy, len(view.running)
        held = 0 if self.memory is None else self.memory.allocated  # without shared blocks never all
        token_budget = self._total_tokens - held * view.block_size
        if policy.prefill_chunking:
            needed = rows - len(chunks) + sum(tokens for _, tokens in chunks)
            return self.next_batch(view, 0, None, policy.max_batch_prefill_tokens - needed, token_budget)
        waited = 1 + view.decodes.clock - self._clock
        at_least = 0 if waited >= policy.max_waiting_tokens else int(np.float32(rows) * self._ratio)
        at_most = None if policy.max_batch_size is None else max(0, policy.max_batch_size - rows)
        return self.next_batch(view, at_least, at_most, policy.max_batch_prefill_tokens, token_budget)

    def next_batch(
        self, view: View, at_least: int, at_most: int | None, prefill_budget: int, token_budget: int
    ) -> Chunks | None:
        """Waiting requests in order while memory and budget last (`queue.rs`); empty if the first does not fit.

        None if some would fit, or might, but fewer than `at_least`. O(requests looked at).
        """
        if not view.waiting or at_most == 0 or prefill_budget <= 0 or token_budget <= 0:
            return []
        if len(view.waiting) < at_least:
            return None
        memory, free = self.memory, view.free_blocks - self._unusable
        left = _round_up(prefill_budget, view.block_size)
        joining: Chunks = []
        for request in view.waiting:
            hit: int | None = 0
            if memory is not None:
                hit = memory.allocate(request, self.policy.reserve_tokens(request))
            elif (blocks := self._blocks(view, request)) <= free:
                free -= blocks
            else:
                hit = None
            if hit is None:
                break
            tokens = request.prompt_tokens - hit
            if tokens > left:
                if self.policy.prefill_chunking and left > 0:
                    joining.append((request, left))
                elif memory is not None:
                    memory.release(request)
                break
            left -= tokens
            joining.append((request, tokens))
            if len(joining) == at_most:
                break
        if len(joining) >= at_least:
            return joining
        self._put_back(joining)
        return None if joining else []

    def _put_back(self, joining: Chunks) -> None:
        for request, _ in reversed(joining if self.memory is not None else ()):
            assert self.memory is not None
            self.memory.release(request)

    def _blocks(self, view: View, request: Request) -> int:
        return -(-self.policy.reserve_tokens(request) // view.block_size)


def _round_up(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size) * block_size


def _after(view: View, chunks: Chunks) -> int:
    """Whether only decodes follow these chunks until somebody arrives."""
    only_decodes = view.completes_prompts(chunks) and view.admits_all(chunks)
    return Batch.UNTIL_ARRIVAL if only_decodes else Batch.ONCE
