"""What Sarathi-Serve's other schedulers run in a step, in the oracle: loops like the engine's own, with their state."""

from collections.abc import Mapping
from typing import Any

from tests.reference import Job, Price, Reference, Step, Work
from tests.reference_policies import SarathiReference


class StaticReference(Reference):
    """FasterTransformer: a new batch when the old one is empty, with memory for the longest possible sequences."""

    def __init__(self, options: Mapping[str, Any], price: Price, block_size: int, num_blocks: int) -> None:
        super().__init__(options, price, block_size, num_blocks)
        self.together: list[list[Job]] = []
        """The batches that have run."""

    def impossible(self, job: Job) -> bool:
        length = self.o["max_model_len"]
        return job.prompt > length or self.pages(length) > self.total

    def schedule(self) -> list[Work] | None:
        if self.at_hand():
            return [self.compute(job, 1) for job in self.at_hand()]
        batch: list[Work] = []
        while self.waiting and len(batch) < self.o["max_batch_size"]:
            if self.pages(self.o["max_model_len"]) > self.free:
                self.reached["memory is reserved"] += 1
                break
            job = self.waiting[0]
            self.admit(job, self.o["max_model_len"])
            batch.append(self.compute(job, job.known))
        if batch:
            self.together.append([job for job, *_ in batch])
            self.reached["prompts of a batch differ"] += len({job.prompt for job, *_ in batch}) > 1
        return batch or None

    def on_gpu(self, step: Step) -> tuple[list[int], list[tuple[int, int]]]:
        """With padding every member of a batch to the end, and as if all had its longest prompt."""
        if not self.o["padding"]:
            return super().on_gpu(step)
        contexts: list[int] = []
        chunks: list[tuple[int, int]] = []
        for batch in self.together:
            longest = max(job.prompt for job in batch)
            here = [job for job in step.emit if job in batch]
            if here and not step.contexts:
                chunks += [(0, longest) for _ in batch]
            elif here:
                generated = here[0].computed - here[0].prompt
                contexts += [longest + generated for _ in batch]
                self.reached["a seat stays empty"] += len(here) < len(batch)
        return contexts, chunks


class TurnsReference(SarathiReference):
    """Steps either of decodes or of prompts, with the memory rules of Sarathi-Serve."""

    def decode_turn(self) -> list[Work] | None:
        """One token of every decode; None if nobody decodes and nobody was preempted."""
        _, batch = self.decodes()
        return batch if batch or self.victims else None

    def admissible(self) -> bool:
        """Whether the head of the queue finds a place and leaves the watermark free."""
        if not self.waiting or len(self.running) == self.o["max_num_seqs"]:
            return False
        fits = self.free - self.pages(self.waiting[0].known) >= self.total // 100
        self.reached["watermark"] += not fits and self.free >= self.pages(self.waiting[0].known)
        return fits


class SimpleChunkingReference(TurnsReference):
    """Turns of prompt chunks and of decodes."""

    def __init__(self, options: Mapping[str, Any], price: Price, block_size: int, num_blocks: int) -> None:
        super().__init__(options, price, block_size, num_blocks)
        self.prefills_turn = True

    def schedule(self) -> list[Work] | None:
        turn = self.prefills_turn
        batch = self.next_turn()
        if batch is None:  # and it is still the same's
            self.prefills_turn = turn
        return batch

    def next_turn(self) -> list[Work] | None:
        if self.prefills_turn:
            batch = self.in_progress() or self.admissions()
            self.prefills_turn = not batch
            return batch or self.decode_turn()
        self.prefills_turn = True
        batch = self.decode_turn()
        return self.next_turn() if batch is None else batch

    def in_progress(self) -> list[Work]:
        batch: list[Work] = []
        room = self.o["chunk_size"]
        for job in sorted(self.at_hand(), key=lambda job: (job.arrival_ns, job.index)):
            n = min(job.known - job.computed, room)
            if not job.decoding and n > 0:
                batch.append(self.compute(job, n))
                room -= n
        return batch

    def admissions(self) -> list[Work]:
        batch: list[Work] = []
        room = self.o["chunk_size"]
        while room > 0 and self.admissible():
            job = self.waiting[0]
            self.admit(job, job.known)
            n = min(job.known, room)
            batch.append(self.compute(job, n))
            room -= n
        return batch


