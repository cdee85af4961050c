"""A trie over the KV blocks of prompts that have ended, whose least recently used leaves are evicted first.

As text-generation-inference has it (`backends/v3/src/radix.rs`, `RadixTrie`). A node is a run of blocks; part of it can
be found, and from its end blocks can be evicted. `keys[i]` stands for a prompt's i-th full block and all before it, so
the length of a common prefix is found by bisection. Nodes are numbered as its slot map does, the number given up last
being the next to be given out: among leaves used at the same time the lowest number is evicted first.
"""

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from heapq import heapify, heappop, heappush


class Node:
    """Blocks `start` to `stop` (not included) of a prompt with these keys, behind those of its parent.

    `references` counts children and requests that start with it; `holders` the requests that start with it or with a
    node below. `used` is the time of the last look-up or insertion that came by.
    """

    __slots__ = ("children", "holders", "keys", "number", "parent", "references", "start", "stop", "used")

    def __init__(self, number: int, parent: "Node | None", keys: Sequence[Hashable], start: int, stop: int) -> None:
        self.number, self.parent = number, parent
        self.keys, self.start, self.stop = keys, start, stop
        self.children: dict[Hashable, Node] = {}
        self.references = self.holders = self.used = 0

    def __len__(self) -> int:
        return self.stop - self.start

    def shared(self, keys: Sequence[Hashable], stop: int) -> int:
        """Where its blocks and those of `keys`, up to `stop`, part; they agree up to `start`. O(log blocks)."""
        own = self.keys
        end = min(self.stop, stop)
        return bisect_left(range(self.start, end), True, key=lambda place: own[place] != keys[place]) + self.start


class PromptTrie:
    """Blocks of ended prompts. `blocks` counts all of them, `held` those that running requests start with."""

    def __init__(self) -> None:
        self.root = Node(1, None, (), 0, 0)
        self.blocks = self.held = 0
        self._time = 0
        self._numbers = 1
        self._given_up: list[int] = []
        self._leaves: list[tuple[int, int, Node]] = []
        """A heap with out-of-date entries, which are passed over."""

    def find(self, keys: Sequence[Hashable], stop: int) -> tuple[Node, int]:
        """The last node that a prompt of `stop` full blocks starts with, and how many of them are there."""
        self._time += 1
        node, place = self.root, 0
        while place < stop and (child := node.children.get(keys[place])) is not None:
            self._use(child)
            node, place = child, child.shared(keys, stop)
        return node, place

    def insert(self, keys: Sequence[Hashable], stop: int) -> int:
        """Enter a prompt's first `stop` blocks, at least one; returns how many of them were there already."""
        self._time += 1
        node, place = self.root, 0
        while (child := node.children.get(keys[place])) is not None:
            self._use(child)
            place = child.shared(keys, stop)
            if place == stop:
                return stop
            node = self._split(child, place) if place < child.stop else child
        self._add(node, keys, place, stop)
        self.blocks += stop - place
        return place

    def hold(self, node: Node) -> None:
        """One more request starts with `node`, which cannot be evicted then. O(depth)."""
        node.references += 1
        self._count_holders(node, 1)

    def let_go(self, node: Node) -> None:
        """One request less. O(depth)."""
        self._count_holders(node, -1)
        self._dereference(node)

    def evict(self, count: int) -> int:
        """Forget up to `count` blocks; returns how many. Whole leaves, and the end of the last one."""
        evicted = 0
        while evicted < count and (node := self._oldest()) is not None:
            taken = min(count - evicted, len(node))
            evicted += taken
            if taken < len(node):
                node.stop -= taken
                heappush(self._leaves, (node.used, node.number, node))
            else:
                self._remove(node)
        self.blocks -= evicted
        return evicted

    def _oldest(self) -> Node | None:
        """The leaf to be evicted next, taken from the heap."""
        while self._leaves:
            used, number, node = heappop(self._leaves)
            if node.used == used and node.number == number and not node.references:
                return node
        return None

    def _use(self, node: Node) -> None:
        node.used = self._time
        if not node.references:
            self._offer(node)

    def _offer(self, node: Node) -> None:
        """It can be evicted."""
        heappush(self._leaves, (node.used, node.number, node))
        if len(self._leaves) > 64 + 4 * self._numbers:
            leaves = {entry for entry in self._leaves if entry[2].used == entry[0] and not entry[2].references}
            self._leaves = [entry for entry in leaves if entry[2].number == entry[1]]
            heapify(self._leaves)

    def _dereference(self, node: Node) -> None:
        node.references -= 1
        if not node.references and node is not self.root:
            self._offer(node)

    def _count_holders(self, node: Node, more: int) -> None:
        below: Node | None = node
        while below is not None:
            before = below.holders > 0
            below.holders += more
            self.held += len(below) * ((below.holders > 0) - before)
            below = below.parent

    def _add(self, parent: Node, keys: Sequence[Hashable], start: int, stop: int) -> Node:
        if self._given_up:
            number = self._given_up.pop()
        else:
            self._numbers = number = self._numbers + 1
        node = Node(number, parent, keys, start, stop)
        node.used = self._time
        if keys[start] not in parent.children:
            parent.references += 1
        parent.children[keys[start]] = node
        self._offer(node)
        return node

    def _split(self, node: Node, place: int) -> Node:
        """A new node takes the blocks before `place`; `node` and those who start with it keep the rest."""
        assert node.parent is not None
        first = self._add(node.parent, node.keys, node.start, place)
        first.holders, first.references = node.holders, 1
        first.children[node.keys[place]] = node
        node.start, node.parent = place, first
        return first

    def _remove(self, node: Node) -> None:
        assert node.parent is not None
        del node.parent.children[node.keys[node.start]]
        self._given_up.append(node.number)
        node.number = 0
        self._dereference(node.parent)
