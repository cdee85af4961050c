"""Sarathi-Serve's other schedulers in the slow, obvious engine: loops like the engine's own, with their state."""

from collections.abc import Mapping
from typing import Any

from tests.reference import Job, Price, Reference

Scheduled = list[tuple[Job, int, str]]


class SarathiReference(Reference):
    """`static`, `simple_chunking` and `vllm_v0`."""

    def __init__(self, policy: str, options: Mapping[str, Any], price: Price, block_size: int, num_blocks: int) -> None:
        super().__init__(policy, options, price, block_size, num_blocks)
        self.prefills_turn = True

    def impossible(self, job: Job) -> bool:
        if self.policy == "static":
            length = self.o["max_model_len"]
            return job.prompt > length or self.pages(length) > self.total
        return self.hopeless(job)

    def hopeless(self, job: Job) -> bool:
        if self.policy == "vllm_v0" and job.known > self.prompt_limit:
            return True
        return self.pages(job.known) > self.total - self.total // 100

    @property
    def prompt_limit(self) -> int:
        return min(self.o["max_num_batched_tokens"], self.o["max_model_len"])

    def static(self) -> Scheduled | None:
        if self.running:
            return [self.compute(job, 1) for job in self.running]
        batch: Scheduled = []
        while self.waiting and len(self.running) < self.o["max_batch_size"]:
            if self.pages(self.o["max_model_len"]) > self.free:
                break
            job = self.waiting[0]
            self.admit(job, self.o["max_model_len"])
            batch.append(self.compute(job, job.known))
        return batch or None

    def simple_chunking(self) -> Scheduled | None:
        if self.prefills_turn:
            batch = self.prefills_in_progress() or self.admissions_in_chunks()
            if batch:
                self.prefills_turn = False
                return batch
            return self.decodes()
        self.prefills_turn = True
        batch = self.decodes()
        return self.simple_chunking() if batch is None else batch

    def prefills_in_progress(self) -> Scheduled:
        batch: Scheduled = []
        room = self.o["chunk_size"]
        for job in self.by_arrival():
            n = min(job.known - job.computed, room)
            if job.prefilling and n > 0:
                batch.append(self.compute(job, n))
                room -= n
        return batch

    def admissions_in_chunks(self) -> Scheduled:
        batch: Scheduled = []
        room = self.o["chunk_size"]
        while room > 0 and self.admissible():
            job = self.waiting[0]
            self.admit(job, job.known)
            n = min(job.known, room)
            batch.append(self.compute(job, n))
            room -= n
        return batch

    def vllm_v0(self) -> Scheduled | None:
        batch: Scheduled = []
        budget = self.prompt_limit
        while self.admissible() and self.waiting[0].known <= budget:
            job = self.waiting[0]
            self.admit(job, job.known)
            batch.append(self.compute(job, job.known))
            budget -= job.known
        return batch or self.decodes()

    def admissible(self) -> bool:
        """Whether the head of the queue finds a place and leaves the watermark free."""
        if not self.waiting or len(self.running) == self.o["max_num_seqs"]:
            return False
        return self.free - self.pages(self.waiting[0].known) >= self.total // 100

    def decodes(self) -> Scheduled | None:
        batch: Scheduled = []
        queue = self.by_arrival()
        preempted = False
        while queue:
            job = queue.pop(0)
            if job.prefilling:
                continue
            while self.free == 0:
                preempted = True
                victim = queue.pop() if queue else job
                self.preempt(victim)
                if victim is job:
                    break
            else:
                batch.append(self.compute(job, 1))
        return batch if batch or preempted else None

    def by_arrival(self) -> list[Job]:
        return sorted(self.running, key=lambda job: (job.arrival_ns, job.index))
