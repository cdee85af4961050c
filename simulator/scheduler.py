"""Applies a policy's decisions: queues, paged KV memory and progress of all requests, one step at a time.

Progress is booked when a step is scheduled (so that the next one can be planned while it runs, as engines with
asynchronous scheduling do); what a finished request holds is released when its last step completes. Ordinary steps
touch the prefill chunks and the requests that join or leave, never each running decode.
"""

from collections.abc import Sequence

from simulator.core import Batch, Policy, Request, StepCosts, View
from simulator.decodes import Decodes
from simulator.errors import PolicyError
from simulator.prefix import PrefixBlocks
from simulator.queues import FcfsQueue, SortedQueue
from simulator.runlog import (
    EMISSION_COLUMNS,
    FINISHED,
    ITERATION_COLUMNS,
    REJECTED,
    REQUEST_COLUMNS,
    STALLED,
    STAY_COLUMNS,
    LoggedRun,
    RunLog,
    as_columns,
)

Step = tuple[int, Sequence[Request]]
"""A scheduled iteration under way: when it ends (nanoseconds), and the requests whose last token it samples.

A tuple, since one is made for every iteration.
"""


class Scheduler:
    """State of one engine replica under one policy.

    `num_blocks` is the engine's reported count; a policy's null blocks are never handed out. With
    `give_up_on_impossible` a request that outgrew the whole cache is dropped as stalled, where a real engine would
    retry it for ever.
    """

    def __init__(
        self,
        policy: Policy,
        costs: StepCosts,
        *,
        block_size: int,
        num_blocks: int,
        prefixes: bool = False,
        give_up_on_impossible: bool = True,
    ) -> None:
        self.policy = policy
        self._plan = policy.plan
        self._step_ns = costs.step_ns
        self._model_length = policy.model_length
        self._give_up = give_up_on_impossible
        self._block_size = block_size
        self.decodes = Decodes(block_size)
        order = policy.waiting_order
        self.waiting = FcfsQueue() if order is None else SortedQueue(order)
        self.view = View(block_size, num_blocks - policy.null_blocks, self.decodes, self.waiting)
        self._prefixes: PrefixBlocks | None = None
        if prefixes and policy.caches_prefixes:
            self._prefixes = self.view.prefixes = PrefixBlocks(self.view.total_blocks, block_size)
            self.decodes.groups = [{} for _ in range(block_size)]
        self._admissions = 0
        self.kv_tokens = 0
        self.iterations = 0
        self.preemptions = 0
        self.bubble_ns = 0
        self.log = RunLog()
        self._log_iteration = self.log.iterations.extend
        self.reasons: dict[int, str] = {}
        self._last_tick = -1
        self._arrived = 0
        self._fruitless: set[object] = set()
        self._fruitless_since: object = None

    def arrive(self, request: Request) -> None:
        """Put a request in the waiting queue, or reject it if it can never run."""
        length = self._model_length
        if length is not None and request.prompt_tokens + request.output_tokens > length:
            request.target_tokens = max(1, length - request.prompt_tokens)
        reason = self.policy.rejects(request, self.view) if self._give_up else None
        self._arrived += 1
        if reason is None:
            self.waiting.append(request)
        else:
            self._end(request, REJECTED, reason)

    def schedule(self, now_ns: int, gpu_free_ns: int = 0) -> Step | None:
        """Plan, book and log the next step; None if the policy schedules nothing.

        It starts now or, with a step under way, when the GPU is free. Flat, because it runs millions of times.
        """
        view, decodes = self.view, self.decodes
        view.now_ns = now_ns
        view.decode_blocks = decode_blocks = decodes.openers[-decodes.clock % self._block_size]
        batch = self._plan(view)
        if batch is None:
            return None
        if batch.__class__ is not Batch:
            raise PolicyError(f"{self._name}.plan returned {batch!r}; it must be a Batch or None")
        iteration = self.iterations
        self.iterations = iteration + 1
        chosen = batch.decodes
        sitting_out: Sequence[Request] = ()
        if self._prefixes is not None and batch.preempted:
            self._trade(self._prefixes, batch)
        if chosen or batch.preempted:
            sitting_out = self._apply_irregular(batch)
            decode_blocks = decodes.blocks_to_open()
        if self._prefixes is not None and not batch.preempted:
            self._allocate(self._prefixes, batch)
        finishing: Sequence[Request] = ()
        context = 0
        decoding = decodes.count if chosen is None or chosen else 0
        if decoding:
            view.free_blocks -= decode_blocks
            context = decodes.birth_sum + decoding * (decodes.clock + 1)
            self.kv_tokens += decoding
            finishing = decodes.advance()
            self._last_tick = iteration
            if finishing:
                for request in finishing:
                    self._close_stay(request)
                    request.state = Request.FINISHING
        for request in sitting_out:
            decodes.join(request)
        prefill_tokens = 0
        priced: list[tuple[int, int]] = []
        if batch.chunks:
            finishing = list(finishing)
            for request, tokens in batch.chunks:
                priced.append((request.computed, tokens))
                self._compute_chunk(request, tokens, iteration, finishing)
                prefill_tokens += tokens
        if self._prefixes is not None:
            view.free_blocks = len(self._prefixes.free)
        free_blocks = view.free_blocks
        if free_blocks < 0:
            raise PolicyError(f"{self._name} planned {-free_blocks} KV-cache blocks more than were free")
        if batch.preempted:
            self._break_livelock(batch.preempted[-1])
        elif not decoding and not priced:
            raise PolicyError(f"{self._name} returned an empty batch; return None to schedule nothing")
        start_ns = now_ns if now_ns > gpu_free_ns else gpu_free_ns
        end_ns = start_ns + self._step_ns(decoding, context, priced)
        running, waiting = len(view.running), len(self.waiting)
        self._log_iteration(
            (start_ns, end_ns, decoding, len(priced), prefill_tokens, self.kv_tokens, free_blocks, running, waiting)
        )
        return end_ns, finishing

    def complete(self, finishing: Sequence[Request]) -> None:
        """A step's outputs are there: release what the requests that it finishes hold."""
        if self._prefixes is not None:  # who comes first in the running list has its blocks reused first
            finishing = sorted(finishing, key=lambda request: request.admission)
        for request in finishing:
            if request.state == Request.FINISHING:
                self._release(request)
            self._end(request, FINISHED)

    def stall(self, reason: str) -> None:
        """End every unfinished request as stalled: nothing can ever change."""
        for request in [*self.view.running, *self.waiting]:
            if request.state != Request.WAITING:
                if request.state == Request.DECODING:
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
        return LoggedRun(
            as_columns(log.iterations, ITERATION_COLUMNS),
            as_columns(log.stays, STAY_COLUMNS),
            as_columns(log.emissions, EMISSION_COLUMNS),
            as_columns(log.requests, REQUEST_COLUMNS),
            self.reasons,
            self.view.total_blocks,
            self.bubble_ns,
        )

    @property
    def _name(self) -> str:
        return type(self.policy).__name__

    def _apply_irregular(self, batch: Batch) -> list[Request]:
        """Preempt, and take the decodes that get no token out of the cohort; O(n) in running decodes."""
        for request in batch.preempted:
            self._preempt(request)
        sitting_out: list[Request] = []
        if batch.decodes:
            chosen = set(batch.decodes)
            for request in chosen:
                if request.state != Request.DECODING:
                    raise PolicyError(f"{self._name} decodes {request!r}, which is not decoding")
            sitting_out = [r for r in self.view.running if r.state == Request.DECODING and r not in chosen]
            for request in sitting_out:
                self._leave_cohort(request)
        return sitting_out

    def _allocate(self, pool: PrefixBlocks, batch: Batch) -> None:
        """Hand out this step's blocks in the engine's order: running requests by admission, then the admitted.

        A request that is admitted starts with what it finds cached. O(chunks + decodes that open or fill a block).
        """
        clock, size, groups = self.decodes.clock, self._block_size, self.decodes.groups
        assert groups is not None
        growing: list[tuple[Request, int]] = []
        if batch.decodes is None or batch.decodes:
            for residue in {-clock % size, -(clock + 1) % size}:
                growing += [(request, request.birth + clock + 1) for request in groups[residue]]
        running = [(request, tokens) for request, tokens in batch.chunks if request.state == Request.PREFILLING]
        growing += [(request, request.computed + tokens) for request, tokens in running]
        growing.sort(key=lambda grown: grown[0].admission)
        for request, tokens in growing:
            pool.grow(request, tokens)
        for request, tokens in batch.chunks:
            if request.state == Request.WAITING:
                request.computed = pool.admit(request)
                self.kv_tokens += request.computed
                if request.first_scheduled < 0:
                    request.cached_tokens = request.computed
                pool.grow(request, request.computed + tokens)

    def _trade(self, pool: PrefixBlocks, batch: Batch) -> None:
        """Hand out the blocks of a preempting step: a victim lets go when the next request finds too few.

        What a victim was given earlier in the step is cached although it is never computed; vLLM does the same.
        """
        context = self.view.context_tokens
        growing = [(request, context(request) + 1) for request in batch.decodes or ()]
        growing += [(request, context(request) + tokens) for request, tokens in (*batch.chunks, *batch.undone)]
        growing.sort(key=lambda grown: grown[0].admission)
        victims = iter(batch.preempted)
        for request, tokens in growing:
            while pool.lacks(request, tokens):
                pool.release(next(victims))
            pool.grow(request, tokens)
        for request in victims:
            pool.release(request)

    def _compute_chunk(self, request: Request, tokens: int, iteration: int, finishing: list[Request]) -> None:
        view = self.view
        if request.state == Request.WAITING:
            self._admit(request, iteration)
        left = request.known - request.computed
        if request.state != Request.PREFILLING or not 0 < tokens <= left:
            self._refuse_chunk(request, tokens, left)
        computed = request.computed + tokens
        held = max(request.reserved_blocks, -(-request.computed // self._block_size))
        view.free_blocks -= max(0, -(-computed // self._block_size) - held)
        request.computed = computed
        self.kv_tokens += tokens
        if computed == request.known:
            del view.prefilling[request]
            request.generated += 1
            if request.first_token < 0:
                request.first_token = iteration
            self.log.emissions.extend((request.index, iteration, request.last_token))
            request.last_token = iteration
            if request.generated < request.target_tokens:
                self.decodes.join(request)
            else:
                request.state = Request.FINISHING
                finishing.append(request)

    def _admit(self, request: Request, iteration: int) -> None:
        view = self.view
        self.waiting.remove(request)
        view.running[request] = None
        view.prefilling[request] = None
        request.state = Request.PREFILLING
        self._admissions += 1
        request.admission = self._admissions
        request.reserved_blocks = -(-self.policy.reserve_tokens(request) // self._block_size)
        view.free_blocks -= request.reserved_blocks
        if request.first_scheduled < 0:
            request.first_scheduled = iteration

    def _refuse_chunk(self, request: Request, tokens: int, left: int) -> None:
        if request.state != Request.PREFILLING:
            raise PolicyError(f"{self._name} gave {request!r} a prefill chunk, but its prompt is complete")
        raise PolicyError(f"{self._name} gave {request!r} {tokens} tokens; it has {left} left")

    def _preempt(self, request: Request) -> None:
        """Recompute: the KV cache goes, generated tokens stay and are prefilled again with the prompt."""
        if request.state in (Request.WAITING, Request.ENDED):
            raise PolicyError(f"{self._name} preempts {request!r}, which is not running")
        if request.state == Request.DECODING:
            self._leave_cohort(request)
        finishing = request.state == Request.FINISHING
        self._release(request)
        self.preemptions += 1
        request.preemptions += 1
        request.computed = 0
        request.reserved_blocks = 0
        if finishing:  # its last token is under way and needs no further memory
            return
        request.state = Request.WAITING
        hopeless = -(-request.known // self._block_size) > self.view.total_blocks
        if self._give_up and (hopeless or self.policy.rejects(request, self.view) is not None):
            self._end(request, STALLED, f"grew to {request.known} tokens, more than the KV cache can take back")
        else:
            self.waiting.put_back(request)

    def _break_livelock(self, preempted: Request) -> None:
        """Stall `preempted` if requests take memory from each other without end.

        Between two tokens and arrivals the schedule is a function of who runs with how many computed tokens, who waits
        and what is cached: should that state return, no token will ever come. O(n), in preempting steps only; what is
        cached, O(blocks), is looked at from the first return of the rest on.
        """
        if not self._give_up:
            return
        since = (len(self.log.emissions), self.decodes.clock, self._arrived)
        if since != self._fruitless_since:
            self._fruitless_since = since
            self._fruitless.clear()
        running = tuple((request.index, self.view.context_tokens(request)) for request in self.view.running)
        state: object = (running, tuple(request.index for request in self.waiting))
        if self._prefixes is not None and state in self._fruitless:
            state = (state, self._prefixes.picture(self.view.running))
        if state not in self._fruitless:
            self._fruitless.add(state)
        elif preempted.state == Request.WAITING:
            self.waiting.remove(preempted)
            self._end(
                preempted,
                STALLED,
                "requests preempt each other without end: the KV cache cannot hold them together",
            )

    def _leave_cohort(self, request: Request) -> None:
        self.decodes.leave(request)
        self._close_stay(request)

    def _close_stay(self, request: Request) -> None:
        ticks = self.decodes.clock - request.start_clock
        if ticks:
            self.log.stays.extend((request.index, request.start_clock, ticks, request.last_token))
            request.last_token = self._last_tick

    def _release(self, request: Request) -> None:
        view = self.view
        if self._prefixes is None:
            view.free_blocks += max(request.reserved_blocks, -(-request.computed // self._block_size))
        else:
            if self._prefixes.holds(request):
                self._prefixes.release(request)
            view.free_blocks = len(self._prefixes.free)
        self.kv_tokens -= request.computed
        del view.running[request]
        view.prefilling.pop(request, None)
        request.state = Request.ENDED

    def _end(self, request: Request, status: int, reason: str | None = None) -> None:
        if reason is not None:
            self.reasons[request.index] = reason
        request.state = Request.ENDED
        self.log.requests.extend(
            (
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
