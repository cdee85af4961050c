"""Who preempts whom without end is given up on, and nobody else: a slow recovery that makes progress is not cut off."""

from collections.abc import Callable, Sequence

from simulator.core import Batch, Request, View
from simulator.engine import simulate
from simulator.policy import PolicyBase
from simulator.runlog import STATUS_NAMES
from simulator.step_times import GpuTimes
from tests.simulator.runs import ONE_SECOND_A_STEP


class Scripted(PolicyBase):
    """Runs the given batches, one a step, and remembers what is cached."""

    caches_prefixes = True

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = list(batches)

    def plan(self, _: View) -> Batch | None:
        return self._batches.pop(0) if self._batches else None


def fates(script: Callable[[Request, Request], list[Batch]], prefixes: bool) -> list[str]:
    """How two requests of 10 + 4 and 12 + 1 tokens end; the second's first two blocks of four tokens have keys."""
    one, two = Request(0, 0, 10, 4), Request(1, 0, 12, 1)
    two.keys = [1, 2]
    policy = Scripted(script(one, two))
    log = simulate(
        iter([one, two]), policy, GpuTimes(ONE_SECOND_A_STEP), block_size=4, num_blocks=20, prefixes=prefixes
    )
    status = dict(zip(log.requests["request"].tolist(), log.requests["status"].tolist(), strict=True))
    return [STATUS_NAMES[status[0]], STATUS_NAMES[status[1]]]


def test_a_decode_counts_with_what_it_has_computed() -> None:
    """The first decodes to 11 tokens while the second waits; later it has 10 again, which is another state."""

    def script(one: Request, two: Request) -> list[Batch]:
        return [
            Batch([(one, 10), (two, 2)]),
            Batch(decodes=[one], preempted=[two]),
            Batch(preempted=[one]),
            Batch([(one, 5), (two, 1)]),
            Batch([(one, 5)], preempted=[two]),
            Batch([(one, 2)]),
            Batch(),
            Batch([(two, 12)]),
        ]

    assert fates(script, prefixes=False) == ["finished", "finished"]


def test_a_token_in_between() -> None:
    """The first has 11 tokens computed when the second is preempted, and again after another token: not without end."""

    def script(one: Request, two: Request) -> list[Batch]:
        return [
            Batch([(one, 10), (two, 2)]),
            Batch(decodes=[one], preempted=[two]),
            Batch(),
            Batch(preempted=[one]),
            Batch([(one, 5), (two, 1)]),
            Batch([(one, 6)], preempted=[two]),
            Batch([(one, 2)]),
            Batch([(two, 12)]),
        ]

    assert fates(script, prefixes=False) == ["finished", "finished"]


def test_what_is_cached_is_part_of_the_state() -> None:
    """The second is preempted twice with the same company, but with one more block cached: its third try succeeds."""

    def script(one: Request, two: Request) -> list[Batch]:
        return [
            Batch([(one, 4), (two, 4)]),
            Batch(preempted=[two]),
            Batch([(two, 4)]),
            Batch(preempted=[two]),
            Batch([(two, 4)]),
            Batch([(one, 6)]),
            *[Batch()] * 3,
        ]

    assert fates(script, prefixes=True) == ["finished", "finished"]


def test_a_state_that_returns_with_its_cache_is_without_end() -> None:
    """The second is preempted over and over and what it leaves behind stays the same: it is given up on."""

    def script(one: Request, two: Request) -> list[Batch]:
        again = [Batch([(two, 2)]), Batch(preempted=[two])]
        return [
            Batch([(one, 4), (two, 4)]),
            Batch(preempted=[two]),
            *again,
            *again,
            Batch([(one, 6)]),
            *[Batch()] * 3,
        ]

    assert fates(script, prefixes=True) == ["finished", "stalled"]
