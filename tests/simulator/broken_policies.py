"""Policies that each break one rule, beside one that breaks none; the conformance suite must tell them apart."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from simulator.core import DECODES_ONLY, Batch, Request, View
from simulator.policy import PolicyBase
from simulator.promises import Promises


@dataclass(frozen=True)
class Sound(PolicyBase):
    """First come, first served: chunks within a budget, memory reserved ahead. Breaks no rule."""

    token_budget: int = 24
    max_num_seqs: int = 4

    @property
    def promises(self) -> Promises:
        return Promises(
            token_budget=max(self.token_budget, self.max_num_seqs),
            sequence_limit=self.max_num_seqs,
            never_preempts=True,
            work_conserving=True,
            starvation_free=True,
        )

    def reserve_tokens(self, request: Request) -> int:
        return request.prompt_tokens + request.target_tokens

    def candidates(self, view: View) -> Iterator[Request]:
        """Who is admitted, in this order."""
        return iter(view.waiting)

    def plan(self, view: View) -> Batch | None:
        left, free, chunks = self.token_budget - view.decoding, view.free_blocks, []
        for request in view.prefilling:
            if left > 0:
                chunks.append((request, min(left, request.known - request.computed)))
                left -= chunks[-1][1]
        running = len(view.running)
        for request in self.candidates(view):
            blocks = -(-self.reserve_tokens(request) // view.block_size)
            if left <= 0 or blocks > free or running >= self.max_num_seqs:
                break
            chunks.append((request, min(left, request.known)))
            left, free, running = left - chunks[-1][1], free - blocks, running + 1
        return Batch(chunks) if chunks else DECODES_ONLY if view.decoding else None


class Careless(Sound):
    """Promises nothing."""

    @property
    def promises(self) -> Promises:
        return Promises()


class ChangesARequest(Sound):
    def plan(self, view: View) -> Batch | None:
        batch = super().plan(view)
        for request, tokens in batch.chunks if batch else ():
            request.computed += tokens
        return batch


class ChangesPriorities(Sound):
    """Ages who waits."""

    def plan(self, view: View) -> Batch | None:
        for request in view.waiting:
            request.priority -= 1
        return super().plan(view)


class ChangesTheView(Sound):
    def plan(self, view: View) -> Batch | None:
        batch = super().plan(view)
        for _, tokens in batch.chunks if batch else ():
            view.free_blocks -= -(-tokens // view.block_size)
        return batch


class EmptiesTheQueue(Sound):
    def plan(self, view: View) -> Batch | None:
        batch = super().plan(view)
        for request, _ in batch.chunks if batch else ():
            if request.state == Request.WAITING:
                view.waiting.remove(request)
        return batch


class ChangesInReserve(Sound):
    """A call other than `plan` must not change anything either."""

    def reserve_tokens(self, request: Request) -> int:
        request.reserved_blocks = 99
        return super().reserve_tokens(request)


class ComputesTwice(Careless):
    """Gives the same chunk twice."""

    def plan(self, view: View) -> Batch | None:
        batch = super().plan(view)
        return Batch([*batch.chunks, batch.chunks[0]]) if batch and batch.chunks else batch


class ComputesTooMuch(Careless):
    def plan(self, view: View) -> Batch | None:
        batch = super().plan(view)
        return Batch([(request, tokens + 1) for request, tokens in batch.chunks]) if batch and batch.chunks else batch


class ForgetsDecodesInBudget(Sound):
    """Plans its chunks as if decodes cost nothing."""

    def plan(self, view: View) -> Batch | None:
        return replace(self, token_budget=self.token_budget + view.decoding).plan_soundly(view)

    def plan_soundly(self, view: View) -> Batch | None:
        return super().plan(view)


class OneTooMany(Sound):
    def plan(self, view: View) -> Batch | None:
        return Sound(self.token_budget, self.max_num_seqs + 1).plan(view)


class HandsOutMore(Sound):
    """Reserves nothing, and admits as if the pool were its own."""

    def reserve_tokens(self, _: Request) -> int:
        return 0


class Preempts(Sound):
    """Makes room for who waits by taking it from the last one, although it promises not to."""

    def plan(self, view: View) -> Batch | None:
        batch = super().plan(view)
        if batch is DECODES_ONLY and view.waiting and view.decoding > 1:
            return Batch(preempted=view.decoding_requests()[-1:])
        return batch


class PreemptsTwice(Careless):
    def plan(self, view: View) -> Batch | None:
        if view.decoding > 1:
            last = view.decoding_requests()[-1]
            return Batch(preempted=[last, last])
        return super().plan(view)


class PreemptsAndRuns(Careless):
    def plan(self, view: View) -> Batch | None:
        if view.prefilling:
            request = next(iter(view.prefilling))
            return Batch([(request, 1)], preempted=[request])
        return super().plan(view)


class Thrashes(Careless):
    """Begins a prompt and preempts it before it is complete, for ever."""

    def plan(self, view: View) -> Batch | None:
        if view.prefilling:
            return Batch(preempted=list(view.prefilling))
        return Batch([(request, 1) for request in view.waiting][:1]) if view.waiting else super().plan(view)


class NeverDecodes(Careless):
    """Runs prompts, and no decode."""

    def plan(self, view: View) -> Batch | None:
        batch = super().plan(view)
        return Batch(batch.chunks, decodes=()) if batch and batch.chunks else None


class DropsADecode(Careless):
    """Never decodes every second request."""

    def plan(self, view: View) -> Batch | None:
        batch = super().plan(view)
        decodes = [request for request in view.decoding_requests() if request.index % 2 == 0]
        if batch is None or not view.decoding:
            return batch
        return Batch(batch.chunks, decodes) if decodes or batch.chunks else None


class ForgetsRequests(Careless):
    """Never admits long prompts."""

    def candidates(self, view: View) -> Iterator[Request]:
        return (request for request in view.waiting if request.prompt_tokens < 30)


class Idles(Sound):
    """Waits for company before it decodes."""

    def plan(self, view: View) -> Batch | None:
        batch = super().plan(view)
        return None if batch is DECODES_ONLY and view.waiting else batch


class ShortestFirst(Sound):
    """Starves long prompts, although it promises not to."""

    def waiting_order(self, request: Request) -> Any:
        return request.prompt_tokens


class NewestFirst(Sound):
    def candidates(self, view: View) -> Iterator[Request]:
        return iter([*view.waiting][::-1])


class PreemptsTheOldest(NewestFirst):
    """Every newcomer takes the memory of whoever has run the longest."""

    @property
    def promises(self) -> Promises:
        return Promises(starvation_free=True)

    def plan(self, view: View) -> Batch | None:
        batch = super().plan(view)
        if batch is DECODES_ONLY and view.waiting:
            return Batch(preempted=[next(iter(view.running))])
        return batch


class Draws(Sound):
    """Admits at random."""

    def candidates(self, view: View) -> Iterator[Request]:
        waiting = list(view.waiting)
        random.shuffle(waiting)
        return iter(waiting)


CALLS = [0]


class CountsCalls(Sound):
    """Decides by a global that each call changes."""

    def plan(self, view: View) -> Batch | None:
        CALLS[0] += 1
        return Sound(self.token_budget - CALLS[0] % 2).plan(view)


@dataclass(frozen=True)
class Remembers(Sound):
    """Keeps in itself whom it has seen."""

    seen: set[int] = field(default_factory=set)

    def plan(self, view: View) -> Batch | None:
        self.seen.update(request.index for request in view.waiting)
        return super().plan(view)


EVERY_SIXTH = [0]


class ChangesItsMindLater(Sound):
    """Decides by a global that changes too seldom for two calls in a row to see it."""

    def plan(self, view: View) -> Batch | None:
        EVERY_SIXTH[0] += 1
        return Sound(self.token_budget - EVERY_SIXTH[0] // 6 % 2).plan(view)


class UnstableOrder(Sound):
    """A sort key that depends on the hour."""

    def waiting_order(self, _: Request) -> Any:
        return random.random()


class Crashes(Sound):
    def plan(self, view: View) -> Batch | None:
        return super().plan(view) if len(view.waiting) < 3 else Batch([(list(view.waiting)[7], 1)])


class CountsInFloats(Sound):
    def plan(self, view: View) -> Batch | None:
        batch = super().plan(view)
        return Batch([(each, tokens / 1) for each, tokens in batch.chunks]) if batch and batch.chunks else batch  # type: ignore[misc]


class ReturnsAList(Sound):
    def plan(self, view: View) -> Any:
        return [(request, request.known) for request in view.waiting] or super().plan(view)


class DecodesTwice(Sound):
    def plan(self, view: View) -> Batch | None:
        decodes = view.decoding_requests()
        return Batch(decodes=[*decodes, *decodes]) if decodes else super().plan(view)


class RunsEmpty(Sound):
    def plan(self, view: View) -> Batch | None:
        return super().plan(view) or Batch()


class Leaves(Sound):
    """Ends the program, with success."""

    def plan(self, _: View) -> Batch | None:
        raise SystemExit(0)


class Sheds(Sound):
    """Drops whoever waits."""

    def plan(self, view: View) -> Batch | None:
        return Batch((), (), rejected=[(request, "no") for request in view.waiting]) if view.waiting else None


class Refuses(Sound):
    """Lets nobody in."""

    def rejects(self, *_: object) -> str | None:
        return "because"


class Owes(Sound):
    """Reserves less than nothing."""

    def reserve_tokens(self, _: Request) -> int:
        return -1000


class ReachesTooFar(Sound):
    """Looks for prompts among all running requests, where those in other micro-batches are."""

    def plan(self, view: View) -> Batch | None:
        batch = super().plan(view)
        started = [request for request in view.running if request.state == Request.PREFILLING]
        if batch is None and started:
            return Batch([(request, 1) for request in started[:1]])
        return batch


EVIL: dict[type[Sound], str] = {
    ReachesTooFar: r"gave request \d+ \(.*\) a chunk while another is under way",
    Leaves: "plan raised SystemExit",
    Sheds: "left request .* unfinished, which fits the memory: no",
    Refuses: "ran no step in any case: it rejects every request",
    Owes: "reserves -1000 tokens for request",
    ChangesARequest: r"plan changed `computed` of request 0 \(.*\) from 0 to \d+; a policy only reads",
    ChangesPriorities: r"plan changed `priority` of request 0",
    ChangesTheView: r"plan changed `view.free_blocks` from \d+ to \d+; a policy only reads",
    EmptiesTheQueue: r"plan changed `view.waiting`; a policy only reads",
    ChangesInReserve: r"changed `reserved_blocks` of request 0 \(.*\) from 0 to 99; a policy only reads",
    ComputesTwice: r"gave request 0 \(.*\) two chunks in one step",
    ComputesTooMuch: r"gave request 0 \(.*\) 25 tokens; it has 24 left",
    ForgetsDecodesInBudget: r"planned 25 tokens in a step; it promises token_budget 24",
    OneTooMany: r"planned 5 running requests; it promises sequence_limit 4",
    HandsOutMore: r"planned \d+ KV-cache blocks more than were free",
    Preempts: r"preempted request 1 \(.*\); it promises never_preempts",
    PreemptsTwice: r"preempts request 1 \(.*\) twice in one step",
    PreemptsAndRuns: r"preempts request 0 \(.*\) and gives it tokens in one step",
    Thrashes: r"left request 0 \(.*\) unfinished, which fits the memory",
    NeverDecodes: r"left request 0 \(.*\) unfinished, which fits the memory",
    DropsADecode: r"left request 1 \(.*\) unfinished, which fits the memory",
    ForgetsRequests: r"left request 0 \(70 \+ 7 tokens\) unfinished, which fits the memory",
    Idles: r"scheduled nothing although request 0 \(.*\) could run; it promises work_conserving",
    ShortestFirst: r"starves request 6 \(40 \+ 4 tokens\), which has a long prompt: \d+ newer requests finished",
    NewestFirst: r"starves request 6 .* it promises starvation_free",
    PreemptsTheOldest: r"starves request 6 .* it promises starvation_free",
    Draws: r"plan is no function of (what it is given: asked twice it said chunks|the view: the same run again)",
    CountsCalls: r"plan is no function of what it is given: asked twice",
    Remembers: r"plan changed its own `seen`; a policy only reads",
    ChangesItsMindLater: r"plan is no function of the view: the same run again was planned differently",
    UnstableOrder: r"waiting_order gave a waiting request two different keys",
    Crashes: r"plan raised IndexError: list index out of range",
    CountsInFloats: r"plan gave request 0 \(.*\) 24.0 tokens, a float; it must be an int",
    ReturnsAList: r"plan returned \[\(request 0 .*\]; it must be a Batch or None",
    DecodesTwice: r"plan names a request twice in `decodes`: decodes \[0, 0\]",
    RunsEmpty: r"returned an empty batch; return None to schedule nothing",
}
"""What the suite says of each."""
