"""What text-generation-inference runs in a step, in the oracle: its batching loop with its state, and its prefix cache
as a list of texts, from the description of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.reference import Job, Price, Reference, Step, Work


@dataclass(eq=False)
class _Node:
    """A run of blocks: `text` is theirs and all before them, `before` how many blocks those are."""

    slot: int
    text: str
    before: int
    parent: "_Node | None" = None
    used: int = 0
    users: list[Job] = field(default_factory=list)


class _Cache:
    """The trie and the free blocks; every look-up tries every node."""

    def __init__(self, size: int, blocks: int) -> None:
        self.size, self.free, self.clock = size, blocks, 0
        self.nodes: list[_Node] = []
        self.slots = list(range(10_000))
        self.owned: dict[Job, tuple[_Node | None, int, int]] = {}

    def blocks(self, node: _Node) -> int:
        return len(node.text) // self.size - node.before

    def children(self, node: _Node | None) -> list[_Node]:
        return [other for other in self.nodes if other.parent is node]

    def common(self, one: str, other: str) -> int:
        """Full blocks that two texts begin with alike."""
        count = 0
        while True:
            end = (count + 1) * self.size
            if end > min(len(one), len(other)) or one[:end] != other[:end]:
                return count
            count += 1

    def walk(self, text: str) -> tuple[_Node | None, int]:
        """The last node that `text` begins with part of, and how many blocks in all; they are used now."""
        self.clock += 1
        node, found = None, 0
        while True:
            better = [child for child in self.children(node) if self.common(child.text, text) > found]
            if not better:
                return node, found
            node = better[0]
            node.used = self.clock
            found = self.common(node.text, text)

    def allocate(self, job: Job, tokens: int) -> int | None:
        """The prompt's cached tokens, or None."""
        node, found = self.walk(job.text[: job.prompt])
        if node is not None:
            node.users.append(job)
        own = -(-tokens // self.size) - found
        while self.free < own and self.forget_one(own - self.free):
            pass
        if self.free < own:
            if node is not None:
                node.users.remove(job)
            return None
        self.free -= own
        self.owned[job] = (node, found, own)
        return min(found * self.size, job.prompt - 1)

    def forget_one(self, wanted: int) -> bool:
        """The last blocks of the leaf that was not used for the longest time."""
        leaves = [node for node in self.nodes if not node.users and not self.children(node)]
        if not leaves:
            return False
        leaf = min(leaves, key=lambda node: (node.used, node.slot))
        count = min(wanted, self.blocks(leaf))
        if count == self.blocks(leaf):
            self.nodes.remove(leaf)
            self.slots.insert(0, leaf.slot)
        else:
            leaf.text = leaf.text[: (leaf.before + self.blocks(leaf) - count) * self.size]
        self.free += count
        return True

    def release(self, job: Job) -> None:
        node, found, own = self.owned.pop(job)
        if node is not None:
            node.users.remove(job)
        self.free += own
        text = job.text[: job.prompt // self.size * self.size]
        if not text or found * self.size == job.prompt:
            return
        last, there = self.walk(text)
        full = len(text) // self.size
        if there == full:
            self.free -= full - max(found, full)
            return
        if last is not None and there < last.before + self.blocks(last):
            first = _Node(self.slots.pop(0), last.text[: there * self.size], last.before, last.parent, self.clock)
            self.nodes.append(first)
            last.parent, last.before = first, there
            last = first
        self.nodes.append(_Node(self.slots.pop(0), text, there, last, self.clock))
        self.free -= full - max(found, there)

    @property
    def unheld(self) -> int:
        """Blocks that nobody runs on."""

        def busy(node: _Node) -> bool:
            return bool(node.users) or any(busy(child) for child in self.children(node))

        return self.free + sum(self.blocks(node) for node in self.nodes if not busy(node))


class TgiReference(Reference):
    """Version 3: `schedule` goes on in the batching loop where the last forward left it."""

    null_blocks = 1

    def __init__(self, options: Mapping[str, Any], price: Price, block_size: int, num_blocks: int) -> None:
        super().__init__(options, price, block_size, num_blocks)
        size = block_size
        self.batch_tokens = num_blocks * size
        if options["max_batch_total_tokens"] is not None:
            self.batch_tokens = min(self.batch_tokens, options["max_batch_total_tokens"])
        self.unused = self.total - (self.batch_tokens // size - 1)
        self.cache = _Cache(size, self.batch_tokens // size - 1)
        self.next_input: dict[Job, int] = {}
        self.waited = 0
        self.must_decode = False
        self.permits = 0
        self.sleeps = True

    def slots(self, job: Job) -> int:
        """Tokens that it reserves."""
        declared = max(job.output, self.o["max_new_tokens"] or 0)
        return int(job.prompt + declared + self.o["speculate"] - 1)

    @property
    def free(self) -> int:
        return self.unused + self.cache.unheld

    def padded(self, tokens: int) -> int:
        return self.pages(tokens) * self.memory.size

    def impossible(self, job: Job) -> bool:
        limit = self.o["max_concurrent_requests"]
        if limit is not None and len(self.running) + len(self.waiting) >= limit:
            self.reached["turned away"] += 1
            return True
        too_long = not self.o["prefill_chunking"] and job.prompt > self.padded(self.o["max_batch_prefill_tokens"])
        return too_long or self.pages(self.slots(job)) > self.batch_tokens // self.memory.size - 1

    def sort_waiting(self) -> None:
        """Called with every arrival: it wakes the loop, or leaves a permit."""
        if self.sleeps:
            self.sleeps = False
        else:
            self.permits = 1

    def next_batch(self, least: int | None, most: int | None, prefill: int, budget: int) -> list[tuple[Job, int, int]]:
        """Who joins: job, cached tokens, first input."""
        if prefill <= 0 or budget <= 0 or not self.waiting or most == 0:
            return []
        if least is not None and len(self.waiting) < least:
            self.reached["too few wait"] += 1
            return []
        prefill = self.padded(prefill)
        batch: list[tuple[Job, int, int]] = []
        spent = 0
        for job in self.waiting:
            hit = self.cache.allocate(job, self.slots(job))
            if hit is None:
                self.reached["memory is reserved"] += 1
                break
            postfix = job.prompt - hit
            if spent + postfix > prefill:
                if self.o["prefill_chunking"] and prefill > spent:
                    self.reached["cut to the budget"] += 1
                    batch.append((job, hit, prefill - spent))
                else:
                    self.reached["put back for want of budget"] += 1
                    self.cache.release(job)
                break
            spent += postfix
            batch.append((job, hit, postfix))
            if len(batch) == most:
                self.reached["batch is full"] += 1
                break
        if least is not None and len(batch) < least:
            self.reached["too few fit"] += bool(batch)
            for job, _, _ in reversed(batch):
                self.cache.release(job)
            return []
        return batch

    def schedule(self) -> list[Work] | None:
        if not self.running:
            return self.first_prefill()
        rows = len(self.running)
        if not self.must_decode:
            joining = self.look_up(rows)
            if joining:
                return self.prefill(joining)
        elif self.waiting:
            self.reached["decodes without a look at the queue"] += 1
        self.must_decode = False
        self.waited += 1
        return self.forward([(job, self.next_input.get(job, 1)) for job in self.running])

    def first_prefill(self) -> list[Work] | None:
        self.must_decode = False
        while not self.sleeps:
            joining = self.next_batch(
                None, self.o["max_batch_size"], self.o["max_batch_prefill_tokens"], self.batch_tokens
            )
            if joining:
                self.waited = 1
                return self.forward(self.take_in(joining))
            if self.permits:
                self.permits = 0
            else:
                self.sleeps = True
        return None

    def look_up(self, rows: int) -> list[tuple[Job, int, int]]:
        held = sum(self.pages(self.slots(job)) for job in self.running)
        budget = max(0, self.batch_tokens - held * self.memory.size)
        if self.o["prefill_chunking"]:
            inputs = sum(self.next_input.get(job, 1) for job in self.running)
            return self.next_batch(None, None, self.o["max_batch_prefill_tokens"] - inputs, budget)
        ratio = np.float32(self.o["waiting_served_ratio"])
        least = int(np.floor(np.float32(rows) * ratio))
        if self.waited >= self.o["max_waiting_tokens"]:
            self.reached["waited long enough"] += bool(self.waiting) and least > len(self.waiting)
        most = self.o["max_batch_size"]
        return self.next_batch(
            None if self.waited >= self.o["max_waiting_tokens"] else least,
            None if most is None else max(0, most - rows),
            self.o["max_batch_prefill_tokens"],
            budget,
        )

    def prefill(self, joining: list[tuple[Job, int, int]]) -> list[Work]:
        before = [(job, self.next_input.get(job, 1)) for job in self.running]
        self.reached["chunk beside decodes"] += self.o["prefill_chunking"]
        self.reached["decodes pause"] += not self.o["prefill_chunking"]
        self.waited = 1
        self.must_decode = True
        return self.forward((before if self.o["prefill_chunking"] else []) + self.take_in(joining))

    def take_in(self, joining: list[tuple[Job, int, int]]) -> list[tuple[Job, int]]:
        for job, hit, _ in joining:
            self.waiting.remove(job)
            self.running.append(job)
            job.computed = job.cached = hit
            self.reached["hit"] += hit > 0
            self.reached["whole prompt cached"] += 0 < hit == job.prompt - 1
        return [(job, n) for job, _, n in joining]

    def compute(self, job: Job, tokens: int) -> Work:
        kind = "decode" if job.decoding else "prefill"
        job.computed += tokens
        return job, tokens, kind

    def forward(self, inputs: list[tuple[Job, int]]) -> list[Work]:
        """Run these rows, then share the prefill budget out among prompts in progress, the newest first."""
        work = [self.compute(job, n) for job, n in inputs]
        budget = self.o["max_batch_prefill_tokens"] - (len(inputs) - 1)
        self.next_input = {}
        for job, _ in reversed(inputs):
            left = job.prompt - job.computed
            if left > 0:
                self.next_input[job] = max(1, min(left, budget))
                self.reached["a token each beyond the budget"] += budget < 1
                self.reached["several prompts in progress"] += len(self.next_input) > 1
                budget -= self.next_input[job]
        return work

    def finish(self, step: Step) -> None:
        before = list(self.running)
        super().finish(step)
        for job in before:
            if job not in self.running:
                self.cache.release(job)
