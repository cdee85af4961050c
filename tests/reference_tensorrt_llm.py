"""What TensorRT-LLM's scheduler runs in a step, in the oracle: the active list with its places, and the two stages."""

from collections.abc import Mapping
from typing import Any

from tests.reference import Job, Price, Reference, Work


class TensorrtLlmReference(Reference):
    """Arrivals enter the active list in order while it has places, and keep theirs, paused or not, until they end."""

    hides_prompts = False

    def __init__(self, options: Mapping[str, Any], price: Price, block_size: int, num_blocks: int) -> None:
        super().__init__(options, price, block_size, num_blocks)
        self.active: list[Job] = []
        self.budget: int = options["max_num_tokens"]
        self.unit: int = options["chunk_unit_size"] or options["tokens_per_block"]
        self.static = options["capacity_scheduler_policy"] == "STATIC_BATCH"
        self.pauses = options["capacity_scheduler_policy"] == "MAX_UTILIZATION"

    def limit(self, job: Job) -> int:
        return max(1, min(job.output, self.o["max_seq_len"] - job.prompt))

    def declared(self, job: Job) -> int:
        """Slots of the prompt and all output that may come."""
        return int(min(job.prompt + max(job.output, self.o["max_tokens"] or 0), self.o["max_seq_len"]))

    def impossible(self, job: Job) -> bool:
        return job.prompt >= self.o["max_seq_len"] or self.hopeless(job)

    def hopeless(self, job: Job) -> bool:
        if job.known > self.budget and (not self.o["enable_chunked_context"] or self.unit > self.budget):
            return True
        return self.pages(job.known if self.pauses else self.declared(job)) > self.total

    def sort_waiting(self) -> None:
        self.waiting.sort(key=lambda job: job.index)

    def most(self, option: str) -> int:
        """A limit over the micro-batches of all stages."""
        return int(self.o[option] or self.o["max_batch_size"] * self.stages)

    def schedule(self) -> list[Work] | None:
        self.activate()
        through = self.for_this_step() if self.pauses else self.to_completion()
        decodes, contexts = self.token_stage(through)
        batch = []
        for job, n in self.sizes(contexts, self.budget - len(decodes)):
            if job in self.waiting:
                self.admit(job, job.known)
            batch.append(self.compute(job, n))
        batch += [self.compute(job, 1) for job in decodes]
        return batch if batch or self.victims else None

    def activate(self) -> None:
        """Who has ended leaves the list, who waits before it enters."""
        self.active = [job for job in self.active if not job.status]
        for job in self.waiting:
            if job not in self.active:
                if len(self.active) >= self.most("max_num_active_requests"):
                    self.reached["active list is full"] += 1
                    break
                self.active.append(job)

    def started(self, job: Job) -> bool:
        """Whether it has memory and can be given tokens or be paused."""
        return job in self.running and self.in_reach(job) and not self.awaits_last(job)

    def to_completion(self) -> list[Job]:
        """Those who generate, then prompts while all that they may become fits beside all that those may become."""
        through = [job for job in self.active if job.decoding]
        available = self.free - sum(self.pages(self.declared(job)) - len(job.blocks) for job in through)
        if self.static and through:
            self.reached["waits for the batch to end"] += any(not job.decoding for job in self.active)
            self.reached["prompt waits half-read"] += any(job.computed and not job.decoding for job in self.active)
            return through
        for job in self.active:
            if job.decoding:
                continue
            rest = self.pages(self.declared(job)) - len(job.blocks)
            if len(through) >= self.most("max_num_requests"):
                self.reached["places are taken"] += 1
                break
            if rest > available:
                self.reached["memory is reserved"] += 1
                break
            available -= rest
            through.append(job)
        return through

    def for_this_step(self) -> list[Job]:
        """In order while the blocks of this step suffice; the last who started is paused until they do."""
        through: list[Job] = []
        candidates, used = list(self.active), 0
        while candidates:
            job = candidates[0]
            need = self.need(job)
            if len(through) < self.most("max_num_requests") and used + need <= self.free:
                through.append(candidates.pop(0))
                used += need
                continue
            self.reached["places are taken"] += len(through) == self.most("max_num_requests")
            last = [job for job in candidates if self.started(job)][-1:]
            if not last:
                break
            self.reached["paused for one who had not started"] += job in self.waiting
            self.reached["preempts itself"] += last == [job]
            candidates = candidates[: candidates.index(last[0])]
            self.preempt(last[0])
        return through

    def need(self, job: Job) -> int:
        """Blocks of its next step."""
        if job in self.waiting:
            return self.pages(job.known)
        return int(self.started(job) and job.decoding and job.computed % self.memory.size == 0)

    def token_stage(self, through: list[Job]) -> tuple[list[Job], list[Job]]:
        """Decodes and prompts that run; with chunks a prompt costs nothing yet."""
        decodes: list[Job] = []
        contexts: list[Job] = []
        used = 0
        for place, job in enumerate(through):
            if job not in self.waiting and not self.started(job):
                continue
            if len(decodes) + len(contexts) == self.o["max_batch_size"]:
                self.reached["batch is full"] += 1
                break
            whole = 0 if self.o["enable_chunked_context"] else job.known
            n = 1 if job.decoding else whole
            if used + n > self.budget:
                self.reached["no tokens left"] += 1
                self.reached["decodes starve behind a prompt"] += any(job.decoding for job in through[place + 1 :])
                break
            used += n
            (decodes if job.decoding else contexts).append(job)
        return decodes, contexts

    def sizes(self, contexts: list[Job], left: int) -> list[tuple[Job, int]]:
        """The chunk of each, those who complete their prompt last unless all are whole."""
        rest = {job: job.known - job.computed for job in contexts}
        if sum(rest.values()) <= left:
            return list(rest.items())
        first_come = self.o["context_chunking_policy"] == "FIRST_COME_FIRST_SERVED"
        chunk = self.in_turn(rest, left) if first_come else self.in_rounds(rest, left)
        self.reached["no unit fits"] += 0 in chunk.values()
        part = [(job, n) for job, n in chunk.items() if 0 < n < rest[job]]
        whole = [(job, n) for job, n in chunk.items() if n == rest[job]]
        self.reached["completes behind one that does not"] += bool(part) and bool(whole)
        return part + whole

    def in_turn(self, rest: dict[Job, int], left: int) -> dict[Job, int]:
        """The first takes what it can use."""
        chunk = {}
        for job in rest:
            n = min(rest[job], left)
            while n < rest[job] and n % self.unit:
                self.reached["cut to whole units"] += 1
                n -= 1
            chunk[job] = n
            left -= n
        return chunk

    def in_rounds(self, rest: dict[Job, int], left: int) -> dict[Job, int]:
        """One unit more in each round."""
        chunk = dict.fromkeys(rest, 0)
        moved, rounds = True, 0
        while moved and left > 0:
            moved = False
            for job in rest:
                n = min(self.unit, rest[job] - chunk[job])
                if 0 < n <= left:
                    chunk[job] += n
                    left -= n
                    moved = True
            rounds += 1
        self.reached["several rounds"] += rounds > 2
        return chunk
