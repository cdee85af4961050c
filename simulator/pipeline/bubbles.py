"""Where the stages of a pipeline idle, by cause, to the nanosecond.

A stage's *span* is from the start of its first micro-batch to the end of its last. What is not busy in it is a gap
before some micro-batch k. Busy time, gaps by cause, and waiting for arrivals are together exactly the span.

On the first stage a nanosecond's cause is why k had not been planned, or could not start:

- As many micro-batches as may be are under way, and j, the oldest, is not complete though this stage is done with them
  all. So far as a stage takes longer over j than this one, the stages are *uneven*; so far as j had to be sent, it is
  *transfer*. The rest is SARATHI's (arXiv 2308.16369, section 3.2), by what j and k - 1 differ in: *PB1* if both have
  prompt tokens, and not as many; *PB2* if one of the two has; *PB3* if only their decodes differ.
- All requests are in micro-batches under way, some with tokens to come: the *dependency* of a decode on its own last
  stage. If none has, the pipeline *drains*.
- There are requests that could run and the policy schedules none: *not ready*.
- The engine's *host* is at work.
- There is no request: waiting for *arrivals*, which is no bubble.

A later stage waits, too, while k has not started at all; by the same causes. While the first micro-batch after a pause
passes the stages before it, that *fills* the pipeline. Otherwise it waits because k comes too late from the stage
before: because that took longer over k than this one over k - 1 (uneven stages, so far as this one takes less over k as
well; PB1 to PB3 by k - 1 and k), and because that had itself waited for k, which passes on its causes. What is left is
transfer.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.pipeline.log import ARRIVALS, DEPENDENCY, DRAIN, FULL, HOST, NOT_READY, StageTimes
from simulator.trace import Ints

CAUSES = (
    "prefill_lengths",
    "prefill_and_decode",
    "decode_contexts",
    "uneven_stages",
    "dependency",
    "fill_and_drain",
    "not_ready",
    "transfer",
    "host",
)
"""Of bubbles, as in the columns of `bubbles.csv`; the first three are SARATHI's PB1, PB2 and PB3."""
PB1, PB2, PB3, UNEVEN, DEPENDS, FILL, UNREADY, TRANSFER, HOSTED, IDLE = range(10)
"""Places of the causes, and of waiting for arrivals behind them."""
_STATE_CAUSES = {DEPENDENCY: DEPENDS, DRAIN: FILL, NOT_READY: UNREADY, ARRIVALS: IDLE, HOST: HOSTED}
_PASSED_ON = {ARRIVALS: FILL, DRAIN: FILL, NOT_READY: FILL, DEPENDENCY: DEPENDS}
"""What later stages wait for while the first micro-batch after such a state is on its way to them."""
_SLICE = 65536


@dataclass(frozen=True)
class Bubbles:
    """Nanoseconds of each stage: `span`, `busy`, and by cause as (stages, causes), waiting for arrivals the last.

    `before_ns` and `after_ns` are from the first work of the run to the stage's, and from the stage's last to the
    run's. `of_batch_ns`: the bubbles before each micro-batch, summed over stages.
    """

    span_ns: Ints
    busy_ns: Ints
    caused_ns: Ints
    before_ns: Ints
    after_ns: Ints
    of_batch_ns: Ints

    @property
    def bubble_ns(self) -> Ints:
        """Bubbles of each stage."""
        return np.asarray(self.caused_ns[:, :IDLE].sum(axis=1))

    @property
    def idle_ns(self) -> Ints:
        """Waiting for arrivals, each stage."""
        return np.asarray(self.caused_ns[:, IDLE])


def bubbles(times: StageTimes, prefill_tokens: Ints) -> Bubbles:
    """The bubbles of a run whose micro-batches had so many prompt tokens each.

    O(micro-batches x stages), after pauses O(stages) times that.
    """
    count, stages = times.start_ns.shape
    caused = np.zeros((stages, IDLE + 1), np.int64)
    of_batch = np.zeros(count, np.int64)
    states = _States(times.state_ns, times.state)
    for first in range(1, count, _SLICE):
        gaps = _Gaps(times, prefill_tokens, states, np.arange(first, min(first + _SLICE, count)))
        for stage, parts in enumerate(gaps.of_stages()):
            caused[stage] += parts.sum(axis=1)
            of_batch[gaps.batch] += parts[:IDLE].sum(axis=0)
    starts, ends = times.start_ns[:1], times.end_ns[-1:]
    return Bubbles(
        span_ns=np.asarray((ends - starts).reshape(-1)),
        busy_ns=np.asarray((times.end_ns - times.start_ns).sum(axis=0)),
        caused_ns=caused,
        before_ns=np.asarray((starts - times.start_ns[:1].min(initial=2**62)).reshape(-1)),
        after_ns=np.asarray((times.end_ns[-1:].max(initial=0) - ends).reshape(-1)),
        of_batch_ns=of_batch,
    )


