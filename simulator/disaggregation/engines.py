"""The engines of two pools as SimPy processes on one clock.

An engine may only run ahead of the clock, by coasting, as far as nobody can hand it anything (`horizon`): a prefill
engine ends each of its steps at its own time on the clock, so the decode engines look no further than the next of these
ends. What happens at one nanosecond happens in the order of `ARRIVAL`, `LANDING`, the prefill engines and the decode
engines, each pool in order of its replicas.
"""

from collections.abc import Callable, Generator
from math import inf
from typing import Generic, TypeVar

import simpy
from simpy.events import EventPriority

from simulator.disaggregation.schedulers import DecodeScheduler, PrefillScheduler

ARRIVAL, LANDING, FIRST_ENGINE = range(3)
"""Ranks among what happens at one time: SimPy's URGENT, with which requests arrive, is the first."""

_S = TypeVar("_S", bound=PrefillScheduler | DecodeScheduler)


def fire(env: simpy.Environment, event: simpy.Event, rank: int, delay_ns: int) -> None:
    """`event` happens so much later."""
    event._ok, event._value = True, None
    env.schedule(event, EventPriority(rank), delay_ns)


class PoolEngine(Generic[_S]):
    """One replica of a pool. `after_step` is called when the outputs of a step are there and whenever a step has been
    planned; `horizon` says before when nobody hands it anything."""

    def __init__(
        self,
        env: simpy.Environment,
        scheduler: _S,
        rank: int,
        after_step: Callable[["PoolEngine[_S]"], None],
        horizon: Callable[["PoolEngine[_S]"], float],
    ) -> None:
        self.env, self.scheduler, self.rank = env, scheduler, rank
        self.wakes_ns = inf
        """When it next does anything on its own; infinite while it is idle."""
        self._after_step, self._horizon = after_step, horizon
        self._alarm: simpy.Event | None = None
        self._over = False

    def wake(self) -> None:
        """There may be something to do: an idle engine looks."""
        if self._alarm is not None:
            alarm, self._alarm = self._alarm, None
            self.wakes_ns = self.env.now
            fire(self.env, alarm, self.rank, 0)

    def nothing_else_comes(self) -> None:
        """What cannot run now never will."""
        self._over = True
        self.wake()

    def serve(self) -> Generator[simpy.Event]:
        """The process."""
        env, scheduler, depth = self.env, self.scheduler, self.scheduler.depth
        now = int(env.now)
        while True:
            if scheduler.under_way < depth and scheduler.schedule(now) is not None:
                self._after_step(self)
                if scheduler.under_way < depth:
                    continue
                scheduler.coast(self._horizon(self))
            if scheduler.under_way:
                until_ns = scheduler.next_end_ns() + (scheduler.pause_ns() if scheduler.hosted else 0)
                polls = scheduler.plans_on_arrival and scheduler.under_way < depth
                yield self._until(until_ns, polls=polls)
                now = int(env.now)
                self._alarm = None
                if polls and now < until_ns:
                    continue
                scheduler.complete()
                self._after_step(self)
            elif self._over:
                if scheduler.left_over:
                    scheduler.stall("the policy schedules nothing although nothing else will come")
                return
            else:
                held_up = scheduler.unfinished > 0
                self.wakes_ns = inf
                self._alarm = simpy.Event(env)
                yield self._alarm
                scheduler.idled(int(env.now) - now, held_up=held_up)
                now = int(env.now)

    def _until(self, time_ns: int, *, polls: bool) -> simpy.Event:
        """An event at that time; if it `polls`, sooner when the engine is woken."""
        timer = simpy.Event(self.env)
        self.wakes_ns = time_ns
        fire(self.env, timer, self.rank, time_ns - int(self.env.now))
        if not polls:
            return timer
        self._alarm = simpy.Event(self.env)
        return simpy.AnyOf(self.env, [timer, self._alarm])
