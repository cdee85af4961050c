"""Applies a policy's decisions: queues, paged KV memory and progress of all requests, one step at a time.

Progress is booked when a step is scheduled (so that the next one can be planned while it runs, as engines with
asynchronous scheduling do); what a finished request holds is released when its last step completes. Steps complete in
the order in which they were scheduled. Ordinary steps touch the prefill chunks and the requests that join or leave,
never each running decode.
"""

from collections import deque
from collections.abc import Sequence

from simulator.batch_checks import check_padding, check_parts, refuse_chunk
from simulator.core import DECODING, FINISHING, PREFILLING, WAITING, Batch, Request
from simulator.errors import PolicyError
from simulator.policy import Policy
from simulator.residents import Residents
from simulator.runlog import (
    EMISSION_COLUMNS,
    PACK_EMISSION,
    PACK_STRETCH,
    REQUEST_COLUMNS,
    STAY_COLUMNS,
    LoggedRun,
    as_columns,
    as_iterations,
)
from simulator.step_times import StepTimes
from simulator.taking_back import take_back_token


class Scheduler(Residents):
    """State of one engine replica under one policy, see `Residents`, and its steps by the clock `times`."""

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
        super().__init__(
            policy,
            block_size=block_size,
            num_blocks=num_blocks,
            prefixes=prefixes,
            give_up_on_impossible=give_up_on_impossible,
        )
        self._plan, self._completed = self.planner.plan, self.planner.completed
        self._times, self._book_time, self.hosted = times, times.book, times.hosted
        self.depth = policy.steps_in_flight
        """As many steps can be under way."""
        self.plans_on_arrival = False
        """Whether a place that is free is taken as soon as a request comes, not when the oldest step completes."""
        self._one_at_a_time = policy.steps_in_flight == 1
        self.iterations = 0
        self._paused_after, self._pauses = 0, [0, 0]
        self.bubble_ns = self.unready_ns = self.idle_ns = 0
        self._log_free = self.log.free_blocks.append
        self._log_stretch = self.log.stretches.frombytes
        self._log_emission = self.log.emissions.frombytes
        self._batch: Batch | None = None
        self._untold: deque[int] = deque()
        """Iterations that were planned, and of whose outputs the planner is to be told."""
        self.under_way = 0
        """Steps scheduled and not complete, all of them the last in the log."""
        self._finishing = self.view.finishing
        self._drops_token = policy.preemption_drops_token

    def schedule(self, now_ns: int) -> int | None:
        """Plan, book and log the next step; returns when it ends, or None if the policy schedules nothing."""
        view, decodes = self.view, self.decodes
        view.now_ns, view.under_way = now_ns, self.under_way
        view.decode_blocks = decodes.blocks_to_open()
        self._batch = batch = self._plan(view)
        if batch is None:
            return None
        if batch.__class__ is not Batch:
            raise PolicyError(f"{self._name}.plan returned {batch!r}; it must be a Batch or None")
        if batch.preempted or batch.decodes or batch.in_vain or len(batch.chunks) > 1:
            check_parts(self._name, batch)
        return self._book(batch, now_ns)

    def _book(self, batch: Batch, now_ns: int) -> int:
        """Carry out a batch. Flat, because it runs millions of times."""
        view, decodes = self.view, self.decodes
        iteration = self.iterations
        self.iterations = iteration + 1
        if self._completed is not None:
            self._untold.append(iteration)
        self.under_way += 1
        chosen = batch.decodes
        irregular = chosen or batch.preempted or batch.rejected or batch.in_vain or self._memory is not None
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
        decodes_in_all = count + len(batch.in_vain)
        for request in batch.in_vain:
            context += self._decode_in_vain(request)
            longest = max(longest, request.computed)
        for request in sitting_out:
            self._staying.join(request)
        chunks, prefill_tokens, priced = batch.chunks, 0, []
        if chunks:
            for request, tokens in chunks:
                priced.append((self._compute_chunk(request, tokens, iteration), tokens))
                prefill_tokens += tokens
                if request.state == FINISHING:
                    finishing = [*(finishing or ()), request]
        elif not (decodes_in_all or batch.preempted or batch.rejected):
            raise PolicyError(f"{self._name} returned an empty batch; return None to schedule nothing")
        if finishing:
            self._finishing.append((iteration, finishing))
        if self._memory is not None:
            view.free_blocks = self._memory.free_blocks
        if view.free_blocks < 0:
            raise PolicyError(f"{self._name} planned {-view.free_blocks} KV-cache blocks more than were free")
        if batch.preempted and self._give_up:
            self._break_livelock(batch.preempted[-1])
        view.last_prefills = len(chunks)
        ends_ns = self.log.end_ns
        tokens = decodes_in_all + prefill_tokens
        if batch.padding is None:
            start_ns = self._book_time(ends_ns, now_ns, tokens, decodes_in_all, context, longest, priced)
        else:
            check_padding(self._name, batch, tokens)
            start_ns = self._book_time(ends_ns, now_ns, batch.padding.tokens, *batch.padding)
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

    def complete(self) -> Sequence[Request]:
        """The outputs of the oldest step under way are there; returns the requests that it finishes.

        What they hold is released.
        """
        self.under_way -= 1
        if self._untold:
            self._tell(self.iterations - self.under_way - 1)
        if not self._finishing or self._finishing[0][0] != self.iterations - self.under_way - 1:
            return ()
        _, finishing = self._finishing.popleft()
        self._finish(finishing)
        return finishing

    def _tell(self, iteration: int) -> None:
        """Let the planner know, once, that the outputs of a step that it planned are there."""
        if self._completed is None or self._untold[0] != iteration:
            return
        self._completed(self._untold.popleft())
        if self._memory is not None:
            self.view.free_blocks = self._memory.free_blocks

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

    def _prepare(self, batch: Batch) -> list[Request]:
        """Preempt, reject, hand out blocks with identities, and take the decodes that get no token out of the cohort.

        Returns the latter. O(n) in running requests where the batch preempts or chooses decodes.
        """
        if self._memory is not None and batch.preempted:
            self.kv_tokens += self._memory.serve_preempting(batch)
        for request in batch.preempted:
            self._preempt(request)
        self._reject(batch.rejected)
        sitting_out: list[Request] = []
        if batch.decodes:
            chosen = set(batch.decodes)
            sitting_out = [r for r in self.view.decoding_requests() if r not in chosen]
            for request in sitting_out:
                self._leave_cohort(request)
        if self._memory is not None and not batch.preempted:
            self.kv_tokens += self._memory.serve(batch)
        return sitting_out

    def _decode_in_vain(self, request: Request) -> int:
        """Room and time for a token that is thrown away; returns the context with it."""
        held, computed = self.view.held_blocks(request), request.computed + 1
        self.view.free_blocks -= max(0, -(-computed // self._block_size) - held)
        request.computed = computed
        self.kv_tokens += 1
        return computed

    def _recall(self, request: Request) -> None:
        """Take back the token that `request`, out of the cohort, gets from a step under way."""
        earlier = self.iterations - self.under_way  # this step is booked, and its number in use
        if not self._drops_token or request.last_token < earlier:
            return
        for _, finishing in self._finishing:
            if request in finishing:
                finishing.remove(request)
                request.state = DECODING
        take_back_token(self.log, request)

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
