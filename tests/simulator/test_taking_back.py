"""A preemption that takes back the token under way: it is sampled again, and nothing of it is left in the log."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import pytest

from simulator.core import Batch, View
from simulator.policy import PolicyBase
from tests.simulator.runs import replay


@dataclass(frozen=True)
class Preempting(PolicyBase):
    """Preempts the only request in the step `at`, while the one before is under way."""

    at: int
    drops: ClassVar[bool] = True
    preemption_drops_token: ClassVar[bool] = True

    @property
    def steps_in_flight(self) -> int:
        """Plans a step ahead."""
        return 2

    def plan(self, view: View) -> Batch | None:
        """A step a second, so that the time tells which it is."""
        if not view.running and not view.waiting:
            return None
        request = next(iter((*view.running, *view.waiting)))
        if view.under_way and len(view.running) and view.now_ns == (self.at - 2) * 10**9 and not request.preemptions:
            return Batch((), (), [request])
        if request in view.waiting:
            return Batch([(request, request.known)], ())
        return Batch() if view.decoding else None


@pytest.mark.parametrize(
    ("at", "output", "times"),
    [
        pytest.param(2, 3, [3, 4, 5], id="the first token"),
        pytest.param(3, 3, [1, 4, 5], id="a token of the decodes"),
        pytest.param(4, 4, [1, 2, 5, 6], id="the last of several"),
        pytest.param(3, 2, [1, 4], id="the last token"),
    ],
)
def test_token_is_sampled_again(at: int, output: int, times: list[int]) -> None:
    """The preempting step and the prompt that is computed again take a second each."""
    outcome = replay(Preempting(at), (0, 5, output))
    assert outcome.tokens == [times]
    assert outcome.result.requests["ttft_s"].tolist() == [times[0]]
    assert outcome.result.requests["itl_max_s"].tolist() == [max(b - a for a, b in pairwise(times))]
