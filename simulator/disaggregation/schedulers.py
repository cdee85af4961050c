"""Schedulers of the two pools: what finished a prompt keeps its memory until its KV is gone, what comes has room first.

The policies of both pools are those of any engine and know nothing of the other pool. To the prefill pool every request
is one of a single output token; to the decode pool it is one that is in the middle of its output.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simulator.coasting import CoastingScheduler
from simulator.core import DECODES_UNTIL_FINISH, FINISHING, Batch, Request
from simulator.pipeline.scheduler import PipelinedScheduler
from simulator.pipeline.times import PipelineTimes
from simulator.policy import Policy
from simulator.runlog import FINISHED, STALLED
from simulator.scheduler import Scheduler
from simulator.step_times import CoastingTimes


class PrefillScheduler(Scheduler):
    """Of a prefill replica: requests in `going_on` hold their blocks, but no place in the batch, when they are done."""

    def __init__(self, policy: Policy, times: Any, **memory: Any) -> None:
        super().__init__(policy, times, **memory)
        self.going_on: set[int] = set()
        """Indices of requests that have more than one token to generate."""
        self.refusals: dict[int, str] = {}
        """Why the decode pool can never take a request."""
        self.done: list[tuple[Request, bool]] = []
        """Who has been completed and is to go on, and whether its KV is still there; for the engine to take away."""
        self._held: dict[Request, None] = {}
        self.starts_ns = array("q")
        """Of each step."""
        self._book_time = self._noting_starts(times)
        own = self._rejects
        self._rejects = lambda request, view: self.refusals.get(request.index) or own(request, view)

    def let_go(self, request: Request) -> None:
        """The KV of `request` has been sent, or is not needed: its blocks are free."""
        del self._held[request]
        self._arrived += 1
        self._release(request)
        self._end(request, FINISHED)

    def stall(self, reason: str) -> None:
        """See `Scheduler.stall`."""
        super().stall(reason)
        for request in [*self._held]:
            del self._held[request]
            self._release(request)
            self._end(request, STALLED, reason)

    @property
    def left_over(self) -> int:
        """Requests that have not finished here, or whose KV has not been sent."""
        return self.unfinished + len(self._held)

    def _finish(self, finishing: Sequence[Request]) -> None:
        leaving = [request for request in finishing if request.index not in self.going_on]
        super()._finish(leaving)
        if len(leaving) == len(finishing):
            return
        for request in finishing:
            if request.index in self.going_on:
                there = request.state == FINISHING
                if there:
                    del self.view.running[request]
                    self._held[request] = None
                    self.planner.left(request)
                else:  # preempted while its token was under way
                    self._end(request, FINISHED)
                self.done.append((request, there))

    def _break_livelock(self, preempted: Request) -> None:
        if not self._held:  # memory will yet become free by itself
            super()._break_livelock(preempted)

    def _noting_starts(self, times: Any) -> Any:
        book, note = times.book, self.starts_ns.append

        def booking(*step: Any) -> int:
            start_ns: int = book(*step)
            note(start_ns)
            return start_ns

        return booking


@dataclass(eq=False, slots=True)
class Incoming:
    """A request on its way to the decode pool: its twins there and in the prefill pool, the replica `source` that
    computed its prompt and the one, `place`, that goes on, the blocks that it takes there, and when what happened."""

    request: Request
    prompt: Request
    source: int
    place: int
    ready_ns: int
    blocks: int = 0
    room_ns: int = -1
    landed_ns: int = -1


class DecodeScheduler(Scheduler):
    """Of a decode replica: who comes from the prefill pool first gets room, and decodes when its KV is there."""

    def __init__(self, policy: Policy, times: Any, **memory: Any) -> None:
        super().__init__(policy, times, **memory)
        self.incoming: deque[Incoming] = deque()
        """Who waits for room, in order."""
        self._coming = 0
        limit = policy.promises.sequence_limit
        self._sequences = limit if limit is not None else float("inf")

    def queue(self, incoming: Incoming) -> None:
        """Its prompt is computed; it waits for room here."""
        request = incoming.request
        reserved = self.policy.landing_tokens(request)
        request.reserved_blocks = -(-reserved // self._block_size)
        incoming.blocks = max(request.reserved_blocks, -(-request.computed // self._block_size))
        self.outstanding_tokens += request.prompt_tokens + request.target_tokens
        self.incoming.append(incoming)

    def make_room(self) -> list[Incoming]:
        """Those for whom there is room now, in order: nobody who was preempted waits, a place in the batch and enough
        blocks are free. They have them from now on."""
        let_in = []
        while self.incoming and not self.waiting:
            incoming = self.incoming[0]
            taken = len(self.view.running) + self._coming
            if taken >= self._sequences or incoming.blocks > self.view.free_blocks:
                break
            self.incoming.popleft()
            self.view.free_blocks -= incoming.blocks
            self._coming += 1
            let_in.append(incoming)
        return let_in

    def land(self, request: Request) -> None:
        """The KV of `request` is there: it decodes from the next step that is planned. O(log n)."""
        view = self.view
        self._coming -= 1
        self._arrived += 1
        self._admissions += 1
        request.admission = self._admissions
        view.running[request] = None
        self.kv_tokens += request.computed
        self.decodes.join(request)

    def compute_again(self, request: Request) -> None:
        """Its KV was lost on the other side: it waits here like who has been preempted."""
        request.computed = 0
        self.outstanding_tokens += request.prompt_tokens + request.target_tokens
        self._arrived += 1
        self.waiting.append(request)

    def coast(self, until_ns: float) -> None:
        """See `Scheduler.coast`. While somebody waits for room each finish is looked at."""
        batch = self._batch
        if self.incoming and batch is not None and batch.holds == Batch.UNTIL_ARRIVAL:
            self._batch = DECODES_UNTIL_FINISH
        super().coast(until_ns)

    def _break_livelock(self, preempted: Request) -> None:
        if not self._coming:  # things will yet change by themselves
            super()._break_livelock(preempted)

    def stall(self, reason: str) -> None:
        """See `Scheduler.stall`."""
        super().stall(reason)
        for incoming in self.incoming:
            self._end(incoming.request, STALLED, "there was never room for it in the decode pool")
        self.incoming.clear()

    @property
    def left_over(self) -> int:
        """Requests that have not finished here, or wait to come."""
        return self.unfinished + len(self.incoming)


class _PrefillGpu(PrefillScheduler, CoastingScheduler):
    pass


class _PrefillPipeline(PrefillScheduler, PipelinedScheduler):
    pass


class _DecodeGpu(DecodeScheduler, CoastingScheduler):
    pass


class _DecodePipeline(DecodeScheduler, PipelinedScheduler):
    pass


def prefill_scheduler(policy: Policy, times: CoastingTimes | PipelineTimes, **memory: Any) -> PrefillScheduler:
    """One prefill replica by the clock `times`."""
    return (_PrefillPipeline if isinstance(times, PipelineTimes) else _PrefillGpu)(policy, times, **memory)


def decode_scheduler(policy: Policy, times: CoastingTimes | PipelineTimes, **memory: Any) -> DecodeScheduler:
    """One decode replica by the clock `times`."""
    return (_DecodePipeline if isinstance(times, PipelineTimes) else _DecodeGpu)(policy, times, **memory)
