"""The figures of a variation: ratios beside the published ones, and what each is made of."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulator.compare.output import write_csv
from simulator.pipeline.bubbles import CAUSES
from simulator.reproduce.published import RATIOS, Ratio
from simulator.reproduce.runs import SystemRun
from simulator.reproduce.variations import Variation

RATIO_COLUMNS = ("variation", "micro_batch_s", *(ratio.name for ratio in RATIOS), "about")
TIME_COLUMNS = (
    *("variation", "system", "duration_s", "busy_s", "busy_fraction", "outside_s"),
    *(f"{cause}_s" for cause in CAUSES),
    *("request_bubble_p50_s", "request_bubble_p90_s", "request_bubble_p99_s", "micro_batches", "hybrid_micro_batches"),
)


@dataclass(frozen=True)
class Outcome:
    """The runs of a variation by label, and what SARATHI's usual micro-batch costs on a stage."""

    variation: Variation
    runs: Mapping[str, SystemRun]
    micro_batch_s: float

    def ratio(self, ratio: Ratio) -> float:
        """What we find for it; infinite where the faster has none."""
        slower, faster = self.runs[ratio.slower], self.runs[ratio.faster]
        if ratio.of_bubbles:
            return quotient(slower.median_bubble_s, faster.median_bubble_s)
        return quotient(slower.duration_s, faster.duration_s)

    def factors(self, ratio: Ratio) -> tuple[float, float]:
        """A ratio of durations as a product: how many times as long the slower's stages work, and how many times as
        large a share of the time the faster's do."""
        slower, faster = self.runs[ratio.slower], self.runs[ratio.faster]
        return quotient(slower.busy_s, faster.busy_s), quotient(faster.busy_share, slower.busy_share)


def quotient(one: float, other: float) -> float:
    """one / other."""
    return one / other if other else float("inf")


def write_tables(outcomes: Sequence[Outcome], folder: Path) -> None:
    """`ratios.csv`, a row a variation after the published one, and `times.csv`, a row a system and variation."""
    write_csv(folder / "ratios.csv", RATIO_COLUMNS, _ratio_rows(outcomes))
    write_csv(folder / "times.csv", TIME_COLUMNS, _time_rows(outcomes))


def is_ours(folder: Path) -> bool:
    """Whether an earlier run wrote its tables to `folder`."""
    try:
        with open(folder / "ratios.csv", encoding="utf-8") as file:
            return file.readline().strip() == ",".join(RATIO_COLUMNS)
    except (OSError, UnicodeDecodeError):
        return False


def _ratio_rows(outcomes: Sequence[Outcome]) -> Iterator[tuple[Any, ...]]:
    yield ("published", "", *(ratio.published for ratio in RATIOS), "SARATHI, section 5.3")
    for outcome in outcomes:
        found = (_digits(outcome.ratio(ratio)) for ratio in RATIOS)
        yield outcome.variation.name, _digits(outcome.micro_batch_s), *found, outcome.variation.about


def _time_rows(outcomes: Sequence[Outcome]) -> Iterator[tuple[Any, ...]]:
    for outcome in outcomes:
        for label, run in outcome.runs.items():
            seconds = (run.duration_s, run.busy_s, run.busy_share, run.outside_s, *run.bubbles_s.values())
            spread = np.percentile(run.request_bubbles_s, (50, 90, 99)).tolist()
            figures = (_digits(value) for value in (*seconds, *spread))
            yield outcome.variation.name, label, *figures, run.micro_batches, run.hybrids


def _digits(value: float) -> str:
    """Few enough to be the same on every machine."""
    return f"{value:.6g}"
