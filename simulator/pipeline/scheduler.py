"""The scheduler of a pipeline: several micro-batches under way, whose requests are out of the others' reach.

A request whose token is under way cannot decode. Those that decode in one micro-batch, or complete their prompt in it,
therefore *leave* as a cohort of their own, and come back together: with a policy of one step in flight (Orca's
`n_workers` batches, Sarathi-Serve's engine, vLLM without asynchronous scheduling) when that micro-batch completes; with
asynchronous scheduling (vLLM) after as many steps as there are stages, whether the token is there or not. Steady
decodes thus go round in as many cohorts as there are stages, and none of them is touched.

With P stages P micro-batches are under way, one more with asynchronous scheduling. There a step for which there was
nothing to do holds a place too. vLLM waits for its oldest step once it had nothing to plan; Orca's loop asks again, so
that who comes meanwhile takes a free place at once.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simulator.core import DECODING, PREFILLING, Batch, Request
from simulator.decodes import Decodes
from simulator.errors import PolicyError
from simulator.pipeline.log import ARRIVALS, DEPENDENCY, DRAIN, FULL, HOST, NOT_READY
from simulator.pipeline.times import PipelineTimes
from simulator.policy import Policy
from simulator.runlog import LoggedRun
from simulator.scheduler import Scheduler

_EMPTY = -1
"""In place of the iteration of a step that had nothing to do."""


@dataclass(slots=True)
class _Flight:
    """A step whose requests are out of reach: those that decode next, and prompts of which a chunk is under way."""

    cohort: Decodes
    prompts: list[Request]
    end_ns: int
    empty: bool = False


class PipelinedScheduler(Scheduler):
    """State of one pipeline under one policy; see `Scheduler`."""

    def __init__(self, policy: Policy, times: PipelineTimes, **memory: Any) -> None:
        super().__init__(policy, times, **memory)
        self._pipeline, self._pipeline_log = times, times.log
        stages = self.view.stages = times.stages
        self.depth = stages - 1 + policy.steps_in_flight
        self._by_turns = policy.steps_in_flight > 1
        self._hides_prompts = not policy.chunks_in_flight
        self.plans_on_arrival = stages > 1 and self._hides_prompts and not self._by_turns
        self._spare: list[Decodes] = []
        self._cohorts = [self.decodes]
        self._flights: deque[_Flight] = deque()
        """Steps whose requests are out of reach, oldest first."""
        self._places: deque[tuple[int, int, int, bool]] = deque()
        """(iteration, end, sequences, whether any gets a token) of the steps under way, oldest first."""
        self._holes = 0
        """Steps under way with nothing to do."""

    def next_end_ns(self) -> int:
        """When the oldest step under way ends."""
        return max(self._places[0][1], self._pipeline.host_free_ns)

    def pause_ns(self) -> int:
        """See `Scheduler.pause_ns`."""
        return self._times.pause_ns(self._places[0][2])

    def schedule(self, now_ns: int) -> int | None:
        """See `Scheduler.schedule`; where a step with nothing to do holds a place, that is booked."""
        if self._by_turns:
            self._take_turns()
        end_ns = super().schedule(now_ns)
        log = self._pipeline_log
        if end_ns is None:
            log.wait(now_ns, self._why_not())
            if self._by_turns and self.under_way > self._holes:
                self._hold_place()
        elif self.under_way == self.depth:
            log.wait(now_ns, DEPENDENCY if self._holes else FULL)
        return end_ns

    def complete(self) -> Sequence[Request]:
        """See `Scheduler.complete`."""
        iteration, end_ns, _, _ = self._places.popleft()
        self.under_way -= 1
        if self.hosted:
            self._pipeline_log.wait(end_ns, HOST)
        if not self._by_turns:
            self._return(self._flights.popleft())
        elif iteration == _EMPTY:
            self._holes -= 1
        if self._untold:
            self._tell(iteration)
        if not self._finishing or self._finishing[0][0] != iteration:
            return ()
        _, finishing = self._finishing.popleft()
        self._finish(finishing)
        return finishing

    def logged_run(self) -> LoggedRun:
        """See `Scheduler.logged_run`."""
        return super().logged_run().of_pipeline(self._pipeline_log)

    def _book(self, batch: Batch, now_ns: int) -> int:
        ready, iteration = self.decodes, self.iterations
        self._check_reach(batch)
        spare = self._spare.pop() if self._spare else self._another()
        decoding = ready.count and (batch.decodes is None or batch.decodes)
        self._leaving, self._staying = (ready, spare) if decoding else (spare, ready)
        emissions = len(self.log.emissions)
        end_ns = super()._book(batch, now_ns)
        samples = bool(decoding) or len(self.log.emissions) > emissions
        self._pipeline_log.streams.append(self._leaving.stream)
        prompts: list[Request] = []
        for request, _ in batch.chunks:
            self._pipeline_log.chunks.append(request.index)
            self._pipeline_log.chunks.append(iteration)
            if self._hides_prompts and request.state == PREFILLING:
                del self.view.prefilling[request]
                prompts.append(request)
        self.decodes = self.view.decodes = self._staying
        self._flights.append(_Flight(self._leaving, prompts, end_ns))
        sequences = len(batch.chunks) + (self._leaving.count if decoding else 0)
        self._places.append((iteration, end_ns, sequences, samples))
        return end_ns

    def _take_turns(self) -> None:
        """Who left as many steps ago as there are stages can decode again; everybody once nothing is under way."""
        flights, stages = self._flights, self.view.stages
        self._pipeline.depends_ns = 0
        while flights and (len(flights) >= stages or not self.under_way):
            flight = flights.popleft()
            if not flight.empty and flight.cohort.count:
                self._pipeline.depends_ns = flight.end_ns
            self._return(flight)
        self._pipeline.followed = len(flights) == stages - 1 and not any(flight.empty for flight in flights)

    def _hold_place(self) -> None:
        """A step with nothing to do; who could have decoded in it can in the next."""
        end_ns = self._places[-1][1]
        spare = self._spare.pop() if self._spare else self._another()
        self._flights.append(_Flight(spare, [], end_ns, empty=True))
        self._places.append((_EMPTY, end_ns, 0, False))
        self.under_way += 1
        self._holes += 1

    def _return(self, flight: _Flight) -> None:
        """Its requests are in reach again. O(1) unless others are: then O(smaller cohort)."""
        cohort, ready = flight.cohort, self.decodes
        if cohort.count > ready.count:
            cohort, ready = ready, cohort
        for request in cohort.members() if cohort.count else ():
            self._leave_cohort(request)
            ready.join(request)
        self._spare.append(cohort)
        self.decodes = self.view.decodes = self._leaving = self._staying = ready
        back = [request for request in flight.prompts if request.state == PREFILLING]
        if back:
            prefilling = self.view.prefilling
            last = next(reversed(prefilling)).admission if prefilling else 0
            prefilling.update(dict.fromkeys(back))
            if min(request.admission for request in back) < last:
                self.view.prefilling = dict.fromkeys(sorted(prefilling, key=lambda request: request.admission))

    def _another(self) -> Decodes:
        cohort = Decodes(self.view.block_size, len(self._cohorts))
        if self._memory is not None and self._memory.by_residue:
            cohort.groups = [{} for _ in range(self.view.block_size)]
        self._cohorts.append(cohort)
        return cohort

    def _preempt(self, request: Request) -> None:
        for flight in self._flights:
            if request in flight.prompts:
                flight.prompts.remove(request)
        super()._preempt(request)

    def _why_not(self) -> int:
        """Why the policy has planned nothing."""
        running = len(self.view.running)
        if self.waiting or running > self.view.elsewhere:
            return NOT_READY
        if not running:
            return ARRIVALS
        goes_on = any(flight.cohort.count or flight.prompts for flight in self._flights)
        return DEPENDENCY if goes_on or self.view.prefilling else DRAIN

    def _check_reach(self, batch: Batch) -> None:
        """What is under way is out of reach of a further micro-batch."""
        for request in batch.decodes or ():
            if request.state == DECODING and request.cohort is not self.decodes:
                raise PolicyError(f"{self._name} decodes {request!r}, whose last token is still under way")
        for request, _ in batch.chunks:
            if request.state == PREFILLING and request not in self.view.prefilling:
                raise PolicyError(f"{self._name} gave {request!r} a chunk while another is under way")

    def _break_livelock(self, preempted: Request) -> None:
        """While a token is under way on some stage things will change by themselves."""
        if self.view.stages == 1 or not any(samples for *_, samples in self._places):
            super()._break_livelock(preempted)

    def _progress(self) -> int:
        return sum(cohort.clock for cohort in self._cohorts)
