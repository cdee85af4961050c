"""When the steps that a scheduler books start and end: prices of the GPU, and what else takes time.

`GpuTimes` is the GPU alone (`engine: none`); `simulator.engines.times` adds what an engine's host does.
"""

from array import array
from collections.abc import Sequence
from typing import Protocol

from simulator.costs import DecodePiece, StepCosts
from simulator.power_limit import Heat

FOREVER = 2**62
"""As many steps as there will be."""


class StepTimes(Protocol):
    """The clock of one engine; times in integer nanoseconds.

    The log's ends of steps, `ends_ns`, are the outputs' times: from then on the engine can go on.
    """

    hosted: bool
    """Whether a host takes time, so that `pause_ns` has something to say."""
    arrival_ns: int
    """From a request's arrival until a scheduler can see it."""
    delivery_ns: int
    """From the engine's having a token until the client has it."""

    def book(
        self,
        ends_ns: "array[int]",
        now_ns: int,
        tokens: int,
        decodes: int,
        decode_context: int,
        longest: int,
        chunks: Sequence[tuple[int, int]],
    ) -> int:
        """Append the end of a step planned at `now_ns` to `ends_ns`; returns its start.

        It may put off the end before, if that is still to come.
        """
        ...

    def pause_ns(self, decodes: int) -> int:
        """From the end of a step until the engine plans the next, while `decodes` requests decode."""
        ...


class CoastingTimes(StepTimes, Protocol):
    """A clock that can tell the times of many steps of decodes at once, see `simulator.coasting`."""

    @property
    def measured_context(self) -> float:
        """See `StepCosts.measured_context`."""
        ...

    def decode_piece(self, ends_ns: "array[int]", decodes: int, decode_context: int, longest: int) -> DecodePiece:
        """The time from the last of `ends_ns` to the end of the next step, of decodes alone, and from there to that of
        the one after it."""
        ...

    def foreseen(self, ends_ns: "array[int]", decodes: int, interval_ns: float) -> int:
        """For how many steps pieces tell when they end, now that one says `interval_ns` for the next; 0 where not even
        for that. To be asked again with each piece."""
        ...

    def count_beyond(self, decodes: int, decode_context: int, steps: int) -> None:
        """See `StepCosts.count_beyond`."""
        ...


class GpuTimes:
    """Steps one after the other, each as long as the GPU takes; `heat` where it has a power limit."""

    hosted = False
    arrival_ns = delivery_ns = 0

    def __init__(self, costs: StepCosts, heat: Heat | None = None) -> None:
        self._step_ns, self._piece, self._heat = costs.step_ns, costs.decode_piece, heat
        self.measured_context = costs.measured_context
        self.count_beyond = costs.count_beyond

    def book(
        self,
        ends_ns: "array[int]",
        now_ns: int,
        tokens: int,
        decodes: int,
        decode_context: int,
        longest: int,
        chunks: Sequence[tuple[int, int]],
    ) -> int:
        """See `StepTimes.book`."""
        last_ns = ends_ns[-1] if ends_ns else 0
        start_ns = now_ns if now_ns > last_ns else last_ns
        if self._heat is None or not tokens:
            time_ns = self._step_ns(decodes, decode_context, longest, chunks)
        elif chunks:
            price_ns = self._step_ns(decodes, decode_context, longest, chunks)
            time_ns = int(self._heat.step_ns(start_ns, last_ns, tokens, price_ns))
        else:
            constant, slope, _ = self.decode_piece(ends_ns, decodes, decode_context, longest)
            time_ns = int(constant + slope * decode_context)
            if decode_context > decodes * self.measured_context:
                self.count_beyond(decodes, decode_context, 1)
        ends_ns.append(start_ns + time_ns)
        return start_ns

    def decode_piece(
        self,
        ends_ns: "array[int]",  # noqa: ARG002 - the interface
        decodes: int,
        decode_context: int,
        longest: int,
    ) -> DecodePiece:
        """See `StepTimes.decode_piece`."""
        constant, slope, until = self._piece(decodes, decode_context, longest)
        heat = self._heat
        if heat is None:
            return constant, slope, until
        factor, heat.of_decodes = heat.factor_of_decodes(decodes, 1.0)
        return factor * constant, factor * slope, until

    def foreseen(self, ends_ns: "array[int]", decodes: int, interval_ns: float) -> int:  # noqa: ARG002 - the interface
        """See `StepTimes.foreseen`: any number."""
        return FOREVER

    def pause_ns(self, decodes: int) -> int:  # noqa: ARG002 - the interface
        """See `StepTimes.pause_ns`: planning takes no time."""
        return 0
