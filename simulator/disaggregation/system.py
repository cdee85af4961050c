"""Two pools of engines, the links between them, and who goes where: `simulate_pools` runs them over a trace.

A request arrives at a prefill replica, which computes its prompt and samples its first token as if nothing followed.
Then it queues at a decode replica; once there is room its KV is sent by the link of the prefill replica, which keeps
the blocks until all has arrived. So a full decode pool fills the prefill pool, which then admits nobody.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Any

import simpy

from simulator.clients import replay
from simulator.core import Request
from simulator.disaggregation.engines import FIRST_ENGINE, LANDING, PoolEngine, fire
from simulator.disaggregation.link import Link
from simulator.disaggregation.log import PooledRun, pooled_run
from simulator.disaggregation.schedulers import (
    DecodeScheduler,
    Incoming,
    PrefillScheduler,
    decode_scheduler,
    prefill_scheduler,
)
from simulator.pipeline.times import PipelineTimes
from simulator.policy import Policy
from simulator.routers import Router
from simulator.scheduler import Scheduler
from simulator.step_times import CoastingTimes


@dataclass(frozen=True)
class Pool:
    """Engines of one policy: a clock for each replica, blocks of each, and who shares requests out."""

    policy: Policy
    times: Sequence[CoastingTimes | PipelineTimes]
    block_size: int
    num_blocks: int
    router: Router


def simulate_pools(
    requests: Iterator[Request],
    prefill: Pool,
    decode: Pool,
    make_link: Callable[[], Link],
    *,
    layerwise: bool,
    prefixes: bool = False,
    on_step: Callable[[Scheduler], None] | None = None,
) -> PooledRun:
    """Replay `requests` (in order of arrival) through the two pools; returns the log of both and of what was sent.

    `on_step` is called with a scheduler after each step that it has planned or completed.

    With `prefixes` the prefill pool may cache them; the decode pool, which computes no prompts, never does.
    """
    env = simpy.Environment(initial_time=0)
    pools = _Pools(env, prefill, decode, make_link, layerwise=layerwise, prefixes=prefixes, on_step=on_step)
    env.process(replay(env, requests, pools, prefill.times[0].arrival_ns))
    engines: list[PoolEngine[Any]] = [*pools.prefills, *pools.decodes]
    for engine in engines:
        env.process(engine.serve())
    env.run()
    for engine in engines:  # nothing happens any more: who has not finished never will
        engine.nothing_else_comes()
    env.run()
    runs = [engine.scheduler.logged_run() for engine in engines]
    return pooled_run(runs, len(pools.prefills), pools.sent)


class _Pools:
    """Takes requests in, and moves them from pool to pool."""

    def __init__(
        self,
        env: simpy.Environment,
        prefill: Pool,
        decode: Pool,
        make_link: Callable[[], Link],
        *,
        layerwise: bool,
        prefixes: bool,
        on_step: Callable[[Scheduler], None] | None,
    ) -> None:
        self._env, self._layerwise, self._on_step = env, layerwise, on_step
        self._prefill, self._decode = prefill, decode
        self.prefills = [
            PoolEngine(env, scheduler, FIRST_ENGINE + place, self._prefilled, lambda _: env.now)
            for place, scheduler in enumerate(_prefill_schedulers(prefill, prefixes))
        ]
        self.decodes = [
            PoolEngine(env, scheduler, FIRST_ENGINE + len(self.prefills) + place, self._decoded, self._horizon)
            for place, scheduler in enumerate(_decode_schedulers(decode))
        ]
        self._links = [make_link() for _ in self.prefills]
        self._twins: dict[int, Request] = {}
        self._landings_ns: list[int] = []
        """When transfers under way end; a heap."""
        self.sent: list[Incoming] = []
        """Everybody who has left the prefill pool for the other one, in this order."""
        self.next_arrival_ns = 0.0

    def receive(self, request: Request) -> None:
        """A request arrives now, at a prefill replica."""
        prompt = Request(request.index, request.arrival_ns, request.prompt_tokens, 1, request.priority)
        prompt.keys = request.keys
        place = _choose(self._prefill.router, prompt, [engine.scheduler for engine in self.prefills])
        engine = self.prefills[place]
        self._foresee(request, engine.scheduler)
        engine.scheduler.arrive(prompt)
        engine.wake()

    def no_more_arrivals(self) -> None:
        """The trace is at its end; what is under way goes on."""

    def _foresee(self, request: Request, scheduler: PrefillScheduler) -> None:
        """Whether it will go on to the decode pool, or can never run there."""
        policy, view = self._decode.policy, self.decodes[0].scheduler.view
        request.target_tokens = policy.target_tokens(request, view)
        if request.target_tokens == 1:
            return
        request.computed, request.generated, request.known = request.prompt_tokens, 1, request.prompt_tokens + 1
        refusal = policy.rejects(request, view)
        if refusal is not None:
            scheduler.refusals[request.index] = f"in the decode pool: {refusal}"
            return
        scheduler.going_on.add(request.index)
        self._twins[request.index] = request

    def _prefilled(self, engine: PoolEngine[PrefillScheduler]) -> None:
        """Whoever a step has completed queues in the decode pool."""
        if self._on_step is not None:
            self._on_step(engine.scheduler)
        done = engine.scheduler.done
        if not done:
            return
        engine.scheduler.done = []
        now = int(self._env.now)
        source = self.prefills.index(engine)
        at_once: list[Incoming] = []
        for prompt, there in done:
            request = self._twins.pop(prompt.index)
            place = _choose(self._decode.router, request, [decode.scheduler for decode in self.decodes])
            decode = self.decodes[place]
            if not there:
                decode.scheduler.compute_again(request)
                decode.wake()
                continue
            incoming = Incoming(request, prompt, source, place, now)
            self.sent.append(incoming)
            decode.scheduler.queue(incoming)
            at_once += decode.scheduler.make_room()
        if self._layerwise and at_once:
            step, scheduler = at_once[0].prompt.last_token, engine.scheduler
            lengths = [incoming.prompt.prompt_tokens for incoming in at_once]
            span = scheduler.starts_ns[step], scheduler.log.end_ns[step]
            landings = self._links[source].send_layers(lengths, *span, now)
        else:
            landings = [self._whole(incoming) for incoming in at_once]
        for incoming, landing_ns in zip(at_once, landings, strict=True):
            self._sending(incoming, landing_ns)

    def _decoded(self, engine: PoolEngine[DecodeScheduler]) -> None:
        """After a step, and after planning one: there may be room now."""
        if self._on_step is not None:
            self._on_step(engine.scheduler)
        if engine.scheduler.incoming:
            for incoming in engine.scheduler.make_room():
                self._sending(incoming, self._whole(incoming))

    def _whole(self, incoming: Incoming) -> int:
        return self._links[incoming.source].send(incoming.prompt.prompt_tokens, int(self._env.now))

    def _sending(self, incoming: Incoming, landing_ns: int) -> None:
        now = int(self._env.now)
        incoming.room_ns, incoming.landed_ns = now, landing_ns
        heappush(self._landings_ns, landing_ns)
        landing = simpy.Event(self._env)
        assert landing.callbacks is not None
        landing.callbacks.append(lambda _: self._land(incoming))
        fire(self._env, landing, LANDING, landing_ns - now)

    def _land(self, incoming: Incoming) -> None:
        """Its KV is in the decode pool: it goes on there, and its blocks in the prefill pool are free."""
        heappop(self._landings_ns)
        decode, prefill = self.decodes[incoming.place], self.prefills[incoming.source]
        decode.scheduler.land(incoming.request)
        prefill.scheduler.let_go(incoming.prompt)
        decode.wake()
        prefill.wake()

    def _horizon(self, engine: PoolEngine[DecodeScheduler]) -> float:
        """Before when nobody hands a decode engine anything: until then no request arrives, no KV lands, no prefill
        engine completes a step, and no other decode engine lets go of who waits for room. O(engines)."""
        landing_ns = self._landings_ns[0] if self._landings_ns else inf
        others = [other.wakes_ns for other in self.decodes if other is not engine and other.scheduler.incoming]
        prefills = [prefill.wakes_ns for prefill in self.prefills]
        return min(self.next_arrival_ns, landing_ns, *prefills, *others)


def _choose(router: Router, request: Request, schedulers: Sequence[Scheduler]) -> int:
    return router(request, schedulers) if len(schedulers) > 1 else 0


def _prefill_schedulers(pool: Pool, prefixes: bool) -> list[PrefillScheduler]:
    memory = {"block_size": pool.block_size, "num_blocks": pool.num_blocks, "prefixes": prefixes}
    return [prefill_scheduler(pool.policy, times, **memory) for times in pool.times]


def _decode_schedulers(pool: Pool) -> list[DecodeScheduler]:
    memory = {"block_size": pool.block_size, "num_blocks": pool.num_blocks}
    return [decode_scheduler(pool.policy, times, **memory) for times in pool.times]