def causes_of_gaps(times: StageTimes, prefill_tokens: Ints, batches: range) -> Ints:
    """Nanoseconds of the gap before each of the consecutive micro-batches, not the first of the run: (stages, causes,
    micro-batches), with waiting for arrivals the last cause. O(states + micro-batches x stages^2)."""
    states = _States(times.state_ns, times.state)
    gaps = _Gaps(times, prefill_tokens, states, np.arange(batches.start, batches.stop))
    return np.array(list(gaps.of_stages()))


class _States:
    """Why nothing was planned, as a function of time: nanoseconds of each state up to any time."""

    def __init__(self, from_ns: Ints, state: Ints) -> None:
        self._from_ns, self._state = from_ns, state
        lasted = np.diff(from_ns)
        self._up_to = {
            which: np.append(0, np.cumsum(np.where(state[:-1] == which, lasted, 0))) for which in (FULL, *_STATE_CAUSES)
        }

    def time_ns(self, which: int, begin_ns: Ints, end_ns: Ints) -> Ints:
        """How long it was `which` in each interval; 0 where that ends before it begins."""
        inside = self._until(which, np.maximum(begin_ns, end_ns)) - self._until(which, begin_ns)
        return np.asarray(inside)

    def before(self, at_ns: Ints) -> Ints:
        """The state just before each time, or before the host's work that ended then."""
        place = np.searchsorted(self._from_ns, at_ns, side="left") - 1
        place -= self._state[np.maximum(place, 0)] == HOST
        return np.asarray(np.where(place >= 0, self._state[np.maximum(place, 0)], ARRIVALS))

    def _until(self, which: int, at_ns: Ints) -> Ints:
        place = np.maximum(np.searchsorted(self._from_ns, at_ns, side="right") - 1, 0)
        beyond = np.where(self._state[place] == which, np.maximum(at_ns - self._from_ns[place], 0), 0)
        return np.asarray(self._up_to[which][place] + beyond)


