"""Applies a policy's decisions: queues, paged KV memory and progress of all requests, one step at a time.

Progress is booked when a step is scheduled (so that the next one can be planned while it runs, as engines with
asynchronous scheduling do); what a finished request holds is released when its last step completes. Steps complete in
the order in which they were scheduled. Ordinary steps touch the prefill chunks and the requests that join or leave,
never each running decode.
"""

from collections import deque
from collections.abc import Sequence

from simulator.batch_checks import check_parts, refuse_chunk
from simulator.core import DECODING, ENDED, FINISHING, PREFILLING, WAITING, Batch, Policy, Request, View
from simulator.decodes import Decodes
from simulator.errors import PolicyError
from simulator.livelock import Livelock
from simulator.prefix import PrefixBlocks
from simulator.prefix_steps import PrefixSteps
from simulator.queues import FcfsQueue, SortedQueue
from simulator.runlog import (
    EMISSION_COLUMNS,
    FINISHED,
    PACK_EMISSION,
    PACK_REQUEST,
    PACK_STAY,
    PACK_STRETCH,
    REJECTED,
    REQUEST_COLUMNS,
    STALLED,
    STAY_COLUMNS,
    LoggedRun,
    RunLog,
    as_columns,
    as_iterations,
)
from simulator.step_times import StepTimes


