"""Paged KV memory with prefix caching: blocks with identities, contents, holders and an LRU order.

As vLLM does it (`vllm/v1/core/block_pool.py`, `kv_cache_manager.py`): only full blocks are cached, by a key that stands
for their tokens and all before them. A released block keeps its contents and goes to the tail of the free list, the
last block of a sequence first; allocation takes from the head and only then forgets what was there.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain

from simulator.core import Request


class PrefixBlocks:
    """The pool. Blocks are numbered from 1; `Request.keys[i]` is the key of a request's i-th full block."""

    def __init__(self, total_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, total_blocks + 1))
        """Blocks that nobody holds, the next to be handed out first; many still hold cached contents."""
        self.cached: dict[Hashable, dict[int, None]] = {}
        """Blocks by key, the first entered first."""
        self.holders = [0] * (total_blocks + 1)
        self._keys: dict[int, Hashable] = {}
        self._tables: dict[Request, list[int]] = {}
        self._entered: dict[Request, int] = {}

    def lookup(self, request: Request) -> list[int]:
        """Cached blocks of the request's known tokens from the start, all but the last token's at most."""
        hits: list[int] = []
        for key in request.keys[: (request.known - 1) // self.block_size]:
            blocks = self.cached.get(key)
            if not blocks:
                break
            hits.append(next(iter(blocks)))
        return hits

    def admit(self, request: Request) -> int:
        """Take the cached blocks of a waiting request; returns the tokens that they hold."""
        hits = self.lookup(request)
        for block in hits:
            if not self.holders[block]:
                del self.free[block]
            self.holders[block] += 1
        self._tables[request] = hits
        self._entered[request] = len(hits)
        return len(hits) * self.block_size

    def grow(self, request: Request, tokens: int) -> None:
        """Hold blocks for `tokens` tokens in all, and enter those that they fill."""
        table = self._tables[request]
        for _ in range(-(-tokens // self.block_size) - len(table)):
            block, _ = self.free.popitem(last=False)
            self._forget(block)
            self.holders[block] = 1
            table.append(block)
        full = min(tokens // self.block_size, len(request.keys))
        for place in range(self._entered[request], full):
            key, block = request.keys[place], table[place]
            self._keys[block] = key
            self.cached.setdefault(key, {})[block] = None
        self._entered[request] = max(self._entered[request], full)

    def lacks(self, request: Request, tokens: int) -> bool:
        """Whether too few blocks are free to hold `tokens` tokens in all."""
        return -(-tokens // self.block_size) - len(self._tables[request]) > len(self.free)

    def holds(self, request: Request) -> bool:
        """Whether `request` has blocks."""
        return request in self._tables

    def table(self, request: Request) -> Sequence[int]:
        """The blocks that `request` holds, in the order of its tokens."""
        return self._tables.get(request, ())

    def release(self, request: Request) -> None:
        """Let go of all blocks of a request."""
        del self._entered[request]
        for block in reversed(self._tables.pop(request)):
            self.holders[block] -= 1
            if not self.holders[block]:
                self.free[block] = None

    def freed_by(self, request: Request, released: dict[int, int]) -> int:
        """Blocks that would be free if `request` let go after those in `released`, which is kept up to date."""
        freed = 0
        for block in self._tables[request]:
            released[block] = released.get(block, 0) + 1
            freed += released[block] == self.holders[block]
        return freed

    def picture(self, holders: Iterable[Request]) -> Hashable:
        """Everything that decides about later steps: whose blocks and which free ones hold what. O(blocks)."""
        tables = [self._tables[request] for request in holders]
        names = {block: name for name, block in enumerate(dict.fromkeys([*chain(*tables), *self.free]))}
        ages = {block: age for blocks in self.cached.values() for age, block in enumerate(blocks)}
        contents = tuple((self._keys.get(block), ages.get(block)) for block in names)
        return contents, tuple(tuple(names[block] for block in table) for table in tables)

    def _forget(self, block: int) -> None:
        key = self._keys.pop(block, None)
        if key is not None:
            del self.cached[key][block]
            if not self.cached[key]:
                del self.cached[key]


class Trial:
    """What a step would do to the pool, without doing it: a policy asks it for hits while it plans admissions."""

    def __init__(self, pool: PrefixBlocks) -> None:
        self._pool = pool
        self._head: Iterator[int] = iter(pool.free)
        self._evicted: set[int] = set()
        self._taken: set[int] = set()
        self._entered: set[Hashable] = set()
        self.free = len(pool.free)

    def allocate(self, count: int) -> None:
        """Hand out `count` blocks from the head of the free list."""
        self.free -= count
        while count:
            block = next(self._head)
            if block not in self._taken:
                self._evicted.add(block)
                count -= 1

    def enter(self, keys: Sequence[Hashable]) -> None:
        """Blocks with these keys are filled in this step and can be hit by whoever comes after."""
        self._entered.update(keys)

    def hits(self, request: Request) -> tuple[int, list[int]]:
        """Number of cached blocks of a waiting request, and those among them that leave the free list with it."""
        count, unheld = 0, []
        for key in request.keys[: (request.known - 1) // self._pool.block_size]:
            block = next((b for b in self._pool.cached.get(key, ()) if b not in self._evicted), None)
            if block is None and key not in self._entered:
                break
            count += 1
            if block is not None and not self._pool.holders[block] and block not in self._taken:
                unheld.append(block)
        return count, unheld

    def take(self, unheld: Sequence[int]) -> None:
        """Take hit blocks out of the free list."""
        self._taken.update(unheld)
        self.free -= len(unheld)
