"""A policy between the suite and the scheduler: every call of it is checked."""

import traceback
from collections.abc import Callable, Sequence
from typing import Any

from simulator.conformance.batches import Reached, check_batch, check_promises
from simulator.conformance.ledger import Ledger
from simulator.conformance.repeats import Repeats
from simulator.conformance.snapshot import decision, first_change, in_words, snapshot
from simulator.core import Batch, Request, View
from simulator.errors import PolicyError
from simulator.policy import Planner, PolicyBase, Remembering
from simulator.promises import Promises


class AtDepth:
    """A policy with another number of steps in flight; everything else is the policy's."""

    def __init__(self, policy: PolicyBase, steps_in_flight: int) -> None:
        self.policy = policy
        self.steps_in_flight = steps_in_flight

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)


class Watch(AtDepth):
    """Checks that calls change nothing and can be repeated, that accounts agree, and that promises are kept.

    `requests` are all that will arrive. Raises PolicyError; what the scheduler refuses by itself is left to it.
    """

    def __init__(
        self, policy: PolicyBase, steps_in_flight: int, requests: Sequence[Request], block_size: int, promises: Promises
    ) -> None:
        super().__init__(policy, steps_in_flight)
        self.ledger = Ledger(requests, block_size, drops_token=policy.preemption_drops_token)
        self.reached = Reached()
        self.view: View | None = None
        self._repeats = Repeats()
        self._requests = requests
        self._promises = promises
        self._planned: tuple[Batch, list[Request], int] | None = None
        self._patience = 100 + 4 * sum(request.prompt_tokens + request.output_tokens for request in requests)
        self._emitted = 0
        self._fruitless = 0

    def start(self, view: View, *, contents: bool) -> Planner:
        """This, in place of the policy or of the planner that remembers for it."""
        planner: Planner = self.policy.start(view, contents=contents)
        return self if isinstance(planner, PolicyBase) else _WatchedPlanner(self, planner)

    def plan(self, view: View) -> Batch | None:
        """The policy's batch, checked."""
        return self._check_plan(view, lambda: self._ask("plan", view))

    def _check_plan(self, view: View, ask: Callable[[], Any]) -> Batch | None:
        self.view = view
        self.settle(view)
        self._check_order(view)
        batch = ask()
        if batch is not None and batch.__class__ is not Batch:
            return batch  # type: ignore[no-any-return] # the scheduler refuses it
        ordinary = self._repeats.ordinary(batch, view)
        if ordinary is not None:
            check_batch(ordinary)
            self.reached.note(ordinary, view)
            self._planned = ordinary, list(view.running), view.under_way
        check_promises(self._promises, ordinary, self.reached, view)
        return ordinary

    def rejects(self, request: Request, view: View) -> str | None:
        """The policy's reason, checked."""
        self.view = view
        reason: str | None = self._ask("rejects", request, view)
        return reason

    def reserve_tokens(self, request: Request) -> int:
        """The policy's reservation, checked and noted."""
        tokens: int = self._ask("reserve_tokens", request)
        self.ledger.reserved[request] = tokens
        return tokens

    def settle(self, view: View) -> None:
        """Book the batch that has been applied, and compare the accounts."""
        if self._planned is not None:
            self.ledger.book(*self._planned, view)
            self._planned = None
        self.ledger.compare(view)
        emitted = sum(self.ledger.generated.values())
        self._fruitless = 0 if emitted > self._emitted else self._fruitless + 1
        self._emitted = emitted
        if self._fruitless > self._patience:
            raise PolicyError(f"makes no progress: {self._fruitless} plans brought no output token")

    def _ask(self, method: str, *arguments: Any) -> Any:
        """What the policy answers, if asking changes nothing and it answers the same again."""
        call = _naming_errors(getattr(self.policy, method), method)
        answer = self._ask_once(call, method, *arguments)
        first, second = _plain(answer), _plain(call(*arguments))
        if first != second:
            said = f"{in_words(first)}, then {in_words(second)}"
            raise PolicyError(f"{method} is no function of what it is given: asked twice it said {said}")
        return answer

    def _ask_once(self, call: Callable[..., Any], method: str, *arguments: Any) -> Any:
        """What a policy or planner answers, if asking changes nothing that belongs to others."""
        before = snapshot(self.view, self._requests, self.policy)
        answer = call(*arguments)
        change = first_change(before, snapshot(self.view, self._requests, self.policy), self._requests)
        if change is not None:
            raise PolicyError(f"{method} changed {change}; a policy only reads")
        return answer

    def _check_order(self, view: View) -> None:
        if self.policy.waiting_order is None:
            return
        key = _naming_errors(self.policy.waiting_order, "waiting_order")
        keys = [(key(request), request.index) for request in view.waiting]
        again = [(key(request), request.index) for request in view.waiting]
        if keys != again or keys != sorted(keys):
            raise PolicyError("waiting_order gave a waiting request two different keys")


class _WatchedPlanner(Remembering):
    """A planner that remembers: it is asked once, since asking changes what it remembers, and nothing else."""

    def __init__(self, watch: Watch, planner: Planner) -> None:
        self._watch, self._planner = watch, planner
        self.memory, self.completed = planner.memory, planner.completed
        self.arrived, self.left, self.ended = planner.arrived, planner.left, planner.ended  # type: ignore[method-assign]

    def plan(self, view: View) -> Batch | None:
        call = _naming_errors(self._planner.plan, "plan")
        return self._watch._check_plan(view, lambda: self._watch._ask_once(call, "plan", view))


def _plain(answer: object) -> object:
    """An answer as something that can be compared."""
    return decision(answer) if isinstance(answer, Batch) else answer


def named_like(kind: type[AtDepth], policy: PolicyBase) -> Any:
    """`kind` under the policy's name, which the scheduler's messages give."""
    return type(type(policy).__name__, (kind,), {})


def _naming_errors(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`function`, whose exceptions become PolicyErrors."""

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (Exception, SystemExit) as error:  # whatever a policy's code raises is its mistake
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{frame.filename}, line {frame.lineno}"
            raise PolicyError(f"{name} raised {type(error).__name__}: {error} ({place})") from error

    return call
