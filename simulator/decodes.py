"""The decoding requests as one cohort: joining, leaving and advancing all by one token cost O(1).

A *decode clock* ticks once in each iteration that decodes. A request whose context is c when it joins at clock t has
context c - t + clock ever after, so `birth = c - t` never changes: the sum of contexts is a sum of births plus
count x clock, and the requests that fill their last block at a given clock are those with birth = -clock modulo the
block size. The longest context is that of the greatest birth, at the top of a heap of births from which those that
nobody has any longer are removed only once they come up: O(log n) a request.
"""

from heapq import heappop, heappush

from simulator.core import DECODING, Request


class Decodes:
    """Clock, counts and sums of the cohort; contexts in tokens."""

    __slots__ = (
        "_births",
        "_block_size",
        "_born",
        "birth_sum",
        "clock",
        "count",
        "finish_at",
        "groups",
        "last_tick",
        "late",
        "openers",
        "stream",
    )

    def __init__(self, block_size: int, stream: int = 0) -> None:
        self.stream = stream
        """Which of several clocks this is, where there are several cohorts."""
        self.clock = 0
        self.last_tick = -1
        """The iteration in which the clock ticked last."""
        self.count = 0
        self.birth_sum = 0
        self.openers = [0] * block_size
        """How many requests open a block in the tick at which -clock modulo the block size is the index."""
        self.groups: list[dict[Request, None]] | None = None
        """Who opens a block when, where blocks have identities: members by the index of `openers`."""
        self._block_size = block_size
        self._births: list[int] = []
        """Negated, each once: a heap of small integers costs a third of one of requests."""
        self._born: dict[int, int] = {}
        """How many of the cohort have each birth of the heap."""
        self.finish_at: dict[int, list[Request]] = {}
        """Who gets the last token in the tick that brings the clock to the key."""
        self.late: dict[int, list[Request]] = {}
        """Who begins to open blocks at that tick, having outgrown what was reserved."""

    def join(self, request: Request) -> None:
        """`request` (contexts up to `computed` held, `generated` tokens sampled) decodes from the next tick on."""
        clock = self.clock
        birth = request.computed - clock
        request.cohort = self
        request.birth = birth
        request.start_clock = clock
        request.end_clock = end = clock + request.target_tokens - request.generated
        request.state = DECODING
        self.count += 1
        if self.groups is not None:
            self.groups[birth % self._block_size][request] = None
        self.birth_sum += birth
        born = self._born
        if birth in born:
            born[birth] += 1
        else:
            born[birth] = 1
            heappush(self._births, -birth)
        if end in self.finish_at:
            self.finish_at[end].append(request)
        else:
            self.finish_at[end] = [request]
        spare = request.reserved_blocks * self._block_size - request.computed
        if spare < self._block_size:
            self.openers[birth % self._block_size] += 1
        elif clock + spare < end:  # reserved ahead: opens blocks only once it has outgrown the reservation
            self.late.setdefault(clock + spare, []).append(request)

    def leave(self, request: Request) -> None:
        """`request` decodes no longer (preempted, or sitting out an iteration); its progress is written back."""
        self.finish_at[request.end_clock].remove(request)
        if not self.finish_at[request.end_clock]:
            del self.finish_at[request.end_clock]
        self._retire(request)

    def advance(self) -> bool:
        """One token for every request; whether any has thereby got its last, and is to be settled."""
        self.clock = clock = self.clock + 1
        if clock in self.late:
            for request in self.late.pop(clock):
                self.openers[request.birth % self._block_size] += 1
        return clock in self.finish_at

    def settle(self) -> list[Request]:
        """Those who got their last token in the tick that brought the clock where it is, at least one; they leave."""
        finished = self.finish_at.pop(self.clock)
        for request in finished:
            self._retire(request)
        return finished

    def members(self) -> list[Request]:
        """All of them; O(n)."""
        return [request for finishing in self.finish_at.values() for request in finishing]

    def longest(self) -> int:
        """The longest context of all, now; there must be one."""
        births, born = self._births, self._born
        while not born[-births[0]]:  # all have left
            del born[-heappop(births)]
        return self.clock - births[0]

    def blocks_to_open(self) -> int:
        """Blocks that the next tick takes."""
        return self.openers[-self.clock % self._block_size]

    def _retire(self, request: Request) -> None:
        ticks = self.clock - request.start_clock
        request.computed = request.birth + self.clock
        request.generated += ticks
        request.known = request.computed + 1
        self.count -= 1
        if self.groups is not None:
            del self.groups[request.birth % self._block_size][request]
        birth = request.birth
        self.birth_sum -= birth
        self._born[birth] -= 1
        spare = request.reserved_blocks * self._block_size - (request.computed - ticks)
        opens_at = request.start_clock + spare
        if spare >= self._block_size and opens_at >= request.end_clock:
            return  # never outgrew its reservation
        if spare >= self._block_size and opens_at > self.clock:
            self.late[opens_at].remove(request)
        else:
            self.openers[birth % self._block_size] -= 1
