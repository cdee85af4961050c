"""TensorRT-LLM's in-flight batching: the scheduler of its PyTorch backend, main at commit 002f3cc3, which is no release
(`tensorrt_llm/_torch/pyexecutor/scheduler/scheduler.py`: `PyCapacityScheduler`, `PyMicroBatchScheduler`).

Requests become *active* in order of arrival, up to `max_num_active_requests`, and keep their place until they finish. A
step has two stages. The capacity stage lets active requests through as far as KV memory goes: with GUARANTEED_NO_EVICT
to the last token that they may generate, so that nobody is ever paused; with STATIC_BATCH likewise, once nobody
generates any more; with MAX_UTILIZATION for this step alone, pausing who started last when that fails. The token stage
runs of those as many as `max_batch_size` and `max_num_tokens` allow, prompts whole or, with chunked context, in part.
Not modelled: the overlap scheduler, block reuse and two-step look-ahead; see docs/tensorrt-llm.md.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import accumulate, islice
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le

from policies._context_chunks import equal_progress, first_come
from simulator.core import DECODES_ONLY, DECODES_UNTIL_ARRIVAL, DECODES_UNTIL_FINISH, Batch, Request, View
from simulator.policy import PolicyBase, Surroundings
from simulator.promises import Promises


@dataclass(frozen=True)
class TensorrtLlm(PolicyBase):
    """Options by TensorRT-LLM's names, and its defaults (`tensorrt_llm/llmapi/llm_args.py`: `BaseLlmArgs`, where
    `enable_chunked_context` is called `enable_chunked_prefill`; `SchedulerConfig`; `KvCacheConfig`).

    Unset, `chunk_unit_size` is a block (`py_executor_creator.py`); `max_num_requests`, the most that the capacity stage
    lets through, and `max_num_active_requests` are `max_batch_size` for each pipeline stage
    (`create_py_executor_instance`). `max_tokens` is the output that clients declare, for a request that generates more
    what it generates.
    """

    capacity_scheduler_policy: Literal["GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"] = "GUARANTEED_NO_EVICT"
    enable_chunked_context: bool = False
    context_chunking_policy: Literal["FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"] = "FIRST_COME_FIRST_SERVED"
    chunk_unit_size: Annotated[int, Ge(1)] | None = None
    max_batch_size: Annotated[int, Ge(1)] = 2048
    max_num_tokens: Annotated[int, Ge(1)] = 8192
    max_num_requests: Annotated[int, Ge(1)] | None = None
    max_num_active_requests: Annotated[int, Ge(1)] | None = None
    max_seq_len: Annotated[int, Ge(1)] | None = None
    max_tokens: Annotated[int, Ge(1)] | None = None
    tokens_per_block: Annotated[int, Ge(1), Le(2**20)] = 32

    own_engine: ClassVar[str] = "TensorRT-LLM"

    @classmethod
    def defaults_for(cls, surroundings: Surroundings, _: Mapping[str, Any]) -> Mapping[str, Any]:
        """The model's longest sequence."""
        return {"max_seq_len": surroundings.max_position_embeddings}

    @property
    def block_size(self) -> int | None:
        """The engine's own."""
        return self.tokens_per_block

    @property
    def model_length(self) -> int | None:
        """Output is cut where prompt and output together reach it."""
        return self.max_seq_len

    @property
    def chunks_in_flight(self) -> bool:
        """Only a prompt's last chunk keeps the request out of later steps (`PyExecutor._add_inflight_ids`)."""
        return True

    @property
    def promises(self) -> Promises:
        """A long prompt can wait for ever where decodes may leave less than a chunk unit over."""
        spare = self.max_num_tokens - self.max_batch_size >= self._unit
        return Promises(
            token_budget=self.max_num_tokens,
            sequence_limit=self._most_through(1),
            never_preempts=not self._pauses,
            work_conserving=True,
            starvation_free=spare
            or not self.enable_chunked_context
            or self.capacity_scheduler_policy == "STATIC_BATCH",
        )

    def waiting_order(self, request: Request) -> int:
        """Arrival: who was paused goes back to its place."""
        return request.arrival_ns

    def reserve_tokens(self, request: Request) -> int:
        """The first chunk takes the blocks of the whole prompt."""
        return request.known

    def landing_tokens(self, request: Request) -> int:
        """What is claimed to its last token, unless others are paused for it."""
        return request.known if self._pauses else self._slots_to_completion(request)

    def rejects(self, request: Request, view: View) -> str | None:
        """What can never run. The engine lets such a request block all behind it, or stops with an assertion."""
        known, length = request.known, self.max_seq_len
        if length is not None and request.prompt_tokens >= length:
            return f"prompt of {request.prompt_tokens} tokens, max_seq_len {length} leaves no room for output"
        if known > self.max_num_tokens and not self.enable_chunked_context:
            return f"prompt of {known} tokens, max_num_tokens {self.max_num_tokens} without chunked context"
        if known > self.max_num_tokens < self._unit:
            return f"prompt of {known} tokens, max_num_tokens {self.max_num_tokens} is less than a chunk unit"
        blocks = -(-known // view.block_size) if self._pauses else self._blocks_to_completion(request, view)
        if blocks > view.total_blocks:
            return f"needs {blocks} KV-cache blocks at once, the cache has {view.total_blocks}"
        return None

    def plan(self, view: View) -> Batch | None:
        """The next step. O(prefilling + let through); O(n) in running requests where a request could start, and where
        blocks, places or tokens are short."""
        contexts = self._beside_decodes(view)
        if contexts is None:
            return self._walk(view)
        decoding = view.decodes.count
        if not contexts and not view.waiting and not view.prefilling:
            return DECODES_UNTIL_ARRIVAL if decoding else None
        chunks = self._chunks(contexts, self.max_num_tokens - decoding)
        if not chunks and not decoding:
            return None
        if not chunks:  # a prompt that got no tokens keeps its claim to the memory that decodes take
            return DECODES_ONLY if self._pauses and contexts else DECODES_UNTIL_FINISH
        limit = min(self._most_through(view.stages), self._most_active(view.stages))
        return Batch(chunks, holds=view.holds_after(chunks, limit))

    def let_through(self, view: View) -> tuple[list[Request], list[Request]]:
        """The capacity stage: whom it lets through, in order, and who is paused, in order. O(n log n)."""
        if self._pauses:
            return self._utilizing(view)
        generating = sorted((r for r in view.running if r.state != Request.PREFILLING), key=_place)
        return generating + self._guaranteed(view), []

    @property
    def _pauses(self) -> bool:
        return self.capacity_scheduler_policy == "MAX_UTILIZATION"

    @property
    def _unit(self) -> int:
        return self.chunk_unit_size or self.tokens_per_block

    def _most_through(self, stages: int) -> int:
        return self.max_num_requests or self.max_batch_size * stages

    def _most_active(self, stages: int) -> int:
        return self.max_num_active_requests or self.max_batch_size * stages

    def _blocks_to_completion(self, request: Request, view: View) -> int:
        """Blocks of the prompt and all output declared, one slot more than is ever used."""
        return -(-self._slots_to_completion(request) // view.block_size)

    def _slots_to_completion(self, request: Request) -> int:
        slots = request.prompt_tokens + max(request.max_tokens, self.max_tokens or 0)
        return min(slots, self.max_seq_len or slots)

    def _contexts(self, view: View) -> Iterator[Request]:
        """Active requests whose prompt is not complete, in order."""
        places = max(0, self._most_active(view.stages) - len(view.running))
        return merge(sorted(view.prefilling, key=_place), islice(view.waiting, places), key=_place)

    def _beside_decodes(self, view: View) -> list[Request] | None:
        """The prompts that get to the token stage's chunks if every decode runs; None if some might not."""
        places, left = self.max_batch_size - view.decodes.count, self.max_num_tokens - view.decodes.count
        if places < 0 or left < 0:
            return None
        contexts = self._beside_all(view) if self._pauses else self._guaranteed(view)
        if contexts is None:
            return None
        taken = contexts[:places]
        if not self.enable_chunked_context:
            taken = taken[: bisect_right(list(accumulate(request.known for request in taken)), left)]
        return None if self._pauses and len(taken) < len(contexts) else taken

    def _beside_all(self, view: View) -> list[Request] | None:
        """All prompts of active requests, if these can all run; None if not."""
        contexts, used, running = list[Request](), view.decode_blocks, len(view.running)
        limit = self._most_through(view.stages)
        for request in self._contexts(view):
            if request.state == Request.WAITING:
                used += self._needs(request, view)
                running += 1
                if running > limit or used > view.free_blocks:
                    return None
            contexts.append(request)
        return contexts if running <= limit and used <= view.free_blocks else None

    def _guaranteed(self, view: View) -> list[Request]:
        """Prompts in order, up to the first whose blocks to completion are not left over by all before it."""
        if self.capacity_scheduler_policy == "STATIC_BATCH" and view.decodes.count + view.elsewhere:
            return []
        places = self._most_through(view.stages) - (len(view.running) - len(view.prefilling))
        contexts: list[Request] = []
        free, claimed = view.free_blocks, False
        for request in islice(self._contexts(view), max(0, places)):
            free -= self._blocks_to_completion(request, view) - view.held_blocks(request)
            if request.state == Request.WAITING:  # whoever has started was let through before, and still is
                if free >= 0 and not claimed:
                    free, claimed = free - self._claims_of_generating(view), True
                if free < 0:
                    break
            contexts.append(request)
        return contexts

    def _claims_of_generating(self, view: View) -> int:
        """Blocks that they may still take; O(n)."""
        generating = [request for request in view.running if request.state != Request.PREFILLING]
        return sum(self._blocks_to_completion(request, view) - view.held_blocks(request) for request in generating)

    def _utilizing(self, view: View) -> tuple[list[Request], list[Request]]:
        """Active requests in order, each with the blocks of its next step; whoever started last makes room."""
        limit = self._most_through(view.stages)
        unstarted = islice(view.waiting, min(limit + 1, max(0, self._most_active(view.stages) - len(view.running))))
        active = list(merge(sorted(view.running, key=_place), unstarted, key=_place))
        pool, used, place = view.free_blocks, 0, 0
        fit: list[Request] = []
        paused: list[Request] = []
        while place < len(active):
            need = self._needs(active[place], view)
            if len(fit) < limit and used + need <= pool:
                fit.append(active[place])
                used += need
                place += 1
                continue
            while len(active) > place and not _can_go_on(active[-1], view):
                active.pop()
            if len(active) > place:
                paused.append(active.pop())
                pool += view.held_blocks(paused[-1])
        return fit, paused

    @staticmethod
    def _needs(request: Request, view: View) -> int:
        """Blocks that it takes in the next step; the first chunk of a prompt takes those of all others."""
        if request.state == Request.WAITING:
            return -(-request.known // view.block_size)
        return view.blocks_for(request, 1) if request.state == Request.DECODING and view.in_reach(request) else 0

    def _walk(self, view: View) -> Batch | None:
        """The token stage over all let through, one by one: whoever does not fit ends it, decodes behind as well."""
        fit, paused = self.let_through(view)
        left = self.max_num_tokens
        decodes: list[Request] = []
        contexts: list[Request] = []
        for request in fit:
            if len(decodes) + len(contexts) == self.max_batch_size:
                break
            context = request.state in (Request.WAITING, Request.PREFILLING)
            if not context and not _can_go_on(request, view):
                continue
            tokens = 1 if not context else 0 if self.enable_chunked_context else request.known
            if tokens > left:
                break
            left -= tokens
            (contexts if context else decodes).append(request)
        chunks = self._chunks(contexts, self.max_num_tokens - len(decodes))
        all_decode = len(decodes) == view.decodes.count
        if decodes and all_decode and len(fit) == len(decodes) and not paused:
            return DECODES_UNTIL_FINISH
        return Batch(chunks, None if all_decode else decodes, paused) if chunks or decodes or paused else None

    def _chunks(self, contexts: Sequence[Request], left: int) -> list[tuple[Request, int]]:
        """Prompts and how much of each; those that they complete come last, unless all do."""
        rests = [request.known - request.computed for request in contexts]
        if sum(rests) <= left:
            return list(zip(contexts, rests, strict=True))
        divide = first_come if self.context_chunking_policy == "FIRST_COME_FIRST_SERVED" else equal_progress
        sizes = divide(rests, left, self._unit, self.max_num_tokens)
        parts = list(zip(contexts, sizes, rests, strict=True))
        unfinished = [(request, size) for request, size, rest in parts if 0 < size < rest]
        return unfinished + [(request, size) for request, size, rest in parts if size == rest]


def _place(request: Request) -> tuple[int, int]:
    """Where it stands among the active."""
    return request.arrival_ns, request.index


def _can_go_on(request: Request, view: View) -> bool:
    """Whether it has started, and no step under way keeps it from getting its next tokens."""
    return request.state in (Request.PREFILLING, Request.DECODING) and view.in_reach(request)
