"""Bubbles one gap at a time, from the description in `simulator.pipeline.bubbles`, apart from its arrays."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from simulator.pipeline.log import ARRIVALS, DEPENDENCY, DRAIN, FULL, HOST, NOT_READY
from simulator.runlog import LoggedRun

Parts = Counter[str]
"""Nanoseconds by cause."""
WHY = {
    DEPENDENCY: "dependency",
    DRAIN: "fill_and_drain",
    NOT_READY: "not_ready",
    ARRIVALS: "arrivals",
    HOST: "host",
}


@dataclass
class Batch:
    """A micro-batch: (start, end, when it is at the next stage) of each stage, and what it runs."""

    stages: list[tuple[int, int, int]]
    planned: int
    tokens_at: int
    followed: bool
    prompt_tokens: int
    decodes: int

    def took(self, stage: int) -> int:
        """Nanoseconds on a stage."""
        start, end, _ = self.stages[stage]
        return end - start


@dataclass
class SlowBubbles:
    """All gaps of a run: `of_stages` by cause, and the bubbles `before` each micro-batch on all stages together."""

    batches: list[Batch]
    states: list[tuple[int, int]]
    of_stages: list[Parts] = field(default_factory=list)
    before: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.of_stages = [Counter() for _ in self.batches[0].stages] if self.batches else []
        self.before = [0 for _ in self.batches]
        for k in range(1, len(self.batches)):
            parts: Parts = Counter()
            for stage, total in enumerate(self.of_stages):
                parts = self.gap(k, stage, parts)
                assert min(parts.values(), default=0) >= 0
                total.update(parts)
                self.before[k] += parts.total() - parts["arrivals"]

    def gap(self, k: int, stage: int, of_stage_before: Parts) -> Parts:
        """What `stage` waits for before micro-batch k."""
        begin, start = self.batches[k - 1].stages[stage][1], self.batches[k].stages[0][0]
        if stage == 0:
            return self.until_start(k, 0, begin)
        pause = self.pause(k)
        if begin <= start and pause:
            return self.until_start(k, stage, begin) + self.on_its_way(k, stage, begin, pause)
        return self.late(k, stage, of_stage_before)

    def until_start(self, k: int, stage: int, begin: int) -> Parts:
        """Until it starts on the first stage."""
        batch = self.batches[k]
        parts: Parts = Counter()
        for since, until, state in self.spells(batch.planned):
            if state != FULL:
                parts[WHY[state]] += max(0, until - max(since, begin))
        first = self.full(k, self.batches[k - 1].stages[0][1])
        spans = zip(self.full(k, begin), first, (begin, max(begin, batch.planned)), strict=True)
        for time, of_first, since in spans:
            parts.update(self.held_up(k, stage, since, time, of_first))
        if not batch.followed:
            parts["dependency"] += max(0, self.fed(k) - max(begin, batch.planned))
        parts["host"] += max(0, batch.stages[0][0] - max(begin, self.fed(k)))
        return +parts

    def fed(self, k: int) -> int:
        """When its tokens are there, if it waits for any."""
        batch = self.batches[k]
        return min(max(batch.tokens_at, batch.planned), batch.stages[0][0])

    def full(self, k: int, begin: int) -> tuple[int, int]:
        """How long it is held up by the oldest under way, from `begin` until it is planned, and then for tokens."""
        batch = self.batches[k]
        spells = [(since, until) for since, until, state in self.spells(batch.planned) if state == FULL]
        fed = max(0, self.fed(k) - max(begin, batch.planned)) if batch.followed else 0
        return sum(max(0, until - max(since, begin)) for since, until in spells), fed

    def held_up(self, k: int, stage: int, since: int, time: int, of_first: int) -> Parts:
        """By the oldest micro-batch under way, as many as may be being under way."""
        if not time:
            return Counter()
        oldest = next(batch for batch in self.batches if batch.stages[-1][1] > since)
        stages = range(len(oldest.stages))
        turn = range(max(1, k - len(stages) + 1), k + 1)
        of_round = sum(sum(self.full(i, self.batches[i - 1].stages[0][1])) for i in turn)
        sends = sum(sent - end for _, end, sent in oldest.stages) * of_first // of_round
        parts: Parts = Counter(transfer=min(time, sends))
        parts["uneven_stages"] = min(time - parts["transfer"], max(map(oldest.took, stages)) - oldest.took(stage))
        parts[self.unlike(oldest, self.batches[k - 1])] += time - parts.total()
        return parts

    def on_its_way(self, k: int, stage: int, begin: int, cause: str) -> Parts:
        """While it passes the stages before."""
        parts: Parts = Counter()
        for earlier in range(stage):
            start, end, sent = self.batches[k].stages[earlier]
            parts[cause] += max(0, end - max(begin, start))
            parts["transfer"] += max(0, sent - max(begin, end))
            parts["host"] += max(0, self.batches[k].stages[earlier + 1][0] - max(begin, sent))
        return parts

    def late(self, k: int, stage: int, of_stage_before: Parts) -> Parts:
        """It comes too late from the stage before."""
        before, batch = self.batches[k - 1], self.batches[k]
        left = batch.stages[stage][0] - before.stages[stage][1]
        parts: Parts = Counter()
        longer = min(left, max(0, batch.took(stage - 1) - before.took(stage)))
        parts["uneven_stages"] = min(longer, max(0, batch.took(stage - 1) - batch.took(stage)))
        parts[self.unlike(before, batch)] += longer - parts["uneven_stages"]
        left -= longer
        whole = of_stage_before.total()
        if passed_on := min(left, whole):
            shares = {cause: time * passed_on // whole for cause, time in of_stage_before.items()}
            order = [*ORDER, "arrivals"]
            largest = max(shares, key=lambda cause: (of_stage_before[cause], -order.index(cause)))
            shares[largest] += passed_on - sum(shares.values())
            parts.update(shares)
            left -= passed_on
        _, end, sent = batch.stages[stage - 1]
        parts["transfer"] += min(left, sent - end)
        parts["host"] += max(0, left - (sent - end))
        return parts

    def pause(self, k: int) -> str:
        """After which cause it comes, as later stages call it; empty if the pipeline was full."""
        batch, before = self.batches[k], self.batches[k - 1]
        if batch.planned < batch.tokens_at <= batch.stages[0][0] and batch.tokens_at > before.stages[0][1]:
            return "" if batch.followed else "dependency"
        states = [state for since, _, state in self.spells(batch.planned) if since < batch.planned]
        if states and states[-1] == HOST:
            states.pop()
        state = states[-1] if states else ARRIVALS
        return {FULL: "", DEPENDENCY: "dependency", NOT_READY: "not_ready"}.get(state, "fill_and_drain")

    def spells(self, until: int) -> Iterator[tuple[int, int, int]]:
        """(since, until, state) of all states, up to a time."""
        ends = [since for since, _ in self.states[1:]] + [until]
        for (since, state), end in zip(self.states, ends, strict=True):
            yield since, min(end, until), state

    @staticmethod
    def unlike(one: Batch, other: Batch) -> str:
        """What two micro-batches differ in."""
        if bool(one.prompt_tokens) != bool(other.prompt_tokens):
            return "prefill_and_decode"
        if one.prompt_tokens and (one.prompt_tokens != other.prompt_tokens or not one.decodes + other.decodes):
            return "prefill_lengths"
        return "decode_contexts"


ORDER = (
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


def slow_bubbles(run: LoggedRun) -> SlowBubbles:
    """The bubbles of a pipelined run."""
    assert run.pipeline is not None
    times: Any = run.pipeline
    batches = [
        Batch(
            [
                tuple(row)
                for row in zip(*(c[k].tolist() for c in (times.start_ns, times.end_ns, times.sent_ns)), strict=True)
            ],
            int(times.planned_ns[k]),
            int(times.depends_ns[k]),
            bool(times.followed[k]),
            int(run.iterations["prefill_tokens"][k]),
            int(run.iterations["num_decodes"][k]),
        )
        for k in range(len(times.planned_ns))
    ]
    return SlowBubbles(batches, list(zip(times.state_ns.tolist(), times.state.tolist(), strict=True)))