class Scheduler:
    """State of one engine replica under one policy.

    `num_blocks` is the engine's reported count; a policy's null blocks are never handed out. With
    `give_up_on_impossible` a request that outgrew the whole cache is dropped as stalled, where a real engine would
    retry it for ever.
    """

    def __init__(
        self,
        policy: Policy,
        times: StepTimes,
        *,
        block_size: int,
        num_blocks: int,
        prefixes: bool = False,
        give_up_on_impossible: bool = True,
    ) -> None:
        self.policy = policy
        self._plan, self._rejects, self._reserve_tokens = policy.plan, policy.rejects, policy.reserve_tokens
        self._times, self._book_time, self.hosted = times, times.book, times.hosted
        self.depth = policy.steps_in_flight
        """As many steps can be under way."""
        self.plans_on_arrival = False
        """Whether a place that is free is taken as soon as a request comes, not when the oldest step completes."""
        self._one_at_a_time = policy.steps_in_flight == 1
        self._model_length = policy.model_length
        self._give_up = give_up_on_impossible
        self._block_size = block_size
        self.decodes = self._leaving = self._staying = Decodes(block_size)
        """Those who can decode now; who decodes in a step or completes a prompt leaves with the second, who sits it out
        stays with the third. They differ only in a pipeline."""
        order = policy.waiting_order
        self.waiting = FcfsQueue() if order is None else SortedQueue(order)
        self.view = View(block_size, num_blocks - policy.null_blocks, self.decodes, self.waiting)
        self._prefixes: PrefixSteps | None = None
        if prefixes and policy.caches_prefixes:
            self.view.prefixes = PrefixBlocks(self.view.total_blocks, block_size)
            self._prefixes = PrefixSteps(self.view.prefixes, self.view, self._name)
            self.decodes.groups = [{} for _ in range(block_size)]
        self._admissions = 0
        self.kv_tokens = 0
        self.iterations = 0
        self.preemptions = 0
        self.outstanding_tokens = 0
        """Prompt and output tokens of the requests that have arrived and not ended."""
        self._paused_after, self._pauses = 0, [0, 0]
        self.bubble_ns = self.unready_ns = self.idle_ns = 0
        self.log = RunLog(self.view.total_blocks)
        self._log_free = self.log.free_blocks.append
        self._log_stretch = self.log.stretches.frombytes
        self._log_emission = self.log.emissions.frombytes
        self._batch: Batch | None = None
        self.under_way = 0
        """Steps scheduled and not complete, all of them the last in the log."""
        self._finishing: deque[tuple[int, list[Request]]] = deque()
        """Iterations under way that sample somebody's last token, and whose."""
        self.reasons: dict[int, str] = {}
        self._arrived = 0
        self._livelock = Livelock(self.view)

    def arrive(self, request: Request) -> None:
        """Put a request in the waiting queue, or reject it if it can never run."""
        length = self._model_length
        if length is not None and request.prompt_tokens + request.output_tokens > length:
            request.target_tokens = max(1, length - request.prompt_tokens)
        reason = self._rejects(request, self.view) if self._give_up else None
        self._arrived += 1
        self.outstanding_tokens += request.prompt_tokens + request.target_tokens
        if reason is None:
            self.waiting.append(request)
        else:
            self._end(request, REJECTED, reason)

    def schedule(self, now_ns: int) -> int | None:
        """Plan, book and log the next step; returns when it ends, or None if the policy schedules nothing."""
        view, decodes = self.view, self.decodes
        view.now_ns = now_ns
        view.decode_blocks = decodes.blocks_to_open()
        self._batch = batch = self._plan(view)
        if batch is None:
            return None
        if batch.__class__ is not Batch:
            raise PolicyError(f"{self._name}.plan returned {batch!r}; it must be a Batch or None")
        if batch.preempted or batch.decodes or len(batch.chunks) > 1:
            check_parts(self._name, batch)
        return self._book(batch, now_ns)

    def _book(self, batch: Batch, now_ns: int) -> int:
        """Carry out a batch. Flat, because it runs millions of times."""
        view, decodes = self.view, self.decodes
        iteration = self.iterations
        self.iterations = iteration + 1
        self.under_way += 1
        chosen = batch.decodes
        irregular = chosen or batch.preempted or batch.rejected or self._prefixes is not None
        sitting_out = self._prepare(batch) if irregular else ()
        count, context, longest, finishing = decodes.count, 0, 0, None
        if count and (chosen is None or chosen):
            view.free_blocks -= decodes.blocks_to_open()
            context = decodes.birth_sum + count * (decodes.clock + 1)
            longest = decodes.longest() + 1
            self.kv_tokens += count
            decodes.last_tick = iteration
            if decodes.advance():
                finishing = self._settle()
        else:
            count = 0
        for request in sitting_out:
            self._staying.join(request)
        chunks, prefill_tokens, priced = batch.chunks, 0, []
        if chunks:
            for request, tokens in chunks:
                priced.append((self._compute_chunk(request, tokens, iteration), tokens))
                prefill_tokens += tokens
                if request.state == FINISHING:
                    finishing = [*(finishing or ()), request]
        elif not (count or batch.preempted or batch.rejected):
            raise PolicyError(f"{self._name} returned an empty batch; return None to schedule nothing")
        if finishing:
            self._finishing.append((iteration, finishing))
        if self._prefixes is not None:
            view.free_blocks = len(self._prefixes.pool.free)
        if view.free_blocks < 0:
            raise PolicyError(f"{self._name} planned {-view.free_blocks} KV-cache blocks more than were free")
        if batch.preempted and self._give_up:
            self._break_livelock(batch.preempted[-1])
        view.last_prefills = len(chunks)
        ends_ns = self.log.end_ns
        start_ns = self._book_time(ends_ns, now_ns, count + prefill_tokens, count, context, longest, priced)
        self._log_free(view.free_blocks)
        running, waiting = len(view.running), len(self.waiting)
        self._log_stretch(
            PACK_STRETCH(iteration, start_ns, prefill_tokens, self.kv_tokens, count, len(chunks), running, waiting)
        )
        return ends_ns[-1]

    def next_end_ns(self) -> int:
        """When the oldest step under way ends."""
        return self.log.end_ns[-self.under_way]

    def pause_ns(self) -> int:
        """From the end of the oldest step under way until the next can be planned."""
        return self._times.pause_ns(self.decodes.count)

    def coast(self, until_ns: float) -> None:
        """Run steps without asking the policy, up to the first plan at `until_ns` or later; here none."""

    def _settle(self) -> list[Request]:
        """Those who got their last token in the last tick decode no longer."""
        finishing = self.decodes.settle()
        for request in finishing:
            self._close_stay(request)
            request.state = FINISHING
        return finishing

    def complete(self) -> Sequence[Request]:
        """The outputs of the oldest step under way are there; returns the requests that it finishes.

        What they hold is released.
        """
        self.under_way -= 1
        if not self._finishing or self._finishing[0][0] != self.iterations - self.under_way - 1:
            return ()
        _, finishing = self._finishing.popleft()
        self._finish(finishing)
        return finishing

    def _finish(self, finishing: Sequence[Request]) -> None:
        if self._prefixes is not None:  # who comes first in the running list has its blocks reused first
            finishing = sorted(finishing, key=lambda request: request.admission)
        for request in finishing:
            if request.state == FINISHING:
                self._release(request)
            self._end(request, FINISHED)

    def idled(self, time_ns: int, *, held_up: bool) -> None:
        """No step was under way for so long, with somebody to serve or without."""
        self.bubble_ns += time_ns * held_up
        self._note_pauses()
        self._paused_after = self.iterations
        self._pauses[held_up] += time_ns

    def _note_pauses(self) -> None:
        """Pauses count as soon as a step has followed them, and if one was before."""
        if 0 < self._paused_after < self.iterations:
            self.idle_ns += self._pauses[False]
            self.unready_ns += self._pauses[True]
        if self._paused_after < self.iterations:
            self._pauses = [0, 0]

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

    def logged_run(self) -> LoggedRun:
        """Everything logged so far, as columns; the arrays are views of the log."""
        log = self.log
        self._note_pauses()
        return LoggedRun(
            as_iterations(log, self._times.pause_ns if self._one_at_a_time else lambda _: 0),
            as_columns(log.stays, STAY_COLUMNS),
            as_columns(log.emissions, EMISSION_COLUMNS),
            as_columns(log.requests, REQUEST_COLUMNS),
            self.reasons,
            self.view.total_blocks,
            self.bubble_ns,
            self.unready_ns,
            self.idle_ns,
            self._times.delivery_ns,
        )

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

    def _prepare(self, batch: Batch) -> list[Request]:
        """Preempt, reject, hand out blocks with identities, and take the decodes that get no token out of the cohort.

        Returns the latter. O(n) in running requests where the batch preempts or chooses decodes.
        """
        if self._prefixes is not None and batch.preempted:
            self.kv_tokens += self._prefixes.serve_preempting(batch)
        for request in batch.preempted:
            self._preempt(request)
        self._reject(batch.rejected)
        sitting_out: list[Request] = []
        if batch.decodes:
            chosen = set(batch.decodes)
            sitting_out = [r for r in self.view.decoding_requests() if r not in chosen]
            for request in sitting_out:
                self._leave_cohort(request)
        if self._prefixes is not None and not batch.preempted:
            self.kv_tokens += self._prefixes.serve(batch)
        return sitting_out

    def _compute_chunk(self, request: Request, tokens: int, iteration: int) -> int:
        """Book a chunk of a prompt, admitting who waits; returns the context before it."""
        view, block_size = self.view, self._block_size
        if request.state == WAITING:
            self._admit(request, iteration)
        before = request.computed
        left = request.known - before
        if request.state != PREFILLING or not 0 < tokens <= left:
            refuse_chunk(self._name, request, tokens, left)
        computed = before + tokens
        held, needed = -(-before // block_size), -(-computed // block_size)
        if held < request.reserved_blocks:
            held = request.reserved_blocks
        if needed > held:
            view.free_blocks -= needed - held
        request.computed = computed
        self.kv_tokens += tokens
        if tokens == left:
            self._sample_first(request, iteration)
        return before

    def _sample_first(self, request: Request, iteration: int) -> None:
        """The prompt is complete, which samples a token."""
        del self.view.prefilling[request]
        request.generated += 1
        if request.first_token < 0:
            request.first_token = iteration
        self._log_emission(PACK_EMISSION(request.index, iteration, request.last_token))
        request.last_token = iteration
        if request.generated < request.target_tokens:
            self._leaving.join(request)
        else:
            request.state = FINISHING

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
        if self._prefixes is None:
            held, reserved = -(-request.computed // self._block_size), request.reserved_blocks
            view.free_blocks += held if held > reserved else reserved
        else:
            if self._prefixes.pool.holds(request):
                self._prefixes.pool.release(request)
            view.free_blocks = len(self._prefixes.pool.free)
        self.kv_tokens -= request.computed
        del view.running[request]
        if request.state == PREFILLING:
            view.prefilling.pop(request, None)
        request.state = ENDED

    def _end(self, request: Request, status: int, reason: str | None = None) -> None:
        if reason is not None:
            self.reasons[request.index] = reason
        request.state = ENDED
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
