"""Progress of a sweep on stderr: a bar with the time left in a terminal, a line now and then elsewhere."""

import sys
import time
from types import TracebackType
from typing import Any

LINE_EVERY_S = 15.0


class ProgressDisplay:
    """Shows points (or other `things`) done of `total`, what is measured now, and the time left at the pace so far."""

    def __init__(self, total: int, done: int = 0, quiet: bool = False, things: str = "points"):
        self.total, self.first = total, done
        self.quiet, self.things = quiet, things
        self.bar: Any = None
        self.start_s = self.line_s = time.monotonic()

    def __enter__(self) -> "ProgressDisplay":
        if not self.quiet and sys.stderr.isatty():
            self.bar, self.task = _rich_bar(self.total, self.first)
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def update(self, done: int, what: str) -> None:
        """`done` points are measured; `what` is next."""
        if self.bar is not None:
            self.bar.update(self.task, completed=done, description=what)
        elif not self.quiet and time.monotonic() - self.line_s >= LINE_EVERY_S:
            self.line_s = time.monotonic()
            print(
                f"{done} of {self.total} {self.things}, about {self._left_s(done):.0f} s left: {what}",
                file=sys.stderr,
            )

    def _left_s(self, done: int) -> float:
        measured = max(done - self.first, 1)
        return (time.monotonic() - self.start_s) / measured * (self.total - done)


def _rich_bar(total: int, done: int) -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )
    return bar, bar.add_task("", total=total, completed=done)
