"""Prices of steps in integer nanoseconds: a linear form for tests and teaching; `table_costs` for measured tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated, Protocol

from annotated_types import Ge, Le

Nanoseconds = Annotated[int, Ge(0), Le(10**12)]


DecodePiece = tuple[float, float, float]
"""(constant, slope, until): a step of decodes alone takes int(constant + slope x sum of contexts after it) nanoseconds.

It holds as all contexts grow alike, for sums below `until`."""


class StepCosts(Protocol):
    """Prices of steps in integer nanoseconds.

    Of `decodes` decodes they know the sum of the context lengths after the step, `decode_context`, and the longest.
    """

    @property
    def measured_context(self) -> float:
        """The mean context up to which prices of decodes were measured."""
        ...

    def step_ns(self, decodes: int, decode_context: int, longest: int, chunks: Sequence[tuple[int, int]]) -> int:
        """GPU time of a step of decodes and of prefill chunks `(context_before, tokens)`. O(chunks)."""
        ...

    def decode_piece(self, decodes: int, decode_context: int, longest: int) -> DecodePiece:
        """GPU time of a step of decodes alone, and of those that follow."""
        ...

    def token_ns(self, tokens: int) -> float:
        """The part of a step's GPU time that depends on its tokens alone."""
        ...

    def count_beyond(self, decodes: int, decode_context: int, steps: int) -> None:
        """Note that of `steps` steps of `decodes` decodes alone, up to one of `decode_context`, the last at least was
        beyond what its price was measured for."""
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

    @property
    def measured_context(self) -> float:
        """A formula holds for any."""
        return inf

    def step_ns(
        self,
        decodes: int,
        decode_context: int,
        longest: int,  # noqa: ARG002 - the interface
        chunks: Sequence[tuple[int, int]],
    ) -> int:
        """See `StepCosts.step_ns`."""
        tokens, context = decodes, decode_context
        for before, new in chunks:
            tokens += new
            context += before + new
        return self.fixed_ns + self.per_token_ns * tokens + self.per_context_token_ns * context

    def decode_piece(self, decodes: int, decode_context: int, longest: int) -> DecodePiece:  # noqa: ARG002 - as above
        """See `StepCosts.decode_piece`."""
        return self.fixed_ns + self.per_token_ns * decodes, self.per_context_token_ns, inf

    def token_ns(self, tokens: int) -> float:
        """See `StepCosts.token_ns`."""
        return self.per_token_ns * tokens

    def count_beyond(self, decodes: int, decode_context: int, steps: int) -> None:
        """Nothing is beyond a formula."""
