"""Engines as SimPy processes: plan a step, let its time pass, apply its outputs, again.

The clock is an integer number of nanoseconds. With several steps in flight the next is planned while others run, right
after the oldest of them completed (vLLM's asynchronous scheduling, pipelines); a GPU runs steps one after the other.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import simpy

from simulator.clients import replay
from simulator.coasting import CoastingScheduler
from simulator.core import Request
from simulator.pipeline.scheduler import PipelinedScheduler
from simulator.pipeline.times import PipelineTimes
from simulator.policy import Policy
from simulator.replicas import as_one
from simulator.routers import Router, make_router
from simulator.runlog import LoggedRun
from simulator.scheduler import Scheduler
from simulator.step_times import CoastingTimes

OnStep = Callable[[Scheduler], None]


class Frontend:
    """Takes requests in and hands each to one of the engines, as `router` says."""

    def __init__(self, engines: Sequence["Engine"], router: Router) -> None:
        self._engines, self._router = engines, router
        self._schedulers = [engine.scheduler for engine in engines]
        self.next_arrival_ns = 0.0
        """When the next request comes; infinite when there is none."""

    def receive(self, request: Request) -> None:
        """A request arrives now."""
        schedulers = self._schedulers
        place = self._router(request, schedulers) if len(schedulers) > 1 else 0
        self._engines[place].receive(request)

    def no_more_arrivals(self) -> None:
        """The trace is at its end."""
        for engine in self._engines:
            engine.no_more_arrivals()


class Engine:
    """One replica of the model: a GPU, a tensor-parallel group or a pipeline, that serves under one policy."""

    def __init__(self, env: simpy.Environment, scheduler: Scheduler) -> None:
        self.env = env
        self.scheduler = scheduler
        self._idle: simpy.Event | None = None
        self._arrivals_over = False

    def receive(self, request: Request) -> None:
        """A request arrives now."""
        self.scheduler.arrive(request)
        if self._idle is not None:
            self._wake()

    def no_more_arrivals(self) -> None:
        """The trace is at its end: what cannot run now never will."""
        self._arrivals_over = True
        self._wake()

    def serve(self, frontend: Frontend, on_step: OnStep | None = None) -> Generator[simpy.Event]:
        """The process. `on_step` is called after each completed step (progress bars).

        Until the next arrival, here or elsewhere, the engine counts its own time and lets SimPy's clock stand: a
        timeout a step would be a third of the run.
        """
        env, scheduler, depth, hosted = self.env, self.scheduler, self.scheduler.depth, self.scheduler.hosted
        now = int(env.now)
        arrival_ns = frontend.next_arrival_ns
        while True:
            if scheduler.under_way < depth and scheduler.schedule(now) is not None:
                if scheduler.under_way == depth:
                    scheduler.coast(arrival_ns)
                if scheduler.under_way < depth:
                    continue
            if scheduler.under_way:
                now = scheduler.next_end_ns()
                if hosted:
                    now += scheduler.pause_ns()
                if scheduler.plans_on_arrival and arrival_ns < now and scheduler.under_way < depth:
                    yield env.timeout(arrival_ns - env.now)
                    now, arrival_ns = int(env.now), frontend.next_arrival_ns
                    continue
                if now >= arrival_ns:  # at the same time an arrival goes first: it joins the step that starts now
                    yield env.timeout(now - env.now)
                    arrival_ns = frontend.next_arrival_ns
                scheduler.complete()
                if on_step is not None:
                    on_step(scheduler)
            elif self._arrivals_over:
                if scheduler.unfinished:
                    scheduler.stall("the policy schedules nothing although no other request will come")
                return
            else:
                held_up = scheduler.unfinished > 0
                self._idle = simpy.Event(env)
                yield self._idle
                scheduler.idled(int(env.now) - now, held_up=held_up)
                now, arrival_ns = int(env.now), frontend.next_arrival_ns

    def _wake(self) -> None:
        if self._idle is not None:
            idle, self._idle = self._idle, None
            idle.succeed()


def simulate(
    requests: Iterator[Request],
    policy: Policy,
    *times: CoastingTimes | PipelineTimes,
    block_size: int,
    num_blocks: int,
    prefixes: bool = False,
    router: Router | None = None,
    on_step: OnStep | None = None,
) -> LoggedRun:
    """Replay `requests` (in order of arrival) through `policy` by the clock `times`; returns the log of the whole run.

    `prefixes` says that requests carry block keys, which a policy with prefix caching then heeds. With several `times`
    there is a replica for each, with memory of its own; `router` shares the requests out, in turns if there is none.
    """
    env = simpy.Environment(initial_time=0)
    memory: dict[str, Any] = {"block_size": block_size, "num_blocks": num_blocks, "prefixes": prefixes}
    schedulers = [_scheduler(policy, clock, memory) for clock in times]
    engines = [Engine(env, scheduler) for scheduler in schedulers]
    frontend = Frontend(engines, router or make_router("round-robin"))
    env.process(replay(env, requests, frontend, times[0].arrival_ns))
    for engine in engines:
        env.process(engine.serve(frontend, on_step))
    env.run()
    return as_one([scheduler.logged_run() for scheduler in schedulers])


def _scheduler(policy: Policy, times: CoastingTimes | PipelineTimes, memory: dict[str, Any]) -> Scheduler:
    if isinstance(times, PipelineTimes):
        return PipelinedScheduler(policy, times, **memory)
    return CoastingScheduler(policy, times, **memory)
