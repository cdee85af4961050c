"""The slow, obvious radix tree: a list of runs, each with the whole text that ends with it, one character a page.

Written from the description of SGLang's cache, apart from the package's: nothing is kept that can be looked up.
"""

from dataclasses import dataclass
from itertools import takewhile


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
    """All runs, in no order; counts in pages."""

    def __init__(self) -> None:
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
        return max((common(run.text, text) for run in self.runs), default=0)

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

    def evict(self, pages: int) -> int:
        """Take away the oldest whole runs that nothing goes on from and nobody holds."""
        gone = 0
        while gone < pages:
            free = [run for run in self.runs if not run.holders and not self.goes_on(run)]
            if not free:
                break
            oldest = min(free, key=lambda run: run.stamp)
            self.runs.remove(oldest)
            gone += len(oldest)
        return gone

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
