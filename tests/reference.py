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
Clock = Callable[["Step", list["Step"], int], None]
"""Says when a step planned now starts and ends, those before it being under way; it may put off their ends."""


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


@dataclass(eq=False)
class Step:
    """A step: what it computes, who gets a token at its end, and how queues and memory are after scheduling it."""

    chunks: list[tuple[int, int]]
    contexts: list[int]
    emit: list[Job] = field(default_factory=list)
    prompts: list[Job] = field(default_factory=list)
    preempted: list[Job] = field(default_factory=list)
    empty: bool = False
    planned: int = 0
    waits: int = 0
    stages: list[tuple[int, int]] = field(default_factory=list)
    start: int = 0
    end: int = 0
    gpu_end: int = 0
    after: tuple[int, ...] = ()

    @property
    def row(self) -> tuple[int, ...]:
        """As a row of iterations."""
        prefill_tokens = sum(n for _, n in self.chunks)
        return self.start, self.end, len(self.contexts), len(self.chunks), prefill_tokens, *self.after


class Reference:
    """One engine: waiting and running lists, blocks, and a clock. Subclasses say what a step runs.

    `reached` counts the corners that a run has come to.
    """

    null_blocks = 0
    hides_prompts = True
    """Whether a prompt is out of reach while a chunk of it goes through the stages."""

    def __init__(self, options: Mapping[str, Any], price: Price, block_size: int, num_blocks: int) -> None:
        self.o = dict(options)
        self.price = price
        self.clock: Clock = self.gpu_alone
        self.pause: Callable[[int], int] = lambda _: 0
        self.arrival_ns = 0
        self.total = num_blocks - self.null_blocks
        self.reached: Counter[str] = Counter()
        self.memory = Memory(self.total, block_size, self.reached)
        self.pages = self.memory.pages
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.depth = 1
        self.stages = 1
        self.split = [(0, 1)]
        """The first layer of each stage, and the first behind it."""
        self.send: Callable[[int], int] = lambda _: 0
        self.flying: list[Step] = []
        self.planned: list[Step] = []
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

    @property
    def by_turns(self) -> bool:
        """Whether decodes come back after as many steps as there are stages, not when theirs is complete."""
        return self.depth > 1

    def in_reach(self, job: Job) -> bool:
        """Whether no step under way keeps it from the next one."""
        if self.stages == 1:
            return True
        if self.by_turns:
            recent = self.planned[-(self.stages - 1) :] if self.flying else []
            return not any(job in step.emit and job not in step.preempted for step in recent)
        flying = [step for step in self.flying if job not in step.preempted]
        return not any(job in step.emit or (self.hides_prompts and job in step.prompts) for step in flying)

    def at_hand(self) -> list[Job]:
        """The running requests in reach, in order."""
        return [job for job in self.running if self.in_reach(job)]

    def run(self, jobs: list[Job]) -> None:
        """All requests from their arrival to their end."""
        coming, flying, now = list(jobs), self.flying, 0
        places = self.depth + self.stages - 1
        while True:
            self.arrivals(coming, now)
            if len(flying) < places:
                batch = self.schedule()
                if batch is not None:
                    step = self.start(batch)
                    self.clock(step, flying, now)
                    flying.append(step)
                    self.planned.append(step)
                    if len(flying) < places:
                        continue
                elif self.stages > 1 and self.by_turns and not all(step.empty for step in flying):
                    self.reached["a step with nothing to do"] += 1
                    step = Step([], [], empty=True, end=flying[-1].end)
                    flying.append(step)
                    self.planned.append(step)
            polls = self.stages > 1 and self.hides_prompts and not self.by_turns
            if polls and coming and len(flying) < places and flying and self.seen_at(coming[0]) < flying[0].end:
                now = self.seen_at(coming[0])
                continue
            if flying:
                step = flying.pop(0)
                now = step.end + self.pause(sum(job.decoding and not self.awaits_last(job) for job in self.running))
                self.arrivals(coming, now)
                self.finish(step)
            elif coming:
                now = max(now, self.seen_at(coming[0]))
            else:
                break
        for job in self.running + self.waiting:
            self.stall(job, "stalled at the end")

    def gpu_alone(self, step: Step, flying: list[Step], now: int) -> None:
        """The clock of a GPU whose host takes no time."""
        contexts, chunks = self.on_gpu(step)
        step.start = max([now, *(other.end for other in flying)])
        step.end = step.start + self.price(len(contexts), sum(contexts), max(contexts, default=0), chunks)

    def stages_alone(self, step: Step, _: list[Step], now: int) -> None:
        """The clock of a pipeline whose host takes no time."""
        earlier = [other for other in self.planned if not other.empty]
        contexts, chunks = self.on_gpu(step)
        whole = self.price(len(contexts), sum(contexts), max(contexts, default=0), chunks)
        tokens = len(contexts) + sum(n for _, n in chunks)
        step.planned = at = now
        if self.by_turns and contexts:
            fed = self.planned[-self.stages :][:1] if len(self.planned) >= self.stages else []
            at = max([now, *(other.end for other in fed if not other.empty)])
        for stage, (first, last) in enumerate(self.split):
            done = earlier[-1].stages[stage][1] if earlier else 0
            time = whole * last // self.split[-1][1] - whole * first // self.split[-1][1]
            start = max(at, done)
            step.stages.append((start, start + time))
            at = start + time + (self.send(tokens) if tokens else 0)
        step.start, step.end = step.stages[0][0], step.stages[-1][1]

    def on_gpu(self, step: Step) -> tuple[list[int], list[tuple[int, int]]]:
        """Contexts of decodes and chunks that the GPU computes for a step just booked: its own."""
        return step.contexts, step.chunks

    def seen_at(self, job: Job) -> int:
        """When it has come through the server to the scheduler."""
        return job.arrival_ns + self.arrival_ns

    def arrivals(self, coming: list[Job], now: int) -> None:
        """Whoever has come by now waits, or is rejected."""
        while coming and self.seen_at(coming[0]) <= now:
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

    def start(self, batch: list[Work]) -> Step:
        """Book a step."""
        step = Step(
            chunks=[(job.computed - n, n) for job, n, kind in batch if kind == "prefill"],
            contexts=[job.computed for job, _, kind in batch if kind == "decode"],
            emit=[job for job, _, _ in batch if job.computed == job.known],
            prompts=[job for job, _, kind in batch if kind == "prefill"],
        )
        self.break_livelock(bool(step.emit))
        for job in step.emit:
            job.sampled += 1
            job.decoding = True
        kv_tokens = sum(job.computed for job in self.running)
        step.after = (kv_tokens, self.free, len(self.running), len(self.waiting))
        return step

    def finish(self, step: Step) -> None:
        """A step is over: its tokens are there, and who got the last one leaves."""
        if not step.empty:
            self.steps.append(step.row)
        for job in step.emit:
            job.times.append(step.end)
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
        if self.victims and not (self.stages > 1 and any(step.emit for step in self.flying)):
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
        for step in self.planned:
            step.preempted.append(job)
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
