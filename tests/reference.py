"""The slow, obvious engine: every request is visited in every step, memory and tokens are counted one by one.

It is written from the schedulers' descriptions, apart from the package's policies and scheduler, and changes state as
it goes along like the engines do. The fast engine must agree with it in the time of every token.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Price = Callable[[int, int, list[tuple[int, int]]], int]


@dataclass(eq=False)
class Job:
    """A request; `sampled` and `known` include tokens whose step is still running."""

    index: int
    arrival_ns: int
    prompt: int
    output: int
    priority: int = 0
    computed: int = 0
    sampled: int = 0
    blocks: int = 0
    decoding: bool = False
    preemptions: int = 0
    status: str = ""
    times: list[int] = field(default_factory=list)

    @property
    def known(self) -> int:
        return self.prompt + self.sampled

    @property
    def prefilling(self) -> bool:
        return not self.decoding


class Reference:
    """One engine: waiting and running lists, a count of free blocks, and a clock."""

    def __init__(self, policy: str, options: Mapping[str, Any], price: Price, block_size: int, num_blocks: int) -> None:
        self.o = dict(options)
        self.price = price
        self.block_size = block_size
        self.total = self.free = num_blocks - (1 if policy == "vllm" else 0)
        self.schedule: Callable[[], list[tuple[Job, int, str]] | None] = getattr(self, policy)
        self.policy = policy
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.depth = 2 if policy == "vllm" and options["async_scheduling"] else 1
        self.seen: list[object] = []
        self.victims: list[Job] = []
        self.steps: list[tuple[int, int, int, int, int, int]] = []

    def run(self, jobs: list[Job]) -> None:
        coming, flying, now, gpu_free = list(jobs), [], 0, 0
        while True:
            while coming and coming[0].arrival_ns <= now:
                self.arrive(coming.pop(0))
            if len(flying) < self.depth:
                batch = self.schedule()
                if batch is not None:
                    decodes = [job for job, _, kind in batch if kind == "decode"]
                    chunks = [(job.computed - n, n) for job, n, kind in batch if kind == "prefill"]
                    duration = self.price(len(decodes), sum(job.computed for job in decodes), chunks)
                    start = max(now, gpu_free)
                    gpu_free = start + duration
                    emit = [job for job, _, _ in batch if job.computed == job.known]
                    self.break_livelock(bool(emit))
                    for job in emit:
                        job.sampled += 1
                        job.decoding = True
                    self.steps.append(
                        (
                            start,
                            gpu_free,
                            len(decodes),
                            sum(n for _, n in chunks),
                            self.free,
                            len(self.running),
                        )
                    )
                    flying.append((gpu_free, emit))
                    if len(flying) < self.depth:
                        continue
            if flying:
                now, emit = flying.pop(0)
                while coming and coming[0].arrival_ns <= now:
                    self.arrive(coming.pop(0))
                for job in emit:
                    job.times.append(now)
                    if len(job.times) == self.limit(job):
                        job.status = "finished"
                        if job in self.running:
                            self.running.remove(job)
                            self.free += job.blocks
            elif coming:
                now = coming[0].arrival_ns
            else:
                for job in self.running + self.waiting:
                    job.status = "stalled"
                return

    def break_livelock(self, emitted: bool) -> None:
        """The last preempted is dropped once a state returns without a token or an arrival in between."""
        if emitted:
            self.seen.clear()
        elif self.victims:
            state = ([(job.index, job.computed) for job in self.running], [job.index for job in self.waiting])
            if state in self.seen and self.victims[-1] in self.waiting:
                self.waiting.remove(self.victims[-1])
                self.victims[-1].status = "stalled"
            self.seen.append(state)
        self.victims.clear()

    def limit(self, job: Job) -> int:
        length = self.o.get("max_model_len")
        if length is not None and job.prompt + job.output > length:
            return max(1, length - job.prompt)
        return job.output

    def arrive(self, job: Job) -> None:
        self.seen.clear()
        if self.impossible(job):
            job.status = "rejected"
        else:
            self.waiting.append(job)
            self.sort_waiting()

    def sort_waiting(self) -> None:
        if self.policy == "vllm" and self.o["scheduling_policy"] == "priority":
            self.waiting.sort(key=lambda job: (job.priority, job.arrival_ns, job.index))

    def impossible(self, job: Job) -> bool:
        length = self.o.get("max_model_len")
        if self.policy == "vllm":
            return job.prompt >= length or self.pages(job.prompt) > self.total
        if self.policy == "sarathi":
            return self.pages(job.prompt) > self.total - self.total // 100
        return job.prompt > length or self.pages(self.orca_slots(job)) > self.total

    def hopeless(self, job: Job) -> bool:
        return self.pages(job.known) > self.total - (self.total // 100 if self.policy == "sarathi" else 0)

    def orca_slots(self, job: Job) -> int:
        return self.o["max_model_len"] if self.o["reservation"] == "max_model_len" else job.prompt + self.limit(job)

    def pages(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def compute(self, job: Job, tokens: int) -> tuple[Job, int, str]:
        kind = "prefill" if job.prefilling else "decode"
        grown = max(job.blocks, self.pages(job.computed + tokens))
        self.free -= grown - job.blocks
        assert self.free >= 0
        job.blocks = grown
        job.computed += tokens
        return job, tokens, kind

    def admit(self, job: Job, reserve: int) -> None:
        self.waiting.remove(job)
        self.running.append(job)
        job.blocks = self.pages(reserve)
        self.free -= job.blocks
        assert self.free >= 0

    def preempt(self, job: Job) -> None:
        self.victims.append(job)
        self.running.remove(job)
        self.free += job.blocks
        job.blocks = job.computed = 0
        job.decoding = False
        job.preemptions += 1
        if job.sampled == self.limit(job):
            return  # only its last output is awaited
        if self.hopeless(job):
            job.status = "stalled"
        else:
            self.waiting.insert(0, job)
            self.sort_waiting()

    def vllm(self) -> list[tuple[Job, int, str]] | None:
        budget, length = self.o["max_num_batched_tokens"], self.o["max_model_len"]
        threshold = self.o["long_prefill_token_threshold"]
        scheduled: dict[Job, int] = {}
        pages: dict[Job, int] = {}
        preempted = False
        place = 0
        while place < len(self.running) and budget > 0:
            job = self.running[place]
            if job.sampled == self.limit(job):
                place += 1
                continue
            n = job.known - job.computed
            if 0 < threshold < n:
                n = threshold
            n = min(n, budget, length - 1 - job.computed)
            if n <= 0:
                place += 1
                continue
            gone = False
            while self.pages(job.computed + n) - job.blocks > self.free:
                if self.o["scheduling_policy"] == "priority":
                    victim = max(self.running, key=lambda other: (other.priority, other.arrival_ns))
                else:
                    victim = self.running[-1]
                if victim in scheduled:
                    budget += scheduled.pop(victim)
                    pages.pop(victim)
                if self.running.index(victim) < place:
                    place -= 1
                self.preempt(victim)
                preempted = True
                if victim is job:
                    gone = True
                    break
            if gone:
                break
            self.free -= max(0, self.pages(job.computed + n) - job.blocks)
            job.blocks = max(job.blocks, self.pages(job.computed + n))
            scheduled[job] = n
            pages[job] = job.blocks
            budget -= n
            place += 1
        if not preempted:
            while self.waiting and budget > 0 and len(self.running) < self.o["max_num_seqs"]:
                job = self.waiting[0]
                n = job.known
                if 0 < threshold < n:
                    n = threshold
                if n > budget and not self.o["enable_chunked_prefill"]:
                    break
                n = min(n, budget)
                if self.o["scheduler_reserve_full_isl"] and self.pages(job.known) > self.free:
                    break
                if self.pages(n) > self.free:
                    break
                self.admit(job, 0)
                scheduled[job] = n
                self.free -= self.pages(n)
                job.blocks = self.pages(n)
                budget -= n
        if not scheduled and not preempted:
            return None
        return [self.compute(job, n) for job, n in scheduled.items()]

    def sarathi(self) -> list[tuple[Job, int, str]] | None:
        batch: list[tuple[Job, int, str]] = []
        preempted = False
        queue = sorted(self.running, key=lambda job: (job.arrival_ns, job.index))
        partial = []
        while queue:
            job = queue.pop(0)
            if job.prefilling:
                partial.append(job)
                continue
            while self.free == 0:
                victim = queue.pop() if queue else job
                self.preempt(victim)
                preempted = True
                if victim is job:
                    break
            else:
                batch.append(self.compute(job, 1))
        decodes, spent, prefills = len(batch), 0, 0
        for job in [job for job in self.running if job in partial]:
            n = self.sarathi_chunk(job.known - job.computed, decodes, spent, prefills)
            if n > 0:
                batch.append(self.compute(job, n))
                spent += n
                prefills += 1
        while self.waiting and not preempted and len(self.running) < self.o["max_num_seqs"]:
            job = self.waiting[0]
            if self.free - self.pages(job.known) < self.total // 100:
                break
            n = self.sarathi_chunk(job.known, decodes, spent, prefills)
            if n <= 0:
                break
            self.admit(job, job.known)
            batch.append(self.compute(job, n))
            spent += n
            prefills += 1
        return batch if batch or preempted else None

    def sarathi_chunk(self, left: int, decodes: int, spent: int, prefills: int) -> int:
        limit, tile = self.o["max_prefills_per_batch"], self.o["tile_size"]
        if limit == 0:
            return min(left, self.o["chunk_size"] - decodes - spent)
        if prefills == limit:
            return 0
        room = self.o["chunk_size"] - spent
        if left <= room or tile == 0:
            return min(left, room)
        best = [n for n in range(1, room + 1) if (n + decodes) % tile == 0]
        return max(best) if best else room

    def orca(self) -> list[tuple[Job, int, str]] | None:
        batch = [self.compute(job, 1) for job in self.running]
        prefills = 0
        while self.waiting and len(self.running) < self.o["max_batch_size"]:
            if self.o["max_prefills_per_batch"] and prefills == self.o["max_prefills_per_batch"]:
                break
            job = self.waiting[0]
            if self.pages(self.orca_slots(job)) > self.free:
                break
            self.admit(job, self.orca_slots(job))
            batch.append(self.compute(job, job.known))
            prefills += 1
        return batch or None
