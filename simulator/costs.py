"""Prices of steps in integer nanoseconds: a linear form for tests and teaching; `table_costs` for measured tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated

from annotated_types import Ge, Le

from simulator.core import DecodeLine

Nanoseconds = Annotated[int, Ge(0), Le(10**12)]


@dataclass(frozen=True)
class LinearCosts:
    """fixed + per_token x (tokens of the step) + per_context_token x (sum of contexts after the step), nanoseconds."""

    fixed_ns: Nanoseconds = 0
    per_token_ns: Nanoseconds = 0
    per_context_token_ns: Nanoseconds = 0

    def __post_init__(self) -> None:
        if not (self.fixed_ns or self.per_token_ns):
            raise ValueError("a step must cost something: fixed_ns or per_token_ns above 0")

    def step_ns(self, decodes: int, decode_context: int, chunks: Sequence[tuple[int, int]]) -> int:
        """See `StepCosts.step_ns`."""
        tokens, context = decodes, decode_context
        for before, new in chunks:
            tokens += new
            context += before + new
        return self.fixed_ns + self.per_token_ns * tokens + self.per_context_token_ns * context

    def decode_line(self, decodes: int) -> DecodeLine:
        """See `StepCosts.decode_line`."""
        return DecodeLine([], [self.fixed_ns + self.per_token_ns * decodes], [self.per_context_token_ns], inf)

    def count_beyond(self, decodes: int, decode_context: int, steps: int) -> None:
        """Nothing is beyond a formula."""
