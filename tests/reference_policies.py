"""What vLLM, Sarathi and Orca run in a step, in the oracle: from the descriptions of their schedulers."""

from collections.abc import Mapping
from typing import Any

from tests.reference import Job, Price, Reference, Work
from tests.reference_blocks import Block


class VllmReference(Reference):
    """vLLM 0.23: the running list in order while the budget lasts, then the waiting list up to whom it cannot take."""

    null_blocks = 1
    hides_prompts = False

    def __init__(self, options: Mapping[str, Any], price: Price, block_size: int, num_blocks: int) -> None:
        super().__init__(options, price, block_size, num_blocks)
        self.depth = 2 if options["async_scheduling"] else 1
        self.urgent_first = options["scheduling_policy"] == "priority"
        self.caching = options["enable_prefix_caching"]
        self.scheduled: dict[Job, int] = {}
        self.entered_now: list[Block] = []
        self.budget = self.place = 0

    def impossible(self, job: Job) -> bool:
        return job.prompt >= self.o["max_model_len"] or self.pages(job.prompt) > self.total

    def sort_waiting(self) -> None:
        if self.urgent_first:
            self.waiting.sort(key=lambda job: (job.priority, job.arrival_ns, job.index))

    def schedule(self) -> list[Work] | None:
        self.budget, self.place, self.scheduled = self.o["max_num_batched_tokens"], 0, {}
        self.entered_now = []
        preempted = self.serve_running()
        if not preempted:
            self.serve_waiting()
        if not self.scheduled and not preempted:
            return None
        return [self.compute(job, n) for job, n in self.scheduled.items()]

    def serve_running(self) -> bool:
        """Whether anybody was preempted."""
        preempted = False
        while self.place < len(self.running) and self.budget > 0:
            job = self.running[self.place]
            n = min(self.portion(job.known - job.computed), self.budget, self.room(job))
            if self.awaits_last(job) or n <= 0 or not self.in_reach(job):
                self.place += 1
                continue
            while self.pages(job.computed + n) - len(job.blocks) > self.free and job in self.running:
                preempted = True
                self.make_room(job)
            if job not in self.running:
                break
            self.allocate(job, n)
            self.place += 1
        return preempted

    def portion(self, tokens: int) -> int:
        """A long prefill's tokens are cut to the threshold."""
        threshold = self.o["long_prefill_token_threshold"]
        if 0 < threshold < tokens:
            self.reached["cut to the threshold"] += 1
            return int(threshold)
        return tokens

    def room(self, job: Job) -> int:
        """Tokens until the longest sequence, which keeps a place for the last output."""
        return int(self.o["max_model_len"]) - 1 - job.computed

    def allocate(self, job: Job, tokens: int) -> None:
        """Schedule `tokens` tokens: they take blocks, and the blocks that they fill can be found from now on."""
        self.scheduled[job] = tokens
        self.budget -= tokens
        self.memory.grow(job.blocks, job.computed + tokens)
        if self.caching:
            known_before = len(self.memory.entered)
            self.memory.enter(job.blocks, job.text[: min(job.computed + tokens, job.known)])
            self.entered_now += self.memory.entered[known_before:]

    def make_room(self, job: Job) -> None:
        """Preempt the last running request, or the least urgent, who may be scheduled already, or be `job` itself."""
        victim = self.running[-1]
        if self.urgent_first:
            victim = max(self.running, key=lambda other: (other.priority, other.arrival_ns))
            same = [other for other in self.running if self.rank(other) == self.rank(victim)]
            self.reached["several least urgent"] += len(same) > 1
        if victim in self.scheduled:
            self.reached["victim was scheduled in this step"] += 1
            self.budget += self.scheduled.pop(victim)
        if self.running.index(victim) < self.place:
            self.place -= 1
        self.reached["preempts itself"] += victim is job
        self.preempt(victim)

    @staticmethod
    def rank(job: Job) -> tuple[int, int]:
        return job.priority, job.arrival_ns

    def serve_waiting(self) -> None:
        """Admit from the head while everything suffices."""
        while self.waiting and self.budget > 0:
            if len(self.running) == self.o["max_num_seqs"]:
                self.reached["all sequences taken"] += 1
                break
            job = self.waiting[0]
            hits = self.memory.hits(job.text[: job.known - 1]) if self.caching else []
            computed = len(hits) * self.memory.size
            n = self.portion(job.known - computed)
            if not self.fits(job, hits, n):
                break
            self.take_in(job, hits)
            self.allocate(job, min(n, self.budget))

    def fits(self, job: Job, hits: list[Block], n: int) -> bool:
        """Whether budget and memory let the head of the waiting list in."""
        if n > self.budget and not self.o["enable_chunked_prefill"]:
            self.reached["no chunks, no budget"] += 1
            return False
        n = min(n, self.budget)
        others = sum(block.holders == 0 for block in hits) - len(hits)
        if self.o["scheduler_reserve_full_isl"] and self.pages(job.known) + others > self.free:
            self.reached["whole prompt does not fit"] += 1
            return False
        if self.pages(len(hits) * self.memory.size + n) + others > self.free:
            self.reached["first chunk does not fit"] += 1
            return False
        return True

    def take_in(self, job: Job, hits: list[Block]) -> None:
        """Admission: it starts with what is cached."""
        if hits:
            self.reached["hit"] += 1
            self.reached["hit when resumed"] += job.admissions > 0
            self.reached["hit on a block of this step"] += any(block in self.entered_now for block in hits)
            self.reached["hit beyond the prompt"] += len(hits) * self.memory.size > job.prompt
        self.memory.hold(hits)
        job.blocks = list(hits)
        job.computed = len(hits) * self.memory.size
        if job.admissions == 0:
            job.cached = job.computed
        self.admit(job, 0)


