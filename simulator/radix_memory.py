"""KV memory under a radix tree: a page is free, or in the tree, or a request's own until it is entered in the tree.

As in SGLang 0.5.23 (`srt/mem_cache/unified_radix_cache.py`, `checkpoint_into_tree`; `srt/mem_cache/common.py`,
`release_kv_cache` and `evict_from_tree_cache`): a request holds the way to a node of the tree, the beginning of its
tokens, and has pages of its own for what follows. When pages are taken, entered and evicted is for the planner to say,
which decides by what is left; the scheduler is only told what was found.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence

from simulator.core import Batch, Request, View
from simulator.radix import Node, RadixTree


class Pages:
    """Keys of all pages that a request can ever have; those without a key hold what no other request has."""

    __slots__ = ("_index", "_keys")

    def __init__(self, request: Request) -> None:
        self._index, self._keys = request.index, request.keys

    def __getitem__(self, place: int, /) -> Hashable:
        keys = self._keys
        return keys[place] if place < len(keys) else (None, self._index, place)


class RadixMemory:
    """Pages of `view.block_size` tokens; counts are pages where they are not called tokens. See `ContentMemory`."""

    by_residue = False
    coasts = True

    def __init__(self, view: View, listed: Callable[[], Iterable[Request]] = tuple) -> None:
        """`listed` gives the requests that decode in the engine's order, in which they let go."""
        self._view, self._listed = view, listed
        self.tree = RadixTree()
        self.page_size = view.block_size
        self.free = view.total_blocks
        """Pages that hold nothing."""
        self._held: dict[Request, Node] = {}
        self._keys: dict[Request, Pages] = {}

    @property
    def free_blocks(self) -> int:
        """Pages that are free or could be made free."""
        return self.free + self.tree.evictable

    def pages_of(self, request: Request) -> Pages:
        """Its keys."""
        if request not in self._keys:
            self._keys[request] = Pages(request)
        return self._keys[request]

    def touch(self, request: Request) -> int:
        """Tokens of the longest beginning of all known tokens in the tree, which makes it the newest there is."""
        return self.tree.match(self.pages_of(request), request.known // self.page_size).end * self.page_size

    def find(self, request: Request) -> Node:
        """The longest beginning of all known tokens but the last, which has to be computed in any case."""
        return self.tree.match(self.pages_of(request), (request.known - 1) // self.page_size)

    def hold(self, request: Request, found: Node) -> None:
        """Admit `request` with what was found."""
        self.tree.lock(found)
        self._held[request] = found

    def holds(self, request: Request) -> bool:
        """Whether `request` is admitted."""
        return request in self._held

    def take(self, request: Request, tokens: int) -> None:
        """Pages of its own for the next `tokens` tokens of an admitted request."""
        before = max(request.computed, self._held[request].end * self.page_size)
        self.free -= -(-(before + tokens) // self.page_size) - -(-before // self.page_size)

    def make_room(self, pages: int) -> bool:
        """Evict until `pages` are free; whether they are."""
        if pages > self.free:
            self.free += self.tree.evict(pages - self.free)
        return pages <= self.free

    def enter(self, request: Request, tokens: int) -> None:
        """Enter the full pages of its first `tokens` tokens, which are computed, in the tree, and hold all of them.

        Pages that others have entered in the meantime are double, and freed. Where output follows the prompt, the tree
        is cut between them, so that the output can be evicted alone.
        """
        tree, keys, held = self.tree, self._keys[request], self._held[request]
        pages, prompt = tokens // self.page_size, request.prompt_tokens // self.page_size
        node, present = tree.insert(keys, pages)
        self.free += present - held.end
        if 0 < prompt < pages:
            tree.insert(keys, prompt)
        tree.unlock(held)
        tree.lock(node)
        self._held[request] = node

    def drop(self, request: Request, tokens: int) -> None:
        """Let go of everything; of its `tokens` tokens with KV entries, what is not in the tree is lost."""
        held = self._held.pop(request)
        self.free += -(-tokens // self.page_size) - held.end
        self.tree.unlock(held)

    def forget(self, request: Request) -> None:
        """`request` will not come back."""
        self._keys.pop(request, None)

    def serve(self, batch: Batch) -> int:
        """See `ContentMemory`. The planner has taken the pages of the chunks; decodes take theirs here."""
        decodes = self._view.decodes
        if batch.decodes is None and (decodes.count or batch.in_vain):
            self._decode(decodes.count + len(batch.in_vain), decodes.blocks_to_open() + self._opened(batch.in_vain))
        found = 0
        for request, _ in batch.chunks:
            if request.state == Request.WAITING:
                request.computed = self._held[request].end * self.page_size
                found += request.computed
                if request.first_scheduled < 0:
                    request.cached_tokens = request.computed
        return found

    def serve_preempting(self, batch: Batch) -> int:
        """The same; the planner has dropped the victims, which are still among the decodes."""
        decodes = self._view.decodes
        victims = [request for request in batch.preempted if request.state == Request.DECODING]
        count, opened = len(batch.in_vain) - len(victims), self._opened(batch.in_vain) - self._opened(victims)
        self._decode(decodes.count + count, decodes.blocks_to_open() + opened)
        return 0

    def coasted(self, steps: int) -> None:
        """See `ContentMemory`. O(1) unless pages have to be evicted."""
        decodes, size = self._view.decodes, self.page_size
        first, count = decodes.clock - steps, decodes.count
        opened = [decodes.openers[-clock % size] for clock in range(first, first + min(steps, size))]
        rounds, rest = divmod(steps, size)
        in_all = sum(opened) * rounds + sum(opened[:rest]) if rounds else sum(opened)
        if self.free - in_all >= count:
            self.free -= in_all
            return
        for step in range(steps):
            self._decode(count, opened[step % size])

    def held_blocks(self, running: Iterable[Request]) -> int:
        """See `ContentMemory`."""
        own, ways = 0, set[Node]()
        for request in running:
            node: Node | None = self._held[request]
            own += -(-self._view.context_tokens(request) // self.page_size) - self._held[request].end
            while node is not None:
                ways.add(node)
                node = node.parent
        return own + sum(map(len, ways))

    def in_order(self, finishing: Sequence[Request]) -> Sequence[Request]:
        """See `ContentMemory`."""
        if len(finishing) < 2:
            return finishing
        chosen = set(finishing)
        return [request for request in self._listed() if request in chosen]

    def release(self, request: Request) -> None:
        """See `ContentMemory`; what it computed is entered if it has finished."""
        if request in self._held:
            if request.state == Request.FINISHING:
                self.enter(request, request.computed)
            self.drop(request, request.computed)

    def picture(self, holders: Sequence[Request]) -> Hashable:
        """See `ContentMemory`."""
        nodes, waiting = [], [self.tree.root]
        while waiting:
            node = waiting.pop()
            nodes.append(node)
            waiting += node.children.values()
        nodes.sort(key=lambda node: node.stamp)
        runs = tuple((node.keys[node.end - 1], node.start, node.end) for node in nodes if node.end)
        return runs, tuple((self._held[request].end, request.computed) for request in holders)

    def _decode(self, count: int, opened: int) -> None:
        """SGLang makes room as if each of the `count` decodes opened a page."""
        self.make_room(count)
        self.free -= opened

    def _opened(self, requests: Iterable[Request]) -> int:
        """Pages that a token for each of them opens."""
        return sum(self._view.context_tokens(request) % self.page_size == 0 for request in requests)
