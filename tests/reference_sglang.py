"""SGLang's two loops once more, slow and obvious, from their description and apart from the policy.

Every request is visited in every pass, and the batches are lists as in the engine: W waits, R decodes, C is the prompt
in progress, L the last batch that had prefills. Without radix cache, on one GPU.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

GO, NO_TOKEN, OTHER = "go", "no token", "other"


@dataclass(eq=False)
class Job:
    """A request: `out` are the tokens that the engine knows of, `kv` the entries that it has."""

    index: int
    arrival: int
    prompt: int
    output: int
    limit: int
    ignores_eos: bool
    out: int = 0
    kv: int = 0
    times: list[int] = field(default_factory=list)
    retracted: int = 0
    status: str = ""

    @property
    def rest(self) -> int:
        return self.prompt + self.out - self.kv


@dataclass
class Launched:
    """A batch under way: who samples a token at its end."""

    end: int
    sampling: list[Job]
    prompts: dict[Job, int] = field(default_factory=dict)
    """Entries that those have whose prompts it completes."""


class SglangReference:
    """One run; `options` by SGLang's names, `prices` are the ns of a step, of a token and of a context token."""

    def __init__(self, jobs: list[Job], options: dict[str, Any], pages: int, page: int, prices: tuple[int, int, int]):
        self.coming, self.page, self.pages, self.prices = list(jobs), page, pages, prices
        self.chunk = options["chunked_prefill_size"]
        self.mixed = options["enable_mixed_chunk"] and self.chunk > 0
        self.most_tokens, self.slots = options["max_prefill_tokens"], options["max_running_requests"]
        self.overlap = not options["disable_overlap_schedule"]
        self.highest = min(0.7 * options["schedule_conservativeness"], 1.0)
        self.lowest = min(0.14 * self.highest, 1.0)
        self.ratio = self.highest
        self.length = min(options["context_length"] or pages * page, pages * page) - 1
        self.W: list[Job] = []
        self.R: list[Job] = []
        self.L: list[Job] | None = None
        self.C: Job | None = None
        self.full = False
        self.here: list[Job] = []
        """Who holds a slot."""
        self.flight: Launched | None = None
        self.now = self.passes = 0
        self.reached: Counter[str] = Counter()

    # The loop

    def run(self, most_passes: int) -> bool:
        """To the end; whether it came before so many passes."""
        while self.passes < most_passes:
            self.passes += 1
            idle = not (self.W or self.here or self.flight)
            if idle and not self.coming:
                return True
            if idle and self.coming[0].arrival > self.now:
                self.ratio, self.now = self.highest, self.coming[0].arrival
            while self.coming and self.coming[0].arrival <= self.now:
                self.arrive(self.coming.pop(0))
            applied, launched = self.flight, self.schedule()
            if not self.overlap:
                applied, launched = launched, None
            self.flight = launched
            if applied is not None:
                self.now = applied.end
                self.apply(applied)
            elif launched is None and self.W and self.coming:
                self.now = max(self.now, self.coming[0].arrival)
            elif launched is None and self.W:
                raise AssertionError("those who wait will wait for ever")
        return False

    def arrive(self, job: Job) -> None:
        pool = self.pages * self.page
        job.limit = min(job.limit, self.length - job.prompt - 1)
        job.limit = max(0, min(job.limit, pool - self.ceil(job.prompt) - self.page - 1))
        if job.prompt >= self.length - 5 or not self.alone(job):
            job.status = "rejected"
            self.reached["rejected"] += 1
        else:
            self.W.append(job)

    def alone(self, job: Job) -> bool:
        """Whether an empty server would admit it."""
        pool, left = self.pages * self.page, max(job.limit - job.out, 0)
        if job.ignores_eos:
            room = pool - self.ceil(job.prompt + job.out) - self.page
            return room >= 0 and (left == 0 or room - left > 1)
        return job.prompt + job.out + min(left, 4096) + self.page < pool

    def apply(self, launched: Launched) -> None:
        for job in launched.sampling:
            if job.status:
                continue  # decoded in vain
            job.out += 1
            job.times.append(launched.end)
            if job.out >= max(1, min(job.output, job.limit)):
                job.status = "finished"
                self.here.remove(job)
            self.keep(job, launched)

    # Scheduling

    def schedule(self) -> Launched | None:
        if self.L is not None:
            keep = [job for job in self.L if not job.status and job is not self.C]
            if len(keep) < len(self.L):
                self.full = False
            if keep and not self.R:
                self.R, self.full = keep, False
            elif keep:
                self.R += keep
            self.L = None
        if any(job.status for job in self.R):
            self.R, self.full = [job for job in self.R if not job.status], False
        chunks = self.prefill()
        if chunks:
            return self.extend(chunks)
        return self.decode()

    def sampling(self, job: Job) -> bool:
        """Whether a token of it is under way."""
        return self.flight is not None and job in self.flight.sampling

    def prefill(self) -> list[tuple[Job, int]]:
        if not self.R:
            self.full = False
        if (self.full or not self.W) and self.C is None:
            return []
        if min(self.slots - len(self.R), self.slots - len(self.here)) <= 0 and self.C is None:
            self.full = True
            return []
        self.sort()
        m = len(self.R) if self.mixed else 0
        self.rin = self.most_tokens - m
        self.rch = self.chunk - m if self.chunk > 0 else None
        self.tot: float = 0
        for job in self.R:
            self.tot += min(job.limit - job.out, 4096) * self.weight(job)
        self.tot, self.cur = m + self.tot, m
        self.simulated: list[list[float]] | None = None
        batch: list[tuple[Job, int]] = []
        self.cut: Job | None = None
        if self.C is not None:
            av = min(self.rch, int(self.avail - self.tot))
            n = min(self.C.rest, av if av > 0 else self.rch, self.avail + -self.C.kv % self.page)
            if av <= 0:
                self.reached["a chunk although no memory is left"] += 1
            if n <= 0:
                self.reached["no room for the chunk"] += 1
                return []
            self.put(batch, self.C, n)
        if self.state() != OTHER:
            self.admit(batch)
        return batch

    def admit(self, batch: list[tuple[Job, int]]) -> None:
        with_chunk = self.C is not None
        for job in list(self.W):
            if len(batch) >= min(self.slots - len(self.R), self.slots - len(self.here) + with_chunk):
                self.full = True
                self.reached["no slot"] += 1
            if self.full:
                return
            verdict = self.test(batch, job)
            if verdict == NO_TOKEN:
                self.full = bool(batch or self.R)
                self.reached["no token"] += 1
            if verdict != GO:
                return

    def test_a(self, batch: list[tuple[Job, int]], job: Job) -> str:
        rest = job.prompt + job.out
        if self.ceil(rest) + self.page > min(self.avail - self.cur, self.avail - self.tot):
            return NO_TOKEN
        entry = self.entry(job)
        if self.simulated is None:
            entries = [self.entry(other) for other in [job, *self.R, *[other for other, _ in batch]]]
            self.simulated = sorted([e for e in entries if e[0] > 0], key=lambda e: e[0])
        elif entry[0] > 0:
            place = 0
            while place < len(self.simulated) and entry[0] > self.simulated[place][0]:
                place += 1
            if place == len(self.simulated) > 0:
                place -= 1
                self.reached["before the last"] += place > 0
            self.simulated.insert(place, entry)
        x = self.avail - self.cur - self.ceil(rest) - self.page
        freed = 0.0
        for i, (left, occupied) in enumerate(self.simulated):
            b = len(self.simulated) - i
            if x + freed - left * b <= b:
                self.reached["refused by the order of endings"] += 1
                return NO_TOKEN
            freed += occupied
        if self.rch is None or rest <= self.rch:
            self.put(batch, job, rest)
        elif self.cut is not None:
            return OTHER
        else:
            self.put(batch, job, self.rch)
        return self.state()

    def test_b(self, batch: list[tuple[Job, int]], job: Job) -> str:
        rest = job.rest
        if not rest + min(max(job.limit - job.out, 0), 4096) + self.page < self.avail - self.tot:
            return NO_TOKEN
        if self.rch is None and batch and self.ceil(rest) >= self.rin:
            self.reached["input used up"] += 1
            return OTHER
        n = rest
        if self.rch is not None and self.ceil(rest) > self.rch:
            n = (job.kv + self.rch) // self.page * self.page - job.kv
            if n <= 0 or self.cut is not None:
                self.reached["no whole page or a second cut"] += 1
                return OTHER
        self.put(batch, job, n)
        return self.state()

    def entry(self, job: Job) -> list[float]:
        return [job.limit * self.weight(job) - job.out, job.prompt + job.out]

    def weight(self, job: Job) -> float:
        return 1.0 if job.ignores_eos else self.ratio

    def put(self, batch: list[tuple[Job, int]], job: Job, n: int) -> None:
        batch.append((job, n))
        new = min(job.limit, 4096)
        if n < job.rest:
            self.cut, new = job, 0
        self.tot += self.ceil(n) + self.page + new
        self.cur += self.ceil(n) + self.page
        self.rin -= self.ceil(n)
        if self.rch is not None:
            self.rch -= self.ceil(n)

    def state(self) -> str:
        if self.avail - self.tot <= 0 or self.avail - self.cur <= 0:
            return NO_TOKEN
        return OTHER if self.rin <= 0 or (self.rch is not None and self.rch <= 0) else GO

    def extend(self, batch: list[tuple[Job, int]]) -> Launched:
        self.take(batch)
        self.C, spans, sampling = self.cut, [], []
        for job, n in batch:
            if job in self.W:
                self.W.remove(job)
                self.here.append(job)
            job.kv += n
            spans.append((n, job.kv))
            if job is not self.C:
                sampling.append(job)
        assert self.free() >= 0
        self.L = [job for job, _ in batch]
        if self.mixed and self.R:
            self.leave_foreseen()
            if self.fits(self.R):
                self.make_room(self.R)
                for job in self.R:
                    job.kv += 1
                    spans.append((1, job.kv))
                self.L += self.R
                sampling += self.R
                self.R = []
            else:
                self.reached["decodes sit out"] += 1
        launched = self.launch(spans, sampling)
        launched.prompts = {job: job.kv for job, _ in batch if job is not self.C}
        return launched

    def leave_foreseen(self) -> bool:
        """Who will reach the limit with the token under way; whether there are any."""
        stay = [job for job in self.R if not (self.sampling(job) and job.out + 1 >= job.limit)]
        left = len(stay) < len(self.R)
        self.R = stay
        if left:
            self.full = False
        return left

    def decode(self) -> Launched | None:
        left = self.leave_foreseen()
        if not self.R:
            return None
        if self.fits(self.R):
            self.ratio = max(self.ratio - (self.highest - self.lowest) / 600, self.lowest)
        elif left:
            self.reached["waits for those who finish"] += 1
            return None
        else:
            self.retract()
        self.make_room(self.R)
        for job in self.R:
            job.kv += 1
            if self.sampling(job) and job.out + 1 >= max(1, min(job.output, job.limit)):
                self.reached["decodes in vain"] += 1
        return self.launch([(1, job.kv) for job in self.R], list(self.R))

    def retract(self) -> None:
        order = sorted(self.R, key=lambda job: (-job.out, job.prompt))
        first = True
        while len(order) > (self.C is None):
            if not first and self.fits(order):
                break
            job, first = order.pop(), False
            self.reached["retracts"] += 1
            if self.sampling(job):
                assert self.flight is not None
                self.flight.sampling.remove(job)
                self.reached["drops a token"] += 1
            self.let_go(job, len(order))
            job.kv, job.retracted = 0, job.retracted + 1
            self.here.remove(job)
            if self.alone(job):
                self.W.append(job)
            else:
                job.status = "stalled"
                self.reached["cannot come back"] += 1
        if order:
            declared = sum(job.limit for job in order)
            self.ratio = min(1.0, (sum(job.out for job in order) + 20 * len(order)) / (declared + 1))
        self.R, self.full = order, False

    def launch(self, spans: list[tuple[int, int]], sampling: list[Job]) -> Launched:
        step, token, context = self.prices
        begins = self.now if self.flight is None else max(self.now, self.flight.end)
        time = step + token * sum(n for n, _ in spans) + context * sum(after for _, after in spans)
        return Launched(begins + time, sampling)

    # Memory

    def ceil(self, tokens: int) -> int:
        return -(-tokens // self.page) * self.page

    def free(self) -> int:
        return self.pages * self.page - sum(self.ceil(job.kv) for job in self.here)

    @property
    def avail(self) -> int:
        return self.free()

    def fits(self, jobs: list[Job]) -> bool:
        """Whether a token of each of `jobs` has room."""
        return self.page * sum(job.kv % self.page == 0 for job in jobs) <= self.free()

    # What a cache does besides, see tests/reference_sglang_radix.py

    def sort(self) -> None: ...

    def test(self, batch: list[tuple[Job, int]], job: Job) -> str:
        return self.test_a(batch, job) if job.ignores_eos else self.test_b(batch, job)

    def take(self, batch: list[tuple[Job, int]]) -> None: ...

    def make_room(self, jobs: list[Job]) -> None: ...

    def let_go(self, job: Job, survivors: int) -> None: ...

    def keep(self, job: Job, launched: Launched) -> None: ...
