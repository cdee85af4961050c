"""What an engine's host adds to the oracle's steps, one step at a time: from the description in
`simulator.engines.profile`, apart from the package's clock."""

from collections.abc import Callable
from dataclasses import dataclass

from simulator.engines.profile import HostTime, Mode
from tests.reference import Reference, Step


@dataclass(frozen=True)
class Host:
    """A host to try: the times of a mode, captured numbers of tokens, the layers of the model, and whether steps are
    launched by a process of their own."""

    mode: Mode
    captured: list[int]
    layers: int = 2
    workers: bool = False


def nanoseconds(time: HostTime, sequences: int) -> int:
    """Of a step of so many sequences."""
    return int(1000 * time.step_us + 1000 * time.sequence_us * sequences)


class HostClock:
    """When the steps of `engine` start and end on `host`; `token_ns` prices padding."""

    def __init__(self, engine: Reference, host: Host, token_ns: Callable[[int], float]) -> None:
        self.engine, self.host, self.mode, self.token_ns = engine, host, host.mode, token_ns
        self.ways: list[str] = []
        self.gpu_free = self.launched = 0
        engine.clock = self.book
        engine.pause = self.pause
        engine.arrival_ns = int(1000 * self.mode.arrival_us)

    def pause(self, decoding: int) -> int:
        """Outputs are handed on and requests taken in."""
        return nanoseconds(self.mode.update, decoding) + nanoseconds(self.mode.between, decoding)

    def book(self, step: Step, flying: list[Step], now: int) -> None:
        """The step is planned now."""
        contexts, chunks = self.engine.on_gpu(step)
        sequences = len(contexts) + len(chunks)
        tokens = len(contexts) + sum(n for _, n in chunks)
        way = self.way_of(tokens, bool(chunks))
        launch = {"full": self.mode.full, "piecewise": self.mode.piecewise, "eager": self.mode.eager}[way]
        scheduled = now + nanoseconds(self.mode.schedule, sequences)
        if self.host.workers:  # one after the other
            scheduled = max(scheduled, self.launched)
        prepared = scheduled + nanoseconds(launch.prepare, sequences)
        self.launched = launched = prepared + int(1000 * self.host.layers * launch.layer_us)
        gpu = 0
        if tokens:
            gpu = self.price(step, tokens) + nanoseconds(launch.gpu, sequences)
        if way == "full" and tokens and "eager" in self.recent():
            gpu += int(1000 * self.mode.aftermath.step_us)
        self.ways.append(way)
        self.gpu_free = max(max(prepared, self.gpu_free) + gpu, launched)
        if (
            flying and now < flying[-1].end and not self.host.workers
        ):  # its output has to wait until the host has launched this step
            flying[-1].end = max(flying[-1].end, launched)
        step.start = max([now, *(other.end for other in flying)])
        step.end = self.gpu_free + int(1000 * self.mode.collect_us)

    def way_of(self, tokens: int, chunks: bool) -> str:
        """How a step runs."""
        if tokens and not any(size >= tokens for size in self.host.captured):
            return "eager"
        return "piecewise" if chunks else "full"

    def price(self, step: Step, tokens: int) -> int:
        """GPU time of the step, padded to the next captured size."""
        contexts, chunks = self.engine.on_gpu(step)
        price = self.engine.price(len(contexts), sum(contexts), max(contexts, default=0), chunks)
        padded = min((size for size in self.host.captured if size >= tokens), default=tokens)
        return int(price + self.token_ns(padded) - self.token_ns(tokens))

    def recent(self) -> list[str]:
        """How the steps ran that this one is in the aftermath of."""
        return self.ways[-self.mode.aftermath.steps :] if self.mode.aftermath.steps else []
