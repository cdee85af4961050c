"""The requests in an engine: arriving, admitted, preempted, decoding and ended, and the KV memory that they hold."""

from collections.abc import Sequence

from simulator.core import DECODING, ENDED, FINISHING, PREFILLING, WAITING, Request, View
from simulator.decodes import Decodes
from simulator.errors import PolicyError
from simulator.livelock import Livelock
from simulator.memory import ContentMemory
from simulator.policy import Policy
from simulator.prefix import PrefixBlocks
from simulator.prefix_steps import PrefixSteps
from simulator.queues import FcfsQueue, SortedQueue
from simulator.runlog import (
    FINISHED,
    PACK_REQUEST,
    PACK_STAY,
    REJECTED,
    REQUEST_COLUMNS,
    STALLED,
    RunLog,
)


class Residents:
    """Queues, memory and log of one engine replica under one policy; `Scheduler` moves the requests on.

    `num_blocks` is the engine's reported count; a policy's null blocks are never handed out. With
    `give_up_on_impossible` a request that outgrew the whole cache is dropped as stalled, where a real engine would
    retry it for ever.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        block_size: int,
        num_blocks: int,
        prefixes: bool,
        give_up_on_impossible: bool,
    ) -> None:
        self.policy = policy
        self._rejects, self._reserve_tokens = policy.rejects, policy.reserve_tokens
        self._give_up = give_up_on_impossible
        self._block_size = block_size
        self.decodes = self._leaving = self._staying = Decodes(block_size)
        """Those who can decode now; who decodes in a step or completes a prompt leaves with the second, who sits it out
        stays with the third. They differ only in a pipeline."""
        order = policy.waiting_order
        self.waiting = FcfsQueue() if order is None else SortedQueue(order)
        self.view = View(block_size, num_blocks - policy.null_blocks, self.decodes, self.waiting)
        self.planner = policy.start(self.view, contents=prefixes)
        self._memory: ContentMemory | None = self.planner.memory
        if self._memory is None and prefixes and policy.caches_prefixes:
            self.view.prefixes = PrefixBlocks(self.view.total_blocks, block_size)
            self._memory = PrefixSteps(self.view.prefixes, self.view, self._name)
        self.view.memory = self._memory
        if self._memory is not None and self._memory.by_residue:
            self.decodes.groups = [{} for _ in range(block_size)]
        self._admissions = self._arrived = 0
        self.kv_tokens = 0
        self.preemptions = 0
        self.outstanding_tokens = 0
        """Prompt and output tokens of the requests that have arrived and not ended."""
        self.log = RunLog(self.view.total_blocks)
        self.reasons: dict[int, str] = {}
        self._livelock = Livelock(self.view)

    def arrive(self, request: Request) -> None:
        """Put a request in the waiting queue, or reject it if it can never run."""
        request.target_tokens = self.policy.target_tokens(request, self.view)
        reason = self._rejects(request, self.view) if self._give_up else None
        self._arrived += 1
        self.outstanding_tokens += request.prompt_tokens + request.target_tokens
        if reason is None:
            self.waiting.append(request)
            self.planner.arrived(request)
        else:
            self._end(request, REJECTED, reason)

    def stall(self, reason: str) -> None:
        """End every unfinished request as stalled: nothing can ever change."""
        for request in [*self.view.running, *self.waiting]:
            if request.state != WAITING:
                if request.state == DECODING:
                    self._leave_cohort(request)
                self._release(request)
            else:
                self.waiting.remove(request)
            self._end(request, STALLED, reason)

    @property
    def ended(self) -> int:
        """Requests that have finished, were rejected or stalled."""
        return len(self.log.requests) // len(REQUEST_COLUMNS)

    @property
    def unfinished(self) -> int:
        """Requests that wait or run."""
        return len(self.waiting) + len(self.view.running)

    @property
    def _name(self) -> str:
        return type(self.policy).__name__

    def _reject(self, rejected: Sequence[tuple[Request, str]]) -> None:
        """Drop waiting requests that the policy has given up only now."""
        for request, reason in rejected:
            if request.state != WAITING:
                raise PolicyError(f"{self._name} rejects {request!r}, which is not waiting")
            self.waiting.remove(request)
            self._end(request, REJECTED, str(reason))

    def _admit(self, request: Request, iteration: int) -> None:
        view = self.view
        self.waiting.remove(request)
        view.running[request] = None
        view.prefilling[request] = None
        request.state = PREFILLING
        self._admissions += 1
        request.admission = self._admissions
        reserved_tokens = self._reserve_tokens(request)
        if reserved_tokens < 0:
            raise PolicyError(f"{self._name} reserves {reserved_tokens} tokens for {request!r}")
        if reserved_tokens:
            request.reserved_blocks = -(-reserved_tokens // self._block_size)
            view.free_blocks -= request.reserved_blocks
        if request.first_scheduled < 0:
            request.first_scheduled = iteration

    def _preempt(self, request: Request) -> None:
        """Recompute: the KV cache goes, generated tokens stay and are prefilled again with the prompt."""
        if request.state == DECODING:
            self._leave_cohort(request)
        self._recall(request)
        finishing = request.state == FINISHING
        self._release(request)
        self.preemptions += 1
        request.preemptions += 1
        request.computed = 0
        request.reserved_blocks = 0
        if finishing:  # its last token is under way and needs no further memory
            return
        request.state = WAITING
        hopeless = -(-request.known // self._block_size) > self.view.total_blocks
        if self._give_up and (hopeless or self._rejects(request, self.view) is not None):
            self._end(request, STALLED, f"grew to {request.known} tokens, more than can be admitted again")
        else:
            self.waiting.put_back(request)

    def _recall(self, request: Request) -> None:
        """Take back what is under way of `request`; only a scheduler has anything under way."""

    def _break_livelock(self, preempted: Request) -> None:
        """Stall `preempted` if requests take memory from each other without end."""
        since = (len(self.log.emissions), self._progress(), self._arrived)
        if self._livelock.returns(since) and preempted.state == WAITING:
            self.waiting.remove(preempted)
            reason = "requests preempt each other without end: the KV cache cannot hold them together"
            self._end(preempted, STALLED, reason)

    def _progress(self) -> int:
        """Grows with every step that decodes."""
        return self.decodes.clock

    def _settle(self) -> list[Request]:
        """Those who got their last token in the last tick decode no longer."""
        finishing = self.decodes.settle()
        for request in finishing:
            self._close_stay(request)
            request.state = FINISHING
        return finishing

    def _finish(self, finishing: Sequence[Request]) -> None:
        if self._memory is not None:
            finishing = self._memory.in_order(finishing)
        for request in finishing:
            if request.state == FINISHING:
                self._release(request)
            self._end(request, FINISHED)

    def _leave_cohort(self, request: Request) -> None:
        assert request.cohort is not None
        request.cohort.leave(request)
        self._close_stay(request)

    def _close_stay(self, request: Request) -> None:
        cohort = request.cohort
        assert cohort is not None
        ticks = cohort.clock - request.start_clock
        if ticks:
            stay = PACK_STAY(request.index, cohort.stream, request.start_clock, ticks, request.last_token)
            self.log.stays.frombytes(stay)
            request.last_token = cohort.last_tick

    def _release(self, request: Request) -> None:
        view = self.view
        if self._memory is None:
            held, reserved = -(-request.computed // self._block_size), request.reserved_blocks
            view.free_blocks += held if held > reserved else reserved
        else:
            self._memory.release(request)
            view.free_blocks = self._memory.free_blocks
        self.kv_tokens -= request.computed
        view.running.pop(request, None)
        if request.state == PREFILLING:
            view.prefilling.pop(request, None)
        request.state = ENDED

    def _end(self, request: Request, status: int, reason: str | None = None) -> None:
        if reason is not None:
            self.reasons[request.index] = reason
        request.state = ENDED
        self.planner.ended(request)
        self.outstanding_tokens -= request.prompt_tokens + request.target_tokens
        self.log.requests.frombytes(
            PACK_REQUEST(
                request.index,
                request.first_scheduled,
                request.first_token,
                request.last_token,
                request.generated,
                request.preemptions,
                status,
                request.cached_tokens,
            )
        )
