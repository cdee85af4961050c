"""The engine as a SimPy process: plan a step, let its time pass, apply its outputs, again.

The clock is an integer number of nanoseconds. With `steps_in_flight` 2 the next step is planned while one runs, right
after the step before that one completed (vLLM's asynchronous scheduling); the GPU runs steps one after the other.
"""

from collections.abc import Callable, Generator, Iterator
from typing import Any

import simpy

from simulator.clients import replay
from simulator.core import Policy, Request
from simulator.pipeline.scheduler import PipelinedScheduler
from simulator.pipeline.times import PipelineTimes
from simulator.runlog import LoggedRun
from simulator.scheduler import Scheduler
from simulator.step_times import StepTimes


class Engine:
    """One GPU (or tensor-parallel group) that serves requests under one policy."""

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

    def serve(self, on_step: Callable[[Scheduler], None] | None = None) -> Generator[simpy.Event]:
        """The process. `on_step` is called after each completed step (progress bars).

        Until the next event of anybody else (an arrival) the engine counts its own time and lets SimPy's clock stand:
        a timeout a step would be a third of the run.
        """
        env, scheduler, depth, hosted = self.env, self.scheduler, self.scheduler.depth, self.scheduler.hosted
        now = int(env.now)
        others_ns = env.peek()  # infinite once nobody else has an event
        while True:
            if scheduler.under_way < depth and scheduler.schedule(now) is not None:
                if scheduler.under_way == depth:
                    scheduler.coast(others_ns)
                if scheduler.under_way < depth:
                    continue
            if scheduler.under_way:
                now = scheduler.next_end_ns()
                if hosted:
                    now += scheduler.pause_ns()
                if now >= others_ns:  # at the same time others go first: an arrival joins the step that starts now
                    yield env.timeout(now - env.now)
                    others_ns = env.peek()
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
                now, others_ns = int(env.now), env.peek()

    def _wake(self) -> None:
        if self._idle is not None:
            idle, self._idle = self._idle, None
            idle.succeed()


def simulate(
    requests: Iterator[Request],
    policy: Policy,
    times: StepTimes,
    *,
    block_size: int,
    num_blocks: int,
    prefixes: bool = False,
    on_step: Callable[[Scheduler], None] | None = None,
) -> LoggedRun:
    """Replay `requests` (in order of arrival) through `policy` by the clock `times`; returns the log of the whole run.

    `prefixes` says that requests carry block keys, which a policy with prefix caching then heeds.
    """
    env = simpy.Environment(initial_time=0)
    memory: dict[str, Any] = {"block_size": block_size, "num_blocks": num_blocks, "prefixes": prefixes}
    scheduler: Scheduler
    if isinstance(times, PipelineTimes):
        scheduler = PipelinedScheduler(policy, times, **memory)
    else:
        scheduler = Scheduler(policy, times, **memory)
    engine = Engine(env, scheduler)
    env.process(replay(env, requests, engine, times.arrival_ns))
    env.process(engine.serve(on_step))
    env.run()
    return scheduler.logged_run()
