"""SGLang's normal loop with its radix cache, pass by pass as its description has it: every list walked, nothing kept
that can be counted. The cache is in `tests/reference_radix.py`."""

from typing import Any

from tests.reference import Job, Reference, Step, Work
from tests.reference_radix import SlowRadix

INFINITE = float("inf")


class SglangRadixReference(Reference):
    """`options` are those of the policy; tokens throughout."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.page = self.memory.size
        self.pool = SlowRadix(self.total * self.page, self.page)
        self.decoders: list[Job] = []
        self.last: list[Job] = []
        self.chunked: Job | None = None
        self.full = False
        self.attempts = 0
        self.first_ratio = min(0.7 * self.o["schedule_conservativeness"], 1.0)
        self.least_ratio = min(0.14 * self.first_ratio, 1.0)
        self.ratio = self.first_ratio

    @property
    def free(self) -> int:
        """Pages that are free or can be evicted."""
        return self.available // self.page

    @property
    def available(self) -> int:
        return self.pool.free + self.pool.tree.evictable

    def declared(self, job: Job) -> int:
        """The output limit of a request, as cut on arrival."""
        pool, length = self.total * self.page, self.o["context_length"]
        longest = min(length or pool, pool) - 1
        limit = min(job.output, longest - job.prompt - 1)
        return max(0, min(limit, pool - self.pool.pages(job.prompt) - self.page - 1))

    def limit(self, job: Job) -> int:
        return max(1, min(job.output, self.declared(job)))

    def impossible(self, job: Job) -> bool:
        pool = self.total * self.page
        longest = min(self.o["context_length"] or pool, pool) - 1
        return job.prompt >= longest - 5 or job.prompt + min(self.declared(job), 4096) + self.page >= pool

    def schedule(self) -> list[Work] | None:
        if not self.running and not self.waiting:
            self.ratio = self.first_ratio
            self.decoders, self.last, self.full = [], [], False
            return None
        if self.chunked is not None:
            self.pool.enter(self.chunked, self.chunked.computed)
        self.join()
        return self.prefill() or self.decode()

    def join(self) -> None:
        """The last step's prompts that are complete decode from now on; who has finished is gone."""
        staying = [job for job in self.last if not job.status and job is not self.chunked]
        if len(staying) < len(self.last) or (staying and not self.decoders):
            self.full = False
        self.decoders += staying
        self.last = []
        if any(job.status for job in self.decoders):
            self.full = False
        self.decoders = [job for job in self.decoders if not job.status]

    def prefill(self) -> list[Work]:
        """As many prompts as budgets and memory let in, behind the one in progress."""
        if not self.decoders:
            self.full = False
        if (self.full or not self.waiting) and self.chunked is None:
            return []
        self.places = int(self.o["max_running_requests"]) - len(self.decoders)
        if self.places <= 0 and self.chunked is None:
            self.full = True
            return []
        self.sort()
        riding = len(self.decoders) if self.mixes else 0
        self.budget = self.o["max_prefill_tokens"] - riding
        self.chunk = self.o["chunked_prefill_size"] - riding if self.o["chunked_prefill_size"] > 0 else INFINITE
        self.current, self.expected = riding, float(riding)
        for job in self.decoders:
            share = 1.0 if self.o["ignore_eos"] else self.ratio
            self.expected += min(self.declared(job) - job.sampled, 4096) * share
        batch: list[tuple[Job, int]] = []
        self.go_on(batch)
        self.admit_waiting(batch)
        return self.take(batch) if batch else []

    @property
    def mixes(self) -> bool:
        return bool(self.o["enable_mixed_chunk"] and self.o["chunked_prefill_size"] > 0)

    def sort(self) -> None:
        """The order in which prompts are tried."""
        if self.o["schedule_policy"] == "lpm" and len(self.waiting) <= 128:
            self.reached["sorted"] += len(self.waiting) > 1
            seen: list[str] = []
            ranks: dict[Job, float] = {}
            for job in self.waiting:
                found = self.pool.touch(job)
                ranks[job] = -min(found, job.known - 1)
                start = self.pool.says(job, job.known)[:32]
                if found <= 32 and len(start) == 32:
                    if start in seen:
                        self.reached["waits for one like it"] += 1
                        ranks[job] = INFINITE
                    seen.append(start)
            self.waiting.sort(key=lambda job: ranks[job])
        elif self.waiting:
            if self.attempts % 32 == 0:
                for job in reversed(self.waiting[:128]):
                    self.pool.touch(job)
            self.attempts += 1

    def state(self) -> str:
        if self.available - self.expected <= 0 or self.available - self.current <= 0:
            return "no memory"
        return "no budget" if self.budget <= 0 or self.chunk <= 0 else "go"

    def charge(self, tokens: int, output: int) -> None:
        pages = self.pool.pages(tokens)
        self.expected += pages + self.page + output
        self.current += pages + self.page
        self.budget -= pages
        self.chunk -= pages

    def go_on(self, batch: list[tuple[Job, int]]) -> None:
        """The prompt in progress needs no test."""
        job = self.chunked
        if job is None:
            return
        rest, fitting = job.known - job.computed, min(self.chunk, int(self.available - self.expected))
        most = int(fitting if fitting > 0 else self.chunk)
        batch.append((job, min(rest, most)))
        self.reached["chunk cut by memory"] += 0 < fitting < min(rest, self.chunk)
        self.charge(min(rest, most), 0 if rest > most else min(self.declared(job), 4096))
        if rest <= most:
            self.chunked = None

    def admit_waiting(self, batch: list[tuple[Job, int]]) -> None:
        for job in list(self.waiting):
            if self.state() == "no budget":
                return
            self.full = self.full or len(batch) >= self.places
            if self.full:
                return
            verdict = self.attempt(job, batch)
            if verdict == "no memory":
                self.full = bool(batch or self.decoders)
            if verdict != "go":
                return

    def attempt(self, job: Job, batch: list[tuple[Job, int]]) -> str:
        """Try one; what was found of it is not there to be evicted."""
        text = self.pool.find(job)
        self.pool.tree.lock(text)
        tokens, verdict = self.test(job, len(text), bool(batch))
        self.pool.tree.lock(text, -1)
        if not tokens:
            self.reached[f"refused: {verdict}"] += 1
            return verdict
        self.waiting.remove(job)
        self.running.append(job)
        self.pool.hold(job, text)
        if job.admissions == 0:
            job.cached = len(text)
        self.reached["hit"] += bool(text)
        self.reached["hit beyond the prompt"] += len(text) > job.prompt
        self.reached["resumed"] += job.admissions > 0
        self.reached["hit when resumed"] += job.admissions > 0 and bool(text)
        job.admissions += 1
        batch.append((job, tokens))
        if tokens < job.known - len(text):
            self.chunked = job
            self.charge(tokens, 0)
        else:
            self.charge(tokens, min(self.declared(job), 4096))
        return self.state()

    def test(self, job: Job, found: int, follows: bool) -> tuple[int, str]:
        """Tokens that it gets, or why none."""
        rest = job.known - found
        still = min(max(self.declared(job) - job.sampled, 0), 4096)
        if not rest + still + self.page < self.available - self.expected:
            return 0, "no memory"
        if self.chunk == INFINITE:
            return (0, "no budget") if follows and self.pool.pages(rest) >= self.budget else (rest, "go")
        if self.pool.pages(rest) <= self.chunk:
            return rest, "go"
        tokens = int((found + self.chunk) // self.page * self.page - found)
        return (0, "no budget") if tokens <= 0 or self.chunked is not None else (tokens, "go")

    def take(self, batch: list[tuple[Job, int]]) -> list[Work]:
        """Pages for the chunks, and for the decodes that may ride along."""
        tokens = sum(n for _, n in batch)
        before = len(self.pool.tree.runs)
        self.pool.make_room(tokens if self.page == 1 else tokens + self.page * len(batch))
        self.reached["eviction"] += len(self.pool.tree.runs) < before
        work = [self.compute(job, n) for job, n in batch]
        self.last = [job for job, _ in batch]
        if self.mixes and self.decoders and self.pool.make_room(self.needed(self.decoders)):
            self.reached["mixed"] += 1
            work += self.decode_all()
            self.last += self.decoders
            self.decoders = []
        return work

    def decode_all(self) -> list[Work]:
        self.pool.make_room(len(self.decoders) * self.page)
        return [self.compute(job, 1) for job in self.decoders]

    def needed(self, jobs: list[Job]) -> int:
        return sum(self.page for job in jobs if job.computed % self.page == 0)

    def decode(self) -> list[Work] | None:
        if not self.decoders:
            return None
        if self.pool.make_room(self.needed(self.decoders)):
            decay = (self.first_ratio - self.least_ratio) / 600
            self.ratio = max(self.ratio - decay, self.least_ratio)
        else:
            self.retract()
        return self.decode_all()

    def retract(self) -> None:
        """Take from those with the fewest outputs until the others can go on."""
        self.decoders.sort(key=lambda job: (-job.sampled, job.prompt))
        first = True
        while first or (len(self.decoders) > 1 and not self.pool.make_room(self.needed(self.decoders))):
            if len(self.decoders) == 1:
                break
            first = False
            job = self.decoders.pop()
            self.reached["preemption"] += 1
            self.victims.append(job)
            self.running.remove(job)
            self.pool.drop(job)
            job.decoding = False
            job.preemptions += 1
            self.waiting.append(job)
            self.pool.make_room(20 * len(self.decoders))
        outputs, limits = (sum(map(count, self.decoders)) for count in (lambda job: job.sampled, self.declared))
        self.ratio = min(1.0, (outputs + 20 * len(self.decoders)) / (limits + 1))
        self.full = False

    def compute(self, job: Job, tokens: int) -> Work:
        kind = "decode" if job.decoding else "prefill"
        job.computed += tokens
        return job, tokens, kind

    def finish(self, step: Step) -> None:
        self.steps.append(step.row)
        for job in step.emit:
            job.times.append(step.end)
            done = len(job.times) == self.limit(job)
            if done or job in step.prompts:
                self.pool.enter(job, job.computed)
            if done:
                job.status = "finished"
                self.running.remove(job)
                self.pool.drop(job)
        self.pictures.append(self.pool.tree.by_age())
