"""Small workloads that bring a policy into every corner, made from a seed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from simulator.core import Request
from simulator.policy import PolicyBase
from simulator.promises import Promises

Row = tuple[int, int, int, int, int]

GAPS_NS = (0, 0, 1, 700, 1010, 3000, 40000)
"""Between arrivals: ties, bursts, within a step, exactly a step of one token, idle times."""


@dataclass(frozen=True)
class Case:
    """One workload and its memory.

    `requests`: (arrival in ns, prompt tokens, output tokens, priority, family). Prompts of one family other than 0
    begin alike. `num_blocks`: blocks that can be handed out. Run on one stage, and again on a pipeline of `stages`.
    """

    block_size: int
    num_blocks: int
    requests: tuple[Row, ...]
    steps_in_flight: int = 1
    stages: int = 1

    def arrivals(self) -> Iterator[Request]:
        """New requests of this workload."""
        for index, (arrival_ns, prompt, output, priority, family) in enumerate(self.requests):
            request = Request(index, arrival_ns, prompt, output, priority)
            request.keys = tuple((family, place) for place in range(prompt // self.block_size)) if family else ()
            yield request


class CaseMaker:
    """Cases for one policy. The same seed and number give the same case; the first ones have few requests.

    Sizes are small, and those that the policy's budgets and options make interesting; pools lie between one that is
    too small for the largest request and one in which all fit.
    """

    def __init__(self, policy: PolicyBase, promises: Promises, seed: int, steps_in_flight: Sequence[int]) -> None:
        self._policy = policy
        self._seed = seed
        self._steps_in_flight = steps_in_flight
        budgets = [budget for budget in (promises.token_budget, promises.prefill_budget) if budget]
        options = [value for value in _options(policy) if type(value) is int and 8 <= value <= 1024]
        longest = 40 * min(budgets, default=1024)
        self._landmarks = sorted({size for size in (*budgets, *options) if size <= longest})
        self._crowd = promises.sequence_limit if (promises.sequence_limit or 1000) <= 128 else None

    def make(self, number: int) -> Case:
        """Case `number`."""
        random = np.random.default_rng([self._seed, number])
        block_size = int(random.choice([1, 4, 16]))
        block_size = self._policy.block_size or block_size
        if self._crowd is not None and number % 16 == 15:
            requests = self._burst(random, self._crowd + 3)
        else:
            requests = self._mixture(random, min(1 + number // 3, 14))
        if max(prompt for _, prompt, *_ in requests) > 1024:
            block_size = self._policy.block_size or 16
            requests = requests[:4]
        blocks = self._pool(random, requests, block_size)
        steps_in_flight = int(random.choice(self._steps_in_flight))
        stages = 1 + number % 4 if self._policy.on_pipelines else 1
        return Case(block_size, blocks, requests, steps_in_flight, stages)

    def blocks(self, row: Row, block_size: int) -> int:
        """Blocks that a request needs alone, from admission to its last token."""
        _, prompt, output, priority, _ = row
        request = Request(0, 0, prompt, output, priority)
        length = self._policy.model_length
        if length is not None and prompt + output > length:
            request.target_tokens = max(1, length - prompt)
        tokens = max(prompt + request.target_tokens, self._policy.reserve_tokens(request))
        return -(-tokens // block_size)

    def _mixture(self, random: np.random.Generator, at_most: int) -> tuple[Row, ...]:
        count = int(random.integers(1, at_most + 1))
        arrivals = np.cumsum(random.choice(GAPS_NS, count))
        prompts = random.integers(1, 71, count)
        if self._landmarks and random.random() < 0.3:
            landmark = int(random.choice(self._landmarks))
            sizes = [max(1, landmark - 1), landmark, landmark + 1, 2 * landmark + 3, 5]
            prompts = random.choice(sizes, count)
        outputs = random.integers(1, 41 if random.random() < 0.25 else 13, count)
        priorities = random.integers(0, 3, count)
        sharing = self._policy.caches_prefixes and random.random() < 0.7
        families = random.integers(0, 3, count) if sharing else np.zeros(count, int)
        columns = (arrivals, prompts, outputs, priorities, families)
        return tuple(zip(*(column.tolist() for column in columns), strict=True))

    def _burst(self, random: np.random.Generator, count: int) -> tuple[Row, ...]:
        """More requests at once than may run together."""
        prompts, outputs = random.integers(1, 7, count).tolist(), random.integers(1, 7, count).tolist()
        return tuple((0, prompt, output, 0, 0) for prompt, output in zip(prompts, outputs, strict=True))

    def _pool(self, random: np.random.Generator, requests: Sequence[Row], block_size: int) -> int:
        needs = [self.blocks(row, block_size) for row in requests]
        most, every = max(needs), sum(needs)
        sizes = [most * 3 // 4, most, most + every // 8, most + every // 3, every + 8]
        return max(2, int(random.choice(sizes, p=[0.1, 0.2, 0.3, 0.2, 0.2])))


def _options(policy: PolicyBase) -> list[Any]:
    if not is_dataclass(policy):
        return []
    return [getattr(policy, field.name) for field in fields(policy)]
