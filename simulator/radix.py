"""A radix tree over token sequences, as SGLang keeps its KV cache: what was computed stays until its space is needed.

A node holds a run of pages; its way from the root spells the tokens before them. Sequences are given as keys, one a
page, each of which stands for the page's tokens and all before them: so a child is found by its first key, and where
two sequences part is found by bisection. As in SGLang 0.5.23 (`srt/mem_cache/unified_cache/unified_tree_core.py`, which
its Rust core follows) one clock gives the stamps of recency, a match that ends inside a node splits it, and only whole
nodes without children go, the oldest first.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Protocol


class Keys(Protocol):
    """A key for each page of a sequence: equal keys at a place, equal tokens up to the end of that page."""

    def __getitem__(self, place: int, /) -> Hashable: ...


class Node:
    """Pages `start` to `end` of the sequences that come through here; `keys` is one of these sequences."""

    __slots__ = ("children", "end", "keys", "listed", "locks", "parent", "stamp", "start")

    def __init__(self, keys: Keys, start: int, end: int, parent: Node | None) -> None:
        self.keys, self.start, self.end, self.parent = keys, start, end, parent
        self.children: dict[Hashable, Node] = {}
        self.locks = 0
        """Requests that hold the way to here or to somewhere below."""
        self.stamp = 0
        self.listed = False
        """Whether the heap of the oldest leaves has an entry of it."""

    def __len__(self) -> int:
        return self.end - self.start


class RadixTree:
    """The tree, its locks and its order of eviction; all counts in pages."""

    def __init__(self) -> None:
        self.root = Node([], 0, 0, None)
        self.root.locks = 1
        self.evictable = 0
        """Pages of nodes that nobody holds: all of them can be evicted, as nobody holds what is below them either."""
        self.protected = 0
        """Pages of nodes that somebody holds."""
        self._clock = 0
        self._oldest: list[tuple[int, int, Node]] = []
        """A heap with an entry for every leaf that nobody holds. Its stamp may be too old: it is put back then."""
        self._entries = 0

    def match(self, keys: Keys, pages: int) -> Node:
        """The node at whose end the longest known beginning of `keys[:pages]` ends; a longer node is split there.

        Stamps the way to it, the deepest node newest. O(nodes on the way x log of their pages).
        """
        node = self.root
        while node.end < pages:
            child = node.children.get(keys[node.end])
            if child is None:
                break
            common = _common(child, keys, pages)
            node = child
            if common < child.end:
                node = self._split(child, common)
                break
        self._stamp_way(node)
        return node

    def insert(self, keys: Keys, pages: int) -> tuple[Node, int]:
        """Enter `keys[:pages]`; returns the node at whose end they end, and how many pages were there before.

        Stamps each node on the way down.
        """
        node = self.root
        while node.end < pages:
            child = node.children.get(keys[node.end])
            if child is None:
                break
            self._stamp(child)
            common = _common(child, keys, pages)
            node = child if common == child.end else self._split(child, common)
        present = node.end
        if present < pages:
            leaf = Node(keys, present, pages, node)
            node.children[keys[present]] = leaf
            self.evictable += len(leaf)
            self._stamp(leaf)
            self._list(leaf)
            node = leaf
        return node, present

    def lock(self, node: Node) -> None:
        """Hold `node` and all above it. O(depth)."""
        way: Node | None = node
        while way is not None:
            if not way.locks:
                self.evictable -= len(way)
                self.protected += len(way)
            way.locks += 1
            way = way.parent

    def unlock(self, node: Node) -> None:
        """Let go of `node` and all above it, as they are now. O(depth)."""
        way: Node | None = node
        while way is not None:
            way.locks -= 1
            if not way.locks:
                self.evictable += len(way)
                self.protected -= len(way)
                self._list(way)
            way = way.parent

    def evict(self, pages: int) -> int:
        """Remove the oldest leaves that nobody holds until `pages` pages are gone or none is left; returns how many."""
        gone, heap = 0, self._oldest
        while gone < pages and heap:
            stamp, _, leaf = heappop(heap)
            leaf.listed = False
            if leaf.locks or leaf.children:
                continue  # listed again once that has changed
            if stamp != leaf.stamp:
                self._list(leaf)
                continue
            parent = leaf.parent
            assert parent is not None
            del parent.children[leaf.keys[leaf.start]]
            gone += len(leaf)
            self.evictable -= len(leaf)
            self._list(parent)
        return gone

    def _split(self, child: Node, end: int) -> Node:
        """Cut `child` at `end`; returns the new node above it. Who holds `child` holds both."""
        parent = child.parent
        assert parent is not None
        upper = Node(child.keys, child.start, end, parent)
        upper.locks = child.locks
        upper.children[child.keys[end]] = child
        parent.children[child.keys[child.start]] = upper
        child.start, child.parent = end, upper
        self._stamp(upper)
        self._stamp(child)
        return upper

    def _stamp(self, node: Node) -> None:
        self._clock += 1
        node.stamp = self._clock

    def _stamp_way(self, node: Node) -> None:
        """From the root's side down, so that a parent is older than its child."""
        way = []
        while node.parent is not None:
            way.append(node)
            node = node.parent
        for node in reversed(way):
            self._stamp(node)

    def _list(self, node: Node) -> None:
        """Put a leaf that nobody holds on the heap."""
        if not (node.locks or node.children or node.listed):
            node.listed = True
            self._entries += 1
            heappush(self._oldest, (node.stamp, self._entries, node))


def _common(node: Node, keys: Keys, pages: int) -> int:
    """Where `keys[:pages]` leave `node` or end in it; they agree at its first page at least."""
    ours, low, high = node.keys, node.start + 1, min(node.end, pages)
    if ours is keys or ours[high - 1] == keys[high - 1]:
        return high
    while low < high - 1:  # agree up to `low`, not up to `high`
        middle = (low + high) // 2
        if ours[middle - 1] == keys[middle - 1]:
            low = middle
        else:
            high = middle
    return low
