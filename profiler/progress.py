"""Progress of a sweep on stderr: a bar with the time left in a terminal, a line now and then elsewhere."""

import sys
import time
from types import TracebackType
from typing import Any

LINE_EVERY_S = 15.0


class ProgressDisplay:
    """Shows points (or other `things`) done of `total`, what is measured now, and the time left at the pace so far.

    That is never more than the time to `deadline_s` (`time.monotonic`).
    """

    def __init__(
        self,
        total: int,
        done: int = 0,
        quiet: bool = False,
        deadline_s: float | None = None,
        things: str = "points",
    ):
        self.total, self.first, self.deadline_s = total, done, deadline_s
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
            self.bar.update(self.task, completed=done, description=f"{_span(self._left_s(done))} left: {what}")
        elif not self.quiet and time.monotonic() - self.line_s >= LINE_EVERY_S:
            self.line_s = time.monotonic()
            print(
                f"{done} of {self.total} {self.things}, about {_span(self._left_s(done))} left: {what}",
                file=sys.stderr,
            )

    def expect(self, total: int) -> None:
        """There are `total` points after all."""
        self.total = total
        if self.bar is not None:
            self.bar.update(self.task, total=total)

    def _left_s(self, done: int) -> float:
        now_s = time.monotonic()
        left_s = (now_s - self.start_s) / max(done - self.first, 1) * max(self.total - done, 0)
        return left_s if self.deadline_s is None else max(min(left_s, self.deadline_s - now_s), 0.0)


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _rich_bar(total: int, done: int) -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    bar = Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )
    return bar, bar.add_task("", total=total, completed=done)
