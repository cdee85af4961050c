"""Whether random cases come into every corner that a comparison is meant for."""

from collections import Counter
from collections.abc import Callable, Set
from contextlib import suppress
from typing import TypeVar

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

T = TypeVar("T")


class _Complete(Exception):
    """Every corner has been reached; nothing else stops Hypothesis early."""


def missed(cases: st.SearchStrategy[T], reached_by: Callable[[T], Counter[str]], corners: Set[str]) -> set[str]:
    """Corners that none of many cases reaches. The search ends when there are none left: rare ones take thousands."""
    reached: Counter[str] = Counter()

    @settings(max_examples=10_000, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    @given(cases)
    def visit(case: T) -> None:
        reached.update(reached_by(case))
        if corners <= (+reached).keys():
            raise _Complete

    with suppress(_Complete):
        visit()
    return set(corners - (+reached).keys())
