"""The slow, obvious memory: blocks as objects, the free list as a plain list, contents as text.

One character stands for one token, so what a block holds and all before it is a text, and two blocks are the same if
their texts are. Written from the description of vLLM's block pool, apart from the package's.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(eq=False)
class Block:
    """`text`: its contents and everything before them; None unless it can be found by it."""

    number: int
    holders: int = 0
    text: str | None = None


class Memory:
    """All blocks; `reached` counts what has happened to them."""

    def __init__(self, count: int, size: int, reached: Counter[str]) -> None:
        self.size = size
        self.free = [Block(number) for number in range(1, count + 1)]
        self.entered: list[Block] = []
        self.reached = reached

    def pages(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens."""
        return -(-tokens // self.size)

    def grow(self, table: list[Block], tokens: int) -> None:
        """Take blocks from the head of the free list until `table` holds `tokens` tokens; their contents are lost."""
        while len(table) < self.pages(tokens):
            block = self.free.pop(0)
            if block.text is not None:
                self.entered.remove(block)
                block.text = None
                self.reached["eviction"] += 1
            block.holders = 1
            table.append(block)

    def enter(self, table: Sequence[Block], text: str) -> None:
        """Make the full blocks of `text` findable."""
        for place in range(len(text) // self.size):
            if table[place].text is None:
                table[place].text = text[: (place + 1) * self.size]
                self.reached["same contents twice"] += self.find(text[: (place + 1) * self.size]) is not None
                self.entered.append(table[place])

    def find(self, text: str) -> Block | None:
        """The block that was entered first among those with this text."""
        return next((block for block in self.entered if block.text == text), None)

    def hits(self, text: str) -> list[Block]:
        """The blocks that hold `text` from its start, as far as there are any."""
        found = []
        for end in range(self.size, len(text) + 1, self.size):
            block = self.find(text[:end])
            if block is None:
                break
            found.append(block)
        return found

    def hold(self, blocks: Sequence[Block]) -> None:
        """One more holder for each; nobody's blocks leave the free list."""
        for block in blocks:
            if block.holders == 0:
                self.free.remove(block)
            self.reached["hit on a free block" if block.holders == 0 else "hit on a held block"] += 1
            block.holders += 1

    def release(self, table: list[Block]) -> None:
        """One holder less for each, the last block first; those of nobody go to the tail with their contents."""
        while table:
            block = table.pop()
            block.holders -= 1
            if block.holders == 0:
                self.free.append(block)

    def picture(self, tables: Sequence[Sequence[Block]]) -> object:
        """What decides about later steps, whatever the blocks' numbers: a row for each block, those of the running
        requests first and then the free ones in order, with its text and how many with the same text are older; and the
        rows of each request's blocks."""
        order = [*dict.fromkeys(block for table in tables for block in table), *self.free]
        older: Counter[str | None] = Counter()
        ages = {}
        for block in self.entered:
            ages[block] = older[block.text]
            older[block.text] += 1
        rows = {block: row for row, block in enumerate(order)}
        contents = tuple((block.text, ages.get(block)) for block in order)
        return contents, tuple(tuple(rows[block] for block in table) for table in tables)
