"""Duty cycles: steps of a few kinds again and again, with rests or steps of decodes between, to see a GPU slow down.

What a step takes at a power limit depends on what ran in the tenths of a second before (`simulator.power_limit`), so
whole steps of the model are run as an engine would run them: without a pause, with pauses, prompts among decodes.
Before each duty cycle the GPU idles, so that each begins alike.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle as around
from typing import Any, Protocol

from profiler.timing import Call
from simulator.batch_file import ListedBatch

KINDS = {
    batch.id: batch
    for batch in (
        *(ListedBatch(f"p{tokens}", ((0, tokens),), ()) for tokens in (2048, 512, 256)),
        *(ListedBatch(f"d{decodes}", (), (context,) * decodes) for decodes, context in ((32, 1024), (128, 256))),
    )
}
"""Kinds of step by name: a prompt of so many tokens, or so many decodes, of 32,768 KV entries in all."""


@dataclass(frozen=True, slots=True)
class DutyCycle:
    """A step of kind `first`, then `between` steps of kind `decodes`, then a rest of `rest` times what they took."""

    first: str
    rest: float = 0.0
    between: int = 0
    decodes: str = "d32"

    @property
    def kinds(self) -> list[str]:
        """The steps of a round."""
        return [self.first, *[self.decodes] * self.between]

    @property
    def seconds(self) -> float:
        """How long it is run; a row without a pause takes longer to settle."""
        return 1.0 if self.rest or self.between else 2.0

    @property
    def name(self) -> str:
        """As in the sidecar, e.g. `p2048 + 4 d32` or `p512 rest 0.25`."""
        between = f" + {self.between} {self.decodes}" if self.between else ""
        return f"{self.first}{between}{f' rest {self.rest:g}' if self.rest else ''}"


CYCLES = (
    DutyCycle("p2048"),
    DutyCycle("p2048", rest=0.5),
    DutyCycle("p2048", between=4),
    DutyCycle("d32"),
    DutyCycle("p512"),
    DutyCycle("p2048", rest=0.1),
    DutyCycle("p512", rest=0.5),
    DutyCycle("d128"),
    DutyCycle("p2048", between=16),
    DutyCycle("p2048", rest=1.0),
    DutyCycle("d32", rest=0.5),
    DutyCycle("p256"),
    DutyCycle("p2048", rest=0.25),
    DutyCycle("p2048", between=2),
    DutyCycle("p512", between=4),
    DutyCycle("p256", rest=0.5),
    DutyCycle("p2048", between=8),
    DutyCycle("d128", rest=0.5),
    DutyCycle("p512", rest=0.1),
    DutyCycle("p2048", between=4, decodes="d128"),
    DutyCycle("p512", between=16),
)
"""The most telling first: time may be short."""

IDLE_S = 0.4
"""Before each cycle: some ten time constants of an H200."""
LEAST_ROUNDS = 4
_QUEUED = 4  # steps; enough that the GPU never waits for the host


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step: the duty cycle and kind it is of, when it began (seconds from any moment) and how long it took."""

    cycle: str
    kind: str
    start_s: float
    time_s: float


class Marks(Protocol):
    """Marks in what the device is given to do, and the time between them; see `profiler.marks`."""

    def mark(self) -> Any:
        """A mark after all that was launched so far."""
        ...

    def wait(self, mark: Any) -> None:
        """Until the device has reached the mark."""
        ...

    def seconds(self, first: Any, second: Any) -> float:
        """From one mark to another, both reached."""
        ...


def play(duty: DutyCycle, launch: Mapping[str, Call], marks: Marks, origin: Any) -> list[StepRow]:
    """Rounds of `duty` for its `seconds`, after a rest, and at least some rounds; the steps in order.

    `launch` starts a step of a kind; starts are counted from the mark `origin`.
    """
    marks.wait(marks.mark())
    time.sleep(IDLE_S)
    steps: list[tuple[str, Any, Any]] = []
    began_s = round_s = time.monotonic()
    for place, kind in enumerate(around(duty.kinds), 1):
        start = marks.mark()
        launch[kind]()
        steps.append((kind, start, marks.mark()))
        if len(steps) >= _QUEUED:
            marks.wait(steps[-_QUEUED][2])
        rounds, left = divmod(place, len(duty.kinds))
        if left:
            continue
        if duty.rest:
            marks.wait(steps[-1][2])
            time.sleep(duty.rest * (time.monotonic() - round_s))
        round_s = time.monotonic()
        if rounds >= LEAST_ROUNDS and round_s - began_s > duty.seconds:
            break
    marks.wait(steps[-1][2])
    return [
        StepRow(duty.name, kind, marks.seconds(origin, start), marks.seconds(start, end)) for kind, start, end in steps
    ]