class VllmV0Reference(TurnsReference):
    """vLLM before version 1: whole prompts first, decodes in the steps without any; or chunks beside the decodes."""

    def hopeless(self, job: Job) -> bool:
        return job.known > self.prompt_limit or super().hopeless(job) or self.preempts_itself_for_ever(job)

    def preempts_itself_for_ever(self, job: Job) -> bool:
        """Whether it leaves no block free for its second chunk or its first decode to see, although it runs alone."""
        in_chunks = self.o["enable_chunked_prefill"] and job.known > self.o["max_num_batched_tokens"]
        sees = job.known % self.memory.size == 0 and self.limit(job) - job.sampled <= 1
        return in_chunks and self.pages(job.known) == self.total and not sees

    @property
    def prompt_limit(self) -> int:
        """Tokens of the prompts of a step, or of one prompt in chunks."""
        if self.o["enable_chunked_prefill"]:
            return int(self.o["max_model_len"])
        return min(self.o["max_num_batched_tokens"], self.o["max_model_len"])

    def schedule(self) -> list[Work] | None:
        return self.mixed() if self.o["enable_chunked_prefill"] else self.apart()

    def mixed(self) -> list[Work] | None:
        """vLLM 0.6: the running queue from its head, then the waiting one, then the queues made anew.

        Requests of a pipeline have no queue in vLLM's sense; there decodes go first, in order of admission, and the
        last of the step waits for those elsewhere.
        """
        queue, others, before = self.at_hand(), list(self.waiting), list(self.running)
        elsewhere = len(before) - len(queue)
        if self.stages > 1:
            queue.sort(key=lambda job: not job.decoding)
        budget, served = self.o["max_num_batched_tokens"], list[Work]()
        while queue:
            job = queue[0]
            n = min(1 if job.decoding else job.known - job.computed, budget)
            if n == 0:
                self.reached["no budget for a running request"] += 1
                break
            queue.pop(0)
            while not self.sees_a_block(job) and job in self.running:
                if elsewhere and not queue:
                    break
                victim = queue.pop() if queue else job
                self.reached["preempts itself"] += victim is job
                self.reached["a prompt preempts itself"] += victim is job and not job.decoding
                self.preempt(victim)
            if job in self.running and self.sees_a_block(job):
                served.append(self.compute(job, n))
                budget -= n
        decodes = [work for work in served if work[2] == "decode"]
        prompts = [work for work in served if work[2] == "prefill"]
        if self.stages == 1:
            self.running = [*queue, *(job for job, *_ in decodes), *(job for job, *_ in prompts)]
            assert self.running == [job for job in before if job in self.running], "the queue keeps order of admission"
        batch = decodes + prompts
        while others and budget > 0 and len(self.running) < self.o["max_num_seqs"]:
            job = others.pop(0)
            if self.free - self.pages(job.known) < self.total // 100:
                self.reached["watermark"] += self.free >= self.pages(job.known)
                break
            self.reached["admission in a step that preempts"] += bool(self.victims)
            self.admit(job, job.known)
            n = min(job.known, budget)
            self.reached["cut to the budget"] += n < job.known
            batch.append(self.compute(job, n))
            budget -= n
        return batch if batch or self.victims else None

    def sees_a_block(self, job: Job) -> bool:
        """A free one, or it needs none: the blocks of its whole prompt are full to the last token."""
        return self.free > 0 or (not job.decoding and job.known % self.memory.size == 0)

    def apart(self) -> list[Work] | None:
        """Prompts, or decodes."""
        batch: list[Work] = []
        budget = self.prompt_limit
        while self.admissible() and self.waiting[0].known <= budget:
            job = self.waiting[0]
            self.admit(job, job.known)
            batch.append(self.compute(job, job.known))
            budget -= job.known
        return batch or self.decode_turn()
