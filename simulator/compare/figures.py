"""The figures of two runs side by side, and why some cannot be compared."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from simulator.compare.run import LATENCIES, RATES, STATISTICS, Run

DEFINITIONS = {
    "duration": "last finish - first arrival",
    "requests_per_s": "finished requests / duration",
    "output_tokens_per_s": "output tokens of finished requests / duration",
    "total_tokens_per_s": "prompt and output tokens of finished requests / duration",
    "ttft": "first token - arrival",
    "tpot": "(finish - first token) / (output tokens - 1), a value a request of two tokens or more",
    "itl": "every gap between two consecutive tokens of a request, those of all requests pooled",
    "e2e": "finish - arrival",
}
MISSING = "not in the file"
TITLES = {
    "duration_s": "Duration",
    "requests_per_s": "Requests/s",
    "output_tokens_per_s": "Output tokens/s",
    "total_tokens_per_s": "All tokens/s",
}


@dataclass(frozen=True)
class Figure:
    """A figure of both runs, NaN where one has none; `notes` say why, or what is peculiar to it."""

    name: str
    reference: float
    other: float
    notes: str = ""

    @property
    def error_percent(self) -> float:
        """(other - reference) / reference, NaN where that does not exist."""
        if not (math.isfinite(self.reference) and math.isfinite(self.other)) or self.reference == 0:
            return math.nan
        return 100 * (self.other - self.reference) / self.reference

    @property
    def group(self) -> str:
        """The key of its definition: the latency, or the figure's own name."""
        return self.name if self.name in DEFINITIONS else self.name.partition("_")[0]

    @property
    def title(self) -> str:
        """As in a table: TTFT p50."""
        if self.name in TITLES or self.group not in DEFINITIONS:
            return TITLES.get(self.name, self.name)
        return f"{self.group.upper()} {self.name.split('_')[1]}"

    @property
    def in_seconds(self) -> bool:
        """Whether it is a time; else a rate."""
        return not self.name.endswith("_per_s")


def figures_of(reference: Run, other: Run) -> list[Figure]:
    """Every figure that at least one of the runs has."""
    found = []
    for name in _names():
        ours, theirs = reference.figure(name), other.figure(name)
        if math.isfinite(ours) or math.isfinite(theirs):
            found.append(Figure(name, ours, theirs, "; ".join(_notes(name, (reference, ours), (other, theirs)))))
    return found


def not_comparable(reference: Run, other: Run) -> list[str]:
    """A sentence for the latencies that have no error, or only that of some statistics, and why."""
    latencies: dict[str, list[str]] = {}
    for latency in LATENCIES:
        names = [name for name in _names() if name.startswith(f"{latency}_")]
        missing = [name for name in names if not math.isfinite(reference.figure(name) + other.figure(name))]
        reasons = dict.fromkeys(
            f"{run.name}: {run.not_comparable.get(latency, MISSING)}"
            for run in (reference, other)
            if any(not math.isfinite(run.figure(name)) for name in missing)
        )
        if missing:
            which = "" if len(missing) == len(names) else " " + ", ".join(name.split("_")[1] for name in missing)
            latencies.setdefault("; ".join(reasons), []).append(latency.upper() + which)
    return [f"{', '.join(names)} not comparable: {reason}" for reason, names in latencies.items()]


def _names() -> Iterator[str]:
    yield from RATES
    for latency in LATENCIES:
        for statistic in STATISTICS:
            yield f"{latency}_{statistic}_s"


def _notes(name: str, *sides: tuple[Run, float]) -> Iterator[str]:
    latency = name.partition("_")[0]
    for run, value in sides:
        if not math.isfinite(value):
            yield f"{run.name}: {run.not_comparable.get(latency, MISSING)}"
        elif latency in run.remarks:
            yield f"{run.name}: {run.remarks[latency]}"