class SarathiReference(Reference):
    """Sarathi-Serve: decodes in order of arrival, then prompts under way, then admissions of whole prompts' blocks."""

    def impossible(self, job: Job) -> bool:
        return self.hopeless(job)

    def hopeless(self, job: Job) -> bool:
        return self.pages(job.known) > self.total - self.total // 100

    def schedule(self) -> list[Work] | None:
        partial, batch = self.decodes()
        preempted, decodes, prefills = bool(self.victims), len(batch), list[int]()
        elsewhere = len(self.running) - len(self.at_hand()) if self.o.get("max_prefills_per_batch") else 0
        for job in [job for job in self.running if job in partial]:
            n = self.chunk(job.known - job.computed, decodes, prefills)
            if n > 0:
                batch.append(self.compute(job, n))
                prefills.append(n)
        while self.waiting and not preempted and len(self.running) - elsewhere < self.o["max_num_seqs"]:
            job = self.waiting[0]
            n = self.chunk(job.known, decodes, prefills)
            if self.free - self.pages(job.known) < self.total // 100:
                self.reached["watermark"] += self.free >= self.pages(job.known)
                break
            if n <= 0:
                break
            self.admit(job, job.known)
            batch.append(self.compute(job, n))
            prefills.append(n)
        return batch if batch or preempted else None

    def decodes(self) -> tuple[list[Job], list[Work]]:
        """Prompts under way, and the decodes: each wants a free block in sight and preempts from the end for it."""
        queue = sorted(self.at_hand(), key=lambda job: (job.arrival_ns, job.index))
        partial: list[Job] = []
        batch: list[Work] = []
        while queue:
            job = queue.pop(0)
            if not job.decoding:
                partial.append(job)
                continue
            while self.free == 0 and job in self.running:
                victim = queue.pop() if queue else job
                self.reached["preempts itself"] += victim is job
                self.preempt(victim)
            if job in self.running:
                batch.append(self.compute(job, 1))
        return partial, batch

    def chunk(self, left: int, decodes: int, prefills: list[int]) -> int:
        """Tokens of the next chunk, 0 or less if there is no room."""
        limit, tile = self.o["max_prefills_per_batch"], self.o["tile_size"]
        if limit == 0:
            return min(left, int(self.o["chunk_size"]) - decodes - sum(prefills))
        if len(prefills) == limit:
            self.reached["prefills of a batch used up"] += 1
            return 0
        room = int(self.o["chunk_size"]) - sum(prefills)
        if left <= room or tile == 0:
            return min(left, room)
        best = [n for n in range(1, room + 1) if (n + decodes) % tile == 0]
        self.reached["cut to whole tiles" if best else "no whole tile"] += 1
        return max(best) if best else room


class OrcaReference(Reference):
    """Orca: one token of every decode and whole prompts; memory for the longest possible sequence at admission."""

    def impossible(self, job: Job) -> bool:
        return job.prompt > self.o["max_model_len"] or self.pages(self.slots(job)) > self.total

    def slots(self, job: Job) -> int:
        """Tokens that it reserves."""
        whole = self.o["reservation"] == "max_model_len"
        return int(self.o["max_model_len"]) if whole else job.prompt + self.limit(job)

    def schedule(self) -> list[Work] | None:
        batch = [self.compute(job, 1) for job in self.at_hand()]
        elsewhere = len(self.running) - len(batch)
        prefills = 0
        while self.waiting and len(self.running) - elsewhere < self.o["max_batch_size"]:
            if self.o["max_prefills_per_batch"] and prefills == self.o["max_prefills_per_batch"]:
                self.reached["prefills of a batch used up"] += 1
                break
            job = self.waiting[0]
            if self.pages(self.slots(job)) > self.free:
                self.reached["memory is reserved"] += 1
                break
            self.admit(job, self.slots(job))
            batch.append(self.compute(job, job.known))
            prefills += 1
        return batch or None
