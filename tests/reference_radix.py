"""The slow, obvious radix tree and the memory under it: runs of text, each with all that ends with it, a character a
token.

Written from the description of SGLang's cache, apart from the package's: nothing is kept that can be looked up.
"""

from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol


@dataclass(eq=False)
class Run:
    """The part of `text` from `begin` on; `holders` count how many hold it or something that goes on from it."""

    begin: int
    text: str
    stamp: int = 0
    holders: int = 0

    def __len__(self) -> int:
        return len(self.text) - self.begin


class SlowTree:
    """All runs, in no order; texts differ from page to page, `size` characters each."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.runs: list[Run] = []
        self.clock = 0

    @property
    def evictable(self) -> int:
        return sum(len(run) for run in self.runs if not run.holders)

    @property
    def protected(self) -> int:
        return sum(len(run) for run in self.runs if run.holders)

    def known(self, text: str) -> int:
        """How much of the beginning of `text` is there."""
        return max((common(run.text, text) for run in self.runs), default=0) // self.size * self.size

    def way(self, text: str) -> list[Run]:
        """The runs that spell `text`, as far as whole ones do."""
        return sorted((run for run in self.runs if text.startswith(run.text)), key=lambda run: len(run.text))

    def match(self, text: str) -> str:
        """The part of `text` that is there; its way is stamped, after what a split has stamped."""
        found = text[: self.known(text)]
        self.split(found)
        for run in self.way(found):
            self.stamp(run)
        return found

    def insert(self, text: str) -> int:
        """Enter `text`; returns how much of it was there. Runs are stamped on the way down, as they are met."""
        found = text[: self.known(text)]
        for run in self.way(found):
            self.stamp(run)
        cut = next((run for run in self.runs if self.inside(run, found)), None)
        if cut is not None:
            self.stamp(cut)
        self.split(found)
        if len(found) < len(text):
            self.runs.append(Run(len(found), text))
            self.stamp(self.runs[-1])
        return len(found)

    def split(self, text: str) -> None:
        """Make a run end where `text` ends."""
        for run in [run for run in self.runs if self.inside(run, text)]:
            upper = Run(run.begin, text, holders=run.holders)
            self.runs.append(upper)
            run.begin = len(text)
            self.stamp(upper)
            self.stamp(run)

    def lock(self, text: str, holders: int = 1) -> None:
        """Hold all that spells `text`."""
        for run in self.way(text):
            run.holders += holders

    def evict(self, tokens: int) -> int:
        """Take away the oldest whole runs that nothing goes on from and nobody holds."""
        gone = 0
        while gone < tokens:
            free = [run for run in self.runs if not run.holders and not self.goes_on(run)]
            if not free:
                break
            oldest = min(free, key=lambda run: run.stamp)
            self.runs.remove(oldest)
            gone += len(oldest)
        return gone

    def by_age(self) -> list[tuple[int, int, int]]:
        """Where the runs begin and end and how many hold them, the oldest first."""
        runs = sorted(self.runs, key=lambda run: run.stamp)
        return [(run.begin, len(run.text), run.holders) for run in runs]

    def goes_on(self, run: Run) -> bool:
        return any(other.begin == len(run.text) and other.text.startswith(run.text) for other in self.runs)

    def stamp(self, run: Run) -> None:
        self.clock += 1
        run.stamp = self.clock

    @staticmethod
    def inside(run: Run, text: str) -> bool:
        """Whether `text` ends within the run, neither at its begin nor at its end."""
        return run.begin < len(text) < len(run.text) and run.text.startswith(text)


def common(text: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, other, strict=False)))


class Holder(Protocol):
    """A request: `text` as far as others can find it, and the tokens that have KV entries."""

    index: int
    text: str
    prompt: int
    computed: int

    @property
    def known(self) -> int: ...


class SlowRadix:
    """The pool of `total` tokens: what is neither in the tree nor a request's own is free."""

    def __init__(self, total: int, size: int) -> None:
        self.total, self.size = total, size
        self.tree = SlowTree(size)
        self.held: dict[Holder, str] = {}

    @property
    def free(self) -> int:
        own = sum(self.pages(job.computed) - len(text) for job, text in self.held.items())
        return self.total - sum(map(len, self.tree.runs)) - own

    def pages(self, tokens: int) -> int:
        """Tokens of the pages that hold so many."""
        return -(-tokens // self.size) * self.size

    def says(self, job: Holder, tokens: int) -> str:
        """Whole pages of its first tokens; those that others cannot find are a character of its own."""
        return (job.text + chr(0xAC00 + job.index) * tokens)[: tokens // self.size * self.size]

    def touch(self, job: Holder) -> int:
        """How much of all its known tokens is there."""
        return len(self.tree.match(self.says(job, job.known)))

    def find(self, job: Holder) -> str:
        """What is there of all its known tokens but the last."""
        return self.tree.match(self.says(job, job.known - 1))

    def hold(self, job: Holder, text: str) -> None:
        """It begins with `text`."""
        self.held[job] = text
        self.tree.lock(text)
        job.computed = len(text)

    def make_room(self, tokens: int) -> bool:
        """Evict until so many are free, or nothing is left to evict."""
        if self.free < tokens:
            self.tree.evict(tokens - self.free)
        return self.free >= tokens

    def enter(self, job: Holder, tokens: int) -> None:
        """What it computed belongs to the tree now, with a cut at the end of its prompt."""
        text = self.says(job, tokens)
        self.tree.insert(text)
        prompt = text[: job.prompt // self.size * self.size]
        if 0 < len(prompt) < len(text):
            self.tree.insert(prompt)
        self.tree.lock(self.held[job], -1)
        self.tree.lock(text)
        self.held[job] = text

    def drop(self, job: Holder) -> None:
        """It lets go."""
        self.tree.lock(self.held.pop(job), -1)
        job.computed = 0
