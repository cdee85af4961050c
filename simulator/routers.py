"""Which of several replicas serves a request: decided when it arrives, and never again."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Literal, Protocol, get_args

import numpy as np

from simulator.core import Request

RouterName = Literal["round-robin", "least-outstanding-tokens", "random"]


class Replica(Protocol):
    """What a router sees of a replica."""

    @property
    def outstanding_tokens(self) -> int:
        """Prompt and output tokens of all requests that it has been given and that have not ended."""
        ...


Router = Callable[[Request, Sequence[Replica]], int]
"""The place of the replica that gets the request."""


def router_names() -> tuple[str, ...]:
    """Names accepted by `make_router`."""
    return get_args(RouterName)


def make_router(name: RouterName, seed: int = 0) -> Router:
    """The router of that name, as at the start of a run.

    `round-robin`: one after the other. `random`: each alike, by `seed`. `least-outstanding-tokens`: who has the fewest
    tokens to serve, the first among equals; it knows how long outputs will be, as no real router does.
    """
    if name == "random":
        places = _random_places(seed)
        return lambda _, replicas: int(next(places) * len(replicas))
    if name == "round-robin":
        turns = count()
        return lambda _, replicas: next(turns) % len(replicas)
    return _least_outstanding


def _least_outstanding(_: Request, replicas: Sequence[Replica]) -> int:
    return min(range(len(replicas)), key=lambda place: replicas[place].outstanding_tokens)


def _random_places(seed: int) -> Iterator[float]:
    generator = np.random.default_rng(seed)
    while True:
        yield from generator.random(4096).tolist()
