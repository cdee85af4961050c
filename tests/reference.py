"""The slow, obvious engine ('the oracle'): every request is visited in every step, blocks and tokens one by one.

It is written from the schedulers' descriptions, apart from the package's policies and scheduler, and changes state as
it goes along like the engines do. The fast engine must agree with it in the time of every token. What the policies
decide is in `tests/reference_policies.py`, what becomes of memory in `tests/reference_blocks.py`.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.reference_blocks import Block, Memory

Price = Callable[[int, int, int, list[tuple[int, int]]], int]
Work = tuple["Job", int, str]
"""A request, how many tokens it computes in a step, and whether as "prefill" or "decode"."""


@dataclass(eq=False)
class Job:
    """A request; `sampled` and `known` include tokens whose step is still running.

    `text` is the content that can be found again, one character a token: nothing, the prompt, or the output as well.
    """

    index: int
    arrival_ns: int
    prompt: int
    output: int
    priority: int = 0
    text: str = ""
    computed: int = 0
    sampled: int = 0
    cached: int = 0
    admissions: int = 0
    blocks: list[Block] = field(default_factory=list)
    decoding: bool = False
    preemptions: int = 0
    status: str = ""
    times: list[int] = field(default_factory=list)

    @property
    def known(self) -> int:
        return self.prompt + self.sampled


class Reference:
    """One engine: waiting and running lists, blocks, and a clock. Subclasses say what a step runs.

    `reached` counts the corners that a run has come to.
    """

    null_blocks = 0

    def __init__(self, options: Mapping[str, Any], price: Price, block_size: int, num_blocks: int) -> None:
        self.o = dict(options)
        self.price = price
        self.total = num_blocks - self.null_blocks
        self.reached: Counter[str] = Counter()
        self.memory = Memory(self.total, block_size, self.reached)
        self.pages = self.memory.pages
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.depth = 1
        self.caching = False
        self.seen: list[object] = []
        self.victims: list[Job] = []
        self.steps: list[tuple[int, ...]] = []
        self.pictures: list[object] = []

    def schedule(self) -> list[Work] | None:
        """What the next step runs, booked; None if nothing happens."""
        raise NotImplementedError

    def impossible(self, job: Job) -> bool:
        """Whether a request can never run."""
        raise NotImplementedError

    def sort_waiting(self) -> None:
        """Waiting requests stay in order of arrival, preempted ones in front."""

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return len(self.memory.free)

    def run(self, jobs: list[Job]) -> None:
        """All requests from their arrival to their end."""
        coming, flying, now = list(jobs), list[tuple[int, list[Job]]](), 0
        while True:
            self.arrivals(coming, now)
            if len(flying) < self.depth:
                batch = self.schedule()
                if batch is not None:
                    start = max([now, *(end for end, _ in flying)])
                    flying.append(self.start(batch, start))
                    if len(flying) < self.depth:
                        continue
            if flying:
                now, emit = flying.pop(0)
                self.arrivals(coming, now)
                self.finish(emit, now)
            elif coming:
                now = coming[0].arrival_ns
            else:
                break
        for job in self.running + self.waiting:
            self.stall(job, "stalled at the end")

    def arrivals(self, coming: list[Job], now: int) -> None:
        """Whoever has come by now waits, or is rejected."""
        while coming and coming[0].arrival_ns <= now:
            job = coming.pop(0)
            self.seen.clear()
            if job.prompt + job.output != job.prompt + self.limit(job):
                self.reached["output cut at the model's length"] += 1
            if self.impossible(job):
                job.status = "rejected"
                self.reached["rejected"] += 1
            else:
                self.waiting.append(job)
                self.sort_waiting()

    def start(self, batch: list[Work], start: int) -> tuple[int, list[Job]]:
        """Price and write down a step; when it ends, and who gets a token then."""
        decodes = [job for job, _, kind in batch if kind == "decode"]
        chunks = [(job.computed - n, n) for job, n, kind in batch if kind == "prefill"]
        contexts = [job.computed for job in decodes]
        end = start + self.price(len(decodes), sum(contexts), max(contexts, default=0), chunks)
        emit = [job for job, _, _ in batch if job.computed == job.known]
        self.break_livelock(bool(emit))
        for job in emit:
            job.sampled += 1
            job.decoding = True
        step = {
            "start_ns": start,
            "end_ns": end,
            "num_decodes": len(decodes),
            "num_prefills": len(chunks),
            "prefill_tokens": sum(n for _, n in chunks),
            "kv_tokens": sum(job.computed for job in self.running),
            "free_blocks": self.free,
            "running": len(self.running),
            "waiting": len(self.waiting),
        }
        self.steps.append(tuple(step.values()))
        return end, emit

    def finish(self, emit: list[Job], now: int) -> None:
        """A step is over: its tokens are there, and who got the last one leaves."""
        for job in emit:
            job.times.append(now)
            if len(job.times) == self.limit(job):
                job.status = "finished"
                if job in self.running:
                    self.running.remove(job)
                    self.memory.release(job.blocks)
        if self.caching:
            self.pictures.append(self.memory.picture([job.blocks for job in self.running]))

    def break_livelock(self, emitted: bool) -> None:
        """The last preempted is dropped once a state returns without a token or an arrival in between.

        With cached blocks the state is known only with them; they are compared from the first return of the rest on.
        """
        if emitted:
            self.seen.clear()
        if self.victims:
            runs = [(job.index, job.computed) for job in self.running]
            state: object = (runs, [job.index for job in self.waiting])
            if self.caching and state in self.seen:
                state = (state, self.memory.picture([job.blocks for job in self.running]))
            if state in self.seen and self.victims[-1] in self.waiting:
                self.waiting.remove(self.victims[-1])
                self.stall(self.victims[-1], "livelock")
            self.seen.append(state)
        self.victims.clear()

    def stall(self, job: Job, why: str) -> None:
        """It will never run again."""
        job.status = "stalled"
        self.reached[why] += 1

    def limit(self, job: Job) -> int:
        """Tokens it will generate: the model's longest sequence cuts them."""
        length: int | None = self.o.get("max_model_len")
        if length is not None and job.prompt + job.output > length:
            return max(1, length - job.prompt)
        return job.output

    def awaits_last(self, job: Job) -> bool:
        """Whether all its tokens are there or under way."""
        return job.sampled == self.limit(job)

    def compute(self, job: Job, tokens: int) -> Work:
        """Book `tokens` tokens of a step."""
        kind = "decode" if job.decoding else "prefill"
        self.memory.grow(job.blocks, job.computed + tokens)
        job.computed += tokens
        return job, tokens, kind

    def admit(self, job: Job, reserve: int) -> None:
        """From the waiting list to the end of the running list, with blocks for `reserve` tokens."""
        self.waiting.remove(job)
        self.running.append(job)
        self.memory.grow(job.blocks, reserve)
        self.reached["resumed"] += job.admissions > 0
        job.admissions += 1

    def hopeless(self, job: Job) -> bool:
        """Whether a preempted request can never be admitted again."""
        return self.pages(job.known) > self.total

    def preempt(self, job: Job) -> None:
        """It loses its blocks and waits again, unless it awaits its last token or is hopeless."""
        self.reached["preemption"] += 1
        self.reached["preempted in its prompt"] += not job.decoding
        self.reached["several victims in one step"] += bool(self.victims)
        self.victims.append(job)
        self.running.remove(job)
        self.memory.release(job.blocks)
        job.computed = 0
        job.decoding = False
        job.preemptions += 1
        if self.awaits_last(job):
            self.reached["preempted while its last token is under way"] += 1
        elif self.hopeless(job):
            self.stall(job, "outgrew the cache")
        else:
            self.waiting.insert(0, job)
            self.sort_waiting()
