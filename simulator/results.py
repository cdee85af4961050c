"""What one simulated policy run leaves behind; everything that is printed, plotted or written derives from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.pipeline.log import StageTimes
from simulator.trace import Floats, Ints

SUMMARY_METRICS = ("ttft", "tpot", "itl", "e2e", "queue")
SUMMARY_STATISTICS = ("mean", "p50", "p90", "p99")


class Table(Protocol):
    """Columns of equal length by name; `len` is the number of rows."""

    @property
    def columns(self) -> tuple[str, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, name: str) -> NDArray[Any]: ...

    def stored(self, name: str) -> tuple[NDArray[Any], float]:
        """The column as (array, divisor), in the form that takes least memory: the values are array / divisor."""
        ...


class Columns:
    """A table of arrays that are there."""

    def __init__(self, values: Mapping[str, NDArray[Any]]) -> None:
        self._values = dict(values)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names in order."""
        return tuple(self._values)

    def __len__(self) -> int:
        return len(next(iter(self._values.values())))

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._values[name]

    def stored(self, name: str) -> tuple[NDArray[Any], float]:
        """See `Table.stored`."""
        return self._values[name], 1


class Gaps(Protocol):
    """Inter-token latencies of a run, weighted: entry i says that `count[i]` requests waited `gap_s[i]` seconds
    between two consecutive tokens, the later of which came at `end_s[i]`. Entries are in order of `end_s`."""

    @property
    def end_s(self) -> Floats: ...

    @property
    def gap_s(self) -> Floats: ...

    @property
    def count(self) -> Ints: ...


@dataclass(frozen=True)
class TokenGaps:
    """`Gaps` of arrays that are there."""

    end_s: Floats
    gap_s: Floats
    count: Ints


@dataclass(frozen=True)
class PolicyResult:
    """One policy's run over one trace.

    `requests` and `iterations` have the columns of `requests.csv` and `iterations.csv` (seconds as float64, times that
    do not exist NaN), `itl_quantiles` those of `itl_quantiles.csv`; `summary` has the columns of `summary.csv` in their
    order, `bubbles` its rows of `bubbles.csv`; `stages` are the times of a pipeline's stages, `pools` the rows of
    `pools.csv` where a prefill and a decode pool served; `options` are the policy's.
    """

    label: str
    policy: str
    options: dict[str, Any]
    requests: Table
    iterations: Table
    gaps: Gaps
    itl_quantiles: Table
    summary: dict[str, Any]
    bubbles: Table
    stages: StageTimes | None = None
    pools: Table | None = None
    notes: tuple[str, ...] = field(default=())


def floats(table: Table, name: str) -> Floats:
    """A column as float64."""
    return np.asarray(table[name], dtype=np.float64)
