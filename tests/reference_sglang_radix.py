"""The slow SGLang with its radix cache, from the description again; the cache is in `tests/reference_radix.py`."""

from dataclasses import dataclass
from typing import Any

from tests.reference_radix import SlowRadix
from tests.reference_sglang import Job, Launched, SglangReference


@dataclass(eq=False)
class RadixJob(Job):
    """`text` is what its tokens say as far as others can find them, one character each."""

    text: str = ""
    cached: int = 0
    """Tokens found when it was first admitted."""

    @property
    def known(self) -> int:
        return self.prompt + self.out

    @property
    def computed(self) -> int:
        return self.kv

    @computed.setter
    def computed(self, tokens: int) -> None:
        self.kv = tokens


class SglangRadixReference(SglangReference):
    """Both loops, with what the cache changes."""

    def __init__(self, jobs: list[Job], options: dict[str, Any], pages: int, page: int, prices: tuple[int, int, int]):
        super().__init__(jobs, options, pages, page, prices)
        self.lpm = options["schedule_policy"] == "lpm"
        self.pool = SlowRadix(pages * page, page)
        self.attempts = 0

    def alone(self, job: Job) -> bool:
        return job.prompt + job.out + min(max(job.limit - job.out, 0), 4096) + self.page < self.pages * self.page

    def free(self) -> int:
        return self.pool.free + self.pool.tree.evictable

    def fits(self, jobs: list[Job]) -> bool:
        return self.pool.make_room(self.page * sum(job.kv % self.page == 0 for job in jobs))

    def make_room(self, jobs: list[Job]) -> None:
        self.pool.make_room(self.page * len(jobs))

    def take(self, batch: list[tuple[Job, int]]) -> None:
        tokens, runs = sum(n for _, n in batch), len(self.pool.tree.runs)
        self.pool.make_room(tokens if self.page == 1 else tokens + self.page * len(batch))
        self.reached["evicts for prompts"] += len(self.pool.tree.runs) < runs

    def schedule(self) -> Launched | None:
        if self.C is not None:
            self.pool.enter(self.C, self.C.kv)
        return super().schedule()

    def sort(self) -> None:
        if self.lpm and len(self.W) <= 128:
            seen: list[str] = []
            ranks: dict[Job, float] = {}
            for job in self.W:
                found = self.pool.touch(job)
                ranks[job] = -min(found, job.prompt + job.out - 1)
                start = self.pool.says(job, job.prompt + job.out)[:32]
                if found <= 32 and len(start) == 32:
                    if start in seen:
                        self.reached["waits for one like it"] += 1
                        ranks[job] = float("inf")
                    seen.append(start)
            before = list(self.W)
            self.W.sort(key=lambda job: ranks[job])
            self.reached["overtakes"] += before != self.W
        elif self.W:
            if self.attempts % 32 == 0:
                for job in reversed(self.W[:128]):
                    self.pool.touch(job)
            self.attempts += 1

    def test(self, batch: list[tuple[Job, int]], job: Job) -> str:
        """What is found of it is not there to be evicted."""
        assert isinstance(job, RadixJob)
        text = self.pool.find(job)
        self.pool.tree.lock(text)
        job.kv, before = len(text), len(batch)
        verdict = self.test_b(batch, job)
        self.pool.tree.lock(text, -1)
        if len(batch) == before:
            job.kv = 0
            return verdict
        self.pool.hold(job, text)
        if not job.retracted:
            job.cached = len(text)
        self.reached["hit"] += bool(text)
        self.reached["hit beyond the prompt"] += len(text) > job.prompt
        self.reached["hit when retracted before"] += bool(text) and job.retracted > 0
        return verdict

    def let_go(self, job: Job, survivors: int) -> None:
        self.pool.drop(job)
        self.pool.make_room(20 * survivors)

    def keep(self, job: Job, launched: Launched) -> None:
        if job.status:
            self.reached["entered with a token in vain"] += job.kv == job.prompt + job.out
            self.pool.enter(job, job.kv)
            self.pool.drop(job)
        elif job in launched.prompts:
            self.pool.enter(job, launched.prompts[job])