class _Gaps:
    """The gaps before the micro-batches `batch`, each after another one."""

    def __init__(self, times: StageTimes, prefill_tokens: Ints, states: _States, batch: Ints) -> None:
        self.batch, self._states = batch, states
        self._starts, self._ends, self._sent = (
            column[batch] for column in (times.start_ns, times.end_ns, times.sent_ns)
        )
        self._before_ns = times.end_ns[batch - 1]
        self._took = self._ends - self._starts
        self._took_before = times.end_ns[batch - 1] - times.start_ns[batch - 1]
        oldest = np.maximum(batch - times.stages, 0)
        self._oldest_took = times.end_ns[oldest] - times.start_ns[oldest]
        self._oldest_sending = (times.sent_ns[oldest] - times.end_ns[oldest]).sum(axis=1) // times.stages
        self._unlike = _unlike(prefill_tokens[batch - 1], prefill_tokens[batch])
        self._unlike_oldest = _unlike(prefill_tokens[oldest], prefill_tokens[batch - 1])
        self._planned, self._followed = times.planned_ns[batch], times.followed[batch]
        self._fed = np.clip(times.depends_ns[batch], self._planned, self._starts[:, 0])
        self._reason = self._why_late()

    def of_stages(self) -> Iterator[Ints]:
        """Nanoseconds by cause of the gap before each micro-batch, stage after stage."""
        parts = np.zeros((IDLE + 1, len(self.batch)), np.int64)
        self._before_the_first(parts, 0, self._before_ns[:, 0])
        yield parts
        for stage in range(1, self._starts.shape[1]):
            parts = self._of_later_stage(stage, parts)
            yield parts

    def _of_later_stage(self, stage: int, stage_before: Ints) -> Ints:
        begin = self._before_ns[:, stage]
        paused = (begin <= self._starts[:, 0]) & (self._reason >= 0)
        parts = np.where(paused, self._after_a_pause(stage, begin), 0)
        gap = np.where(paused, 0, self._starts[:, stage] - begin)
        longer = np.clip(self._took[:, stage - 1] - self._took_before[:, stage], 0, gap)
        self._unlike_parts(parts, longer, self._took[:, stage - 1] - self._took[:, stage], self._unlike)
        gap -= longer
        passed_on = np.minimum(gap, stage_before.sum(axis=0))
        parts += _scaled(stage_before, passed_on)
        gap -= passed_on
        sending = np.minimum(gap, self._sent[:, stage - 1] - self._ends[:, stage - 1])
        parts[TRANSFER] += sending
        parts[HOSTED] += gap - sending
        return parts

    def _after_a_pause(self, stage: int, begin: Ints) -> Ints:
        """Of gaps that begin before the micro-batch starts on the first stage."""
        parts = np.zeros((IDLE + 1, len(self.batch)), np.int64)
        self._before_the_first(parts, stage, begin)
        for earlier in range(stage):
            start, end, sent = self._starts[:, earlier], self._ends[:, earlier], self._sent[:, earlier]
            for cause in (FILL, DEPENDS):
                parts[cause] += np.where(self._reason == cause, _overlap(begin, start, end), 0)
            parts[TRANSFER] += _overlap(begin, end, sent)
            parts[HOSTED] += _overlap(begin, sent, self._starts[:, earlier + 1])
        return parts

    def _before_the_first(self, parts: Ints, stage: int, begin: Ints) -> None:
        """What the gap has of the time before the micro-batch starts on the first stage."""
        planned, states = self._planned, self._states
        for state, cause in _STATE_CAUSES.items():
            parts[cause] += states.time_ns(state, begin, planned)
        full = states.time_ns(FULL, begin, planned)
        fed = _overlap(begin, planned, self._fed)
        parts[DEPENDS] += np.where(self._followed, 0, fed)
        parts[HOSTED] += _overlap(begin, self._fed, self._starts[:, 0])
        full += np.where(self._followed, fed, 0)
        sending = np.minimum(full, self._oldest_sending)
        parts[TRANSFER] += sending
        uneven = self._oldest_took.max(axis=1) - self._oldest_took[:, stage]
        self._unlike_parts(parts, full - sending, uneven, self._unlike_oldest)

    def _unlike_parts(self, parts: Ints, time_ns: Ints, uneven: Ints, unlike: Ints) -> None:
        """Share `time_ns` out to uneven stages, up to `uneven`, and to what micro-batches differ in."""
        of_stages = np.clip(uneven, 0, time_ns)
        parts[UNEVEN] += of_stages
        for cause in (PB1, PB2, PB3):
            parts[cause] += np.where(unlike == cause, time_ns - of_stages, 0)

    def _why_late(self) -> Ints:
        """Why the first stage had to wait for each micro-batch, as what later stages wait for; -1 if it was full."""
        state = self._states.before(self._planned)
        passed_on = np.full(len(self.batch), -1)
        for which, cause in _PASSED_ON.items():
            passed_on[state == which] = cause
        by_tokens = (self._fed > self._planned) & (self._fed > self._before_ns[:, 0])
        passed_on[by_tokens] = np.where(self._followed, -1, DEPENDS)[by_tokens]
        return passed_on


def _scaled(parts: Ints, total: Ints) -> Ints:
    """`parts` (causes, micro-batches) made smaller so that they sum to `total`; what rounding leaves goes to the
    largest."""
    whole = np.maximum(parts.sum(axis=0), 1)
    shares = (parts * (total / whole)).astype(np.int64)
    largest = parts.argmax(axis=0), np.arange(len(total))
    shares[largest] += total - shares.sum(axis=0)
    return np.asarray(shares)


def _overlap(from_ns: Ints, begin_ns: Ints, end_ns: Ints) -> Ints:
    """How much of each interval lies behind `from_ns`."""
    return np.asarray(np.maximum(end_ns - np.maximum(begin_ns, from_ns), 0))


def _unlike(prefill_tokens: Ints, others: Ints) -> NDArray[np.int64]:
    """What two micro-batches differ in, by their prompt tokens."""
    either = np.where((prefill_tokens > 0) ^ (others > 0), PB2, PB3)
    both = (prefill_tokens > 0) & (others > 0) & (prefill_tokens != others)
    return np.where(both, PB1, either)
