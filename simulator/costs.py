"""Prices of steps in integer nanoseconds: a linear form for tests and teaching; `table_costs` for measured tables."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated, NamedTuple, Protocol

from annotated_types import Ge, Le

Nanoseconds = Annotated[int, Ge(0), Le(10**12)]


class DecodeLine(NamedTuple):
    """Price of a step that only decodes, in nanoseconds: int(constant + slope x sum of contexts after the step), by
    pieces. Piece i > 0 begins at `starts[i - 1]`; above `measured_to` the price is a continued trend."""

    starts: list[int]
    constants: list[float]
    slopes: list[float]
    measured_to: float

    def price(self, decode_context: int) -> int:
        """Nanoseconds of one step."""
        piece = bisect_right(self.starts, decode_context)
        return int(self.constants[piece] + self.slopes[piece] * decode_context)


class StepCosts(Protocol):
    """Prices of steps in integer nanoseconds."""

    def step_ns(self, decodes: int, decode_context: int, chunks: Sequence[tuple[int, int]]) -> int:
        """GPU time of a step of `decodes` decodes whose context lengths after the step sum to `decode_context`, and
        of prefill chunks `(context_before, tokens)`. O(chunks)."""
        ...

    def decode_line(self, decodes: int) -> DecodeLine:
        """GPU time of a step of `decodes` decodes alone."""
        ...

    def count_beyond(self, decodes: int, decode_context: int, steps: int) -> None:
        """Note that of `steps` steps of `decodes` decodes alone, up to one of `decode_context`, the last at least was
        beyond what its line was measured for."""
        ...


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
