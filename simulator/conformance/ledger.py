"""An account of tokens and blocks kept from the batches alone, to hold the scheduler's against."""

from collections.abc import Sequence

from simulator.core import Batch, Request, View
from simulator.errors import PolicyError
from simulator.runlog import LoggedRun

COLUMNS = ("num_decodes", "num_prefills", "prefill_tokens", "kv_tokens", "running", "free_blocks")


class Ledger:
    """What each request was given and holds. Every request is visited in every step: slow and obvious."""

    def __init__(self, requests: Sequence[Request], block_size: int, *, drops_token: bool = False) -> None:
        self._block_size = block_size
        self._drops_token = drops_token
        self._emitted_in = dict.fromkeys(requests, -1)
        self.computed = dict.fromkeys(requests, 0)
        self.generated = dict.fromkeys(requests, 0)
        self.reserved = dict.fromkeys(requests, 0)
        """Tokens that a request's last admission reserved."""
        self._decoding: set[Request] = set()
        self._rows: list[tuple[int, ...]] = []

    def book(self, batch: Batch, running: Sequence[Request], under_way: int, view: View) -> None:
        """Apply a batch that the scheduler has applied; `running` is who ran when it was planned, and `under_way` how
        many steps were."""
        holding = dict.fromkeys(running)
        for request in batch.preempted:
            del holding[request]
            self._decoding.discard(request)
            self.computed[request] = 0
            if self._drops_token and self._emitted_in[request] >= len(self._rows) - under_way:
                self.generated[request] -= 1
        decodes = [*self._decoding] if batch.decodes is None else [*batch.decodes]
        for request in decodes:
            self.computed[request] += 1
            self._emit(request)
        for request in batch.in_vain:
            self.computed[request] += 1
        for request, tokens in batch.chunks:
            if request not in holding:
                holding[request] = None
                self.computed[request] = self._found_cached(request, tokens, view)
            self.computed[request] += tokens
            if self.computed[request] == request.prompt_tokens + self.generated[request]:
                self._emit(request)
        tokens = sum(tokens for _, tokens in batch.chunks)
        kv_tokens = sum(self.computed[request] for request in holding)
        free = -1 if view.memory is not None else view.total_blocks - sum(map(self._blocks, holding))
        self._rows.append((len(decodes), len(batch.chunks), tokens, kv_tokens, len(holding), free))

    def compare(self, view: View) -> None:
        """The view must count the same tokens and free blocks."""
        for request in view.running:
            context = view.context_tokens(request)
            if context != self.computed[request]:
                raise PolicyError(f"{request!r} has {context} KV entries; it was given {self.computed[request]} tokens")
        pool = view.prefixes
        for request in view.running if pool is not None else ():
            assert pool is not None
            blocks = len(pool.table(request))
            if blocks != -(-self.computed[request] // self._block_size):
                raise PolicyError(f"{request!r} holds {blocks} blocks for {self.computed[request]} tokens")
        if view.memory is None:
            held = sum(map(self._blocks, view.running))
        else:
            held = view.memory.held_blocks(view.running)
        if view.free_blocks != view.total_blocks - held:
            raise PolicyError(
                f"{view.free_blocks} blocks are counted as free; of {view.total_blocks}, {held} are held by running"
                " requests"
            )

    def compare_log(self, log: LoggedRun) -> None:
        """Every logged iteration must be the booked one."""
        logged = list(zip(*(log.iterations[name].tolist() for name in COLUMNS), strict=True))
        if len(logged) != len(self._rows):
            raise PolicyError(f"{len(logged)} iterations are logged, {len(self._rows)} were planned")
        for step, (row, booked) in enumerate(zip(logged, self._rows, strict=True)):
            for name, there, here in zip(COLUMNS, row, booked, strict=True):
                if there != here and not (name == "free_blocks" and here < 0):
                    raise PolicyError(f"iteration {step} is logged with {name} {there}, its batch makes it {here}")

    def _emit(self, request: Request) -> None:
        """The step samples a token of `request`."""
        self.generated[request] += 1
        self._emitted_in[request] = len(self._rows)
        if self.generated[request] < request.target_tokens:
            self._decoding.add(request)
        else:
            self._decoding.discard(request)

    def _found_cached(self, request: Request, tokens: int, view: View) -> int:
        """Tokens that an admission found in the prefix cache: whole blocks of the keys that the request has.

        A planner's own memory may know what else it computed before it was preempted.
        """
        if view.memory is None:
            return 0
        found = request.computed - tokens
        most = request.known - 1 if view.prefixes is None else len(request.keys) * self._block_size
        if found % self._block_size or not 0 <= found <= most:
            raise PolicyError(f"{request!r} began with {found} cached tokens")
        return found

    def _blocks(self, request: Request) -> int:
        return -(-max(self.computed[request], self.reserved[request]) // self._block_size)
