"""vLLM V1's token-budget scheduler, as of version 0.23 (`vllm/v1/core/sched/scheduler.py`, `Scheduler.schedule`).

There is no prefill or decode phase: each step spends `max_num_batched_tokens` on bringing requests' computed tokens up
to their known ones, running requests first in order of admission, then waiting ones while budget, memory and
`max_num_seqs` last. Memory is taken for the tokens of the step alone; when it runs out the last running request (with
`scheduling_policy: priority` the least urgent) is preempted and later recomputed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from simulator.core import DECODES_ONLY, DECODES_UNTIL_ARRIVAL, DECODES_UNTIL_FINISH, Batch, Request, View
from simulator.policy import PolicyBase, Surroundings
from simulator.prefix import PrefixBlocks, Trial
from simulator.promises import Promises

GIB = 2**30
_NO_BLOCKS: Sequence[int] = ()


@dataclass(frozen=True)
class Vllm(PolicyBase):
    """Options by vLLM's names; unset ones take the defaults of its API server for the table's GPU."""

    max_num_batched_tokens: Annotated[int, Ge(1)] = 8192
    max_num_seqs: Annotated[int, Ge(1)] = 1024
    long_prefill_token_threshold: Annotated[int, Ge(0)] = 0
    enable_chunked_prefill: bool = True
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    enable_prefix_caching: bool = True
    scheduler_reserve_full_isl: bool = True
    async_scheduling: bool = True
    max_model_len: Annotated[int, Ge(1)] | None = None

    null_blocks: ClassVar[int] = 1  # block 0 stands for "no block" in block tables

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs"
                f" ({self.max_num_seqs})"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < (self.max_model_len or 0):
            raise ValueError(
                f"without chunked prefill max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least"
                f" max_model_len ({self.max_model_len})"
            )

    @classmethod
    def defaults_for(cls, surroundings: Surroundings, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """API-server defaults (`EngineArgs._set_default_max_num_seqs_and_batched_tokens_args`)."""
        large = surroundings.gpu_memory_bytes >= 70 * GIB and "a100" not in surroundings.gpu_name.lower()
        length = given.get("max_model_len") or surroundings.max_position_embeddings
        budget = 8192 if large else 2048
        if given.get("enable_chunked_prefill") is False and isinstance(length, int):
            budget = max(budget, length)
        budget = given.get("max_num_batched_tokens", budget)
        sequences = 1024 if large else 256
        if isinstance(budget, int):
            sequences = min(sequences, budget)
        return {"max_num_batched_tokens": budget, "max_num_seqs": sequences, "max_model_len": length}

    @property
    def waiting_order(self) -> Callable[[Request], Any] | None:  # type: ignore[override]
        """Most urgent first in priority mode; lower numbers are more urgent."""
        return _urgency if self.scheduling_policy == "priority" else None

    @property
    def caches_prefixes(self) -> bool:
        """Automatic prefix caching."""
        return self.enable_prefix_caching

    @property
    def steps_in_flight(self) -> int:
        """Asynchronous scheduling plans a step while the one before it runs."""
        return 2 if self.async_scheduling else 1

    @property
    def chunks_in_flight(self) -> bool:
        """A prompt's computed tokens count as soon as they are scheduled."""
        return True

    @property
    def model_length(self) -> int | None:
        """Generation ends when prompt and output together reach it."""
        return self.max_model_len

    @property
    def promises(self) -> Promises:
        """Both limits hold in every step; first come, first served unless there are priorities."""
        return Promises(
            token_budget=self.max_num_batched_tokens,
            sequence_limit=self.max_num_seqs,
            work_conserving=True,
            starvation_free=self.scheduling_policy == "fcfs",
        )

    def rejects(self, request: Request, view: View) -> str | None:
        """What can never fit, and a prompt that leaves no room for an output token."""
        length, prompt = self.max_model_len, request.prompt_tokens
        if (length is None or prompt < length) and -(-prompt // view.block_size) <= view.total_blocks:
            return None  # the usual answer, soon
        if prompt == length:
            return f"prompt of {prompt} tokens, as long as max_model_len, leaves no room for output"
        return super().rejects(request, view)

    def plan(self, view: View) -> Batch | None:
        """The next step. O(prefilling + admitted) unless memory or budget is short of what the decodes need."""
        decoding = view.decodes.count
        budget = self.max_num_batched_tokens - decoding
        free = view.free_blocks - view.decode_blocks
        if budget < 0 or free < 0:
            return self._walk(view)
        if not view.prefilling and not view.waiting:
            return DECODES_UNTIL_ARRIVAL if decoding else None
        chunks: list[tuple[Request, int]] = []
        for request in view.prefilling:
            tokens = self._wanted(request.known - request.computed, request.computed)
            if tokens > budget:
                if request is not next(reversed(view.running)):
                    return self._walk(view)  # whoever stands behind it gets nothing
                tokens = budget
            if tokens <= 0:
                continue
            held = -(-request.computed // view.block_size)
            blocks = -(-(request.computed + tokens) // view.block_size) - held
            if blocks > free:
                return self._walk(view)
            free -= blocks
            budget -= tokens
            chunks.append((request, tokens))
        if budget > 0 and view.waiting:
            self._admit(view, chunks, budget, free, len(view.running))
        if chunks:
            return Batch(chunks, holds=view.holds_after(chunks, self.max_num_seqs))
        if not decoding:
            return None
        return DECODES_ONLY if view.prefilling else DECODES_UNTIL_FINISH

    def _wanted(self, tokens: int, computed: int) -> int:
        if 0 < self.long_prefill_token_threshold < tokens:
            tokens = self.long_prefill_token_threshold
        if self.max_model_len is not None:
            tokens = min(tokens, self.max_model_len - 1 - computed)
        return tokens

    def _admit(self, view: View, chunks: list[tuple[Request, int]], budget: int, free: int, running: int) -> None:
        """Waiting requests in order, up to the first that does not fit."""
        trial = None if view.prefixes is None else self._running_step(view, view.prefixes, chunks)
        block_size, threshold = view.block_size, self.long_prefill_token_threshold
        hit_blocks, unheld = 0, _NO_BLOCKS
        for request in view.waiting:
            if budget <= 0 or running >= self.max_num_seqs:
                return
            if trial is not None:
                free = trial.free
                hit_blocks, unheld = trial.hits(request)
            known, hit = request.known, hit_blocks * block_size
            tokens = known - hit
            if 0 < threshold < tokens:
                tokens = threshold
            if tokens > budget:
                if not self.enable_chunked_prefill:
                    return
                tokens = budget
            others = len(unheld) - hit_blocks
            if self.scheduler_reserve_full_isl and -(-known // block_size) + others > free:
                return
            blocks = -(-(hit + tokens) // block_size) + others
            if blocks > free:
                return
            if trial is not None:
                trial.take(unheld)
                trial.allocate(blocks - len(unheld))
                trial.enter(request.keys[hit_blocks : (hit + tokens) // block_size])
            chunks.append((request, tokens))
            budget -= tokens
            free -= blocks
            running += 1

    def _running_step(self, view: View, pool: PrefixBlocks, chunks: list[tuple[Request, int]]) -> Trial:
        """The pool as it will be when the running requests have got their blocks of this step."""
        trial, size, clock = Trial(pool), view.block_size, view.decodes.clock
        trial.allocate(view.decode_blocks)
        for request in view.decodes.groups[-(clock + 1) % size] if view.decodes.groups else ():
            filled = (request.birth + clock + 1) // size
            trial.enter(request.keys[filled - 1 : filled])
        for request, tokens in chunks:
            trial.allocate(view.blocks_for(request, tokens))
            trial.enter(request.keys[request.computed // size : (request.computed + tokens) // size])
        return trial

    def _walk(self, view: View) -> Batch | None:
        """The running list one by one, as vLLM does it: budget may end before the list, memory may need victims.

        O(n) in running requests (times the number of victims in priority mode).
        """
        queue = [request for request in view.running if request.state != Request.FINISHING]
        budget, free = self.max_num_batched_tokens, view.free_blocks
        scheduled: dict[Request, tuple[int, int]] = {}
        preempted: list[Request] = []
        undone: list[tuple[Request, int]] = []
        held = list(view.running)
        pool, released = view.prefixes, dict[int, int]()
        place = 0
        while place < len(queue) and budget > 0:
            request = queue[place]
            place += 1
            context = view.context_tokens(request)
            decoding = request.state == Request.DECODING
            if decoding and not view.in_reach(request):
                continue
            wanted = 1 if decoding else request.known - request.computed
            tokens = min(self._wanted(wanted, context), budget)
            if tokens <= 0:
                continue
            blocks = view.blocks_for(request, tokens)
            while blocks > free:
                victim = self._victim(held)
                held.remove(victim)
                preempted.append(victim)
                free += view.held_blocks(victim) if pool is None else pool.freed_by(victim, released)
                if victim in scheduled:
                    returned, taken = scheduled.pop(victim)
                    undone.append((victim, returned))
                    budget += returned
                    free += taken
                if victim in queue:
                    if queue.index(victim) < place:
                        place -= 1
                    queue.remove(victim)
                if victim is request:
                    break
            else:
                scheduled[request] = (tokens, blocks)
                budget -= tokens
                free -= blocks
                continue
            break
        decodes = [r for r in scheduled if r.state == Request.DECODING]
        chunks = [(r, tokens) for r, (tokens, _) in scheduled.items() if r.state != Request.DECODING]
        if not preempted and budget > 0 and view.waiting:
            self._admit(view, chunks, budget, free, len(view.running))
        if not scheduled and not chunks and not preempted:
            return None
        return Batch(chunks, decodes, preempted, undone)

    def _victim(self, held: list[Request]) -> Request:
        """FCFS: the last admitted; priority: the least urgent, the first in the list among equals."""
        if self.scheduling_policy == "fcfs":
            return held[-1]
        return max(held, key=_urgency)


def _urgency(request: Request) -> tuple[int, int]:
    return request.priority, request.arrival_ns
