"""One run as a comparison sees it, whatever file it was read from: seconds, tokens and this project's definitions.

ttft = first token - arrival; tpot = (finish - first token) / (output tokens - 1), requests of one token left out;
e2e = finish - arrival; itl = every gap between two consecutive tokens of a request, those of all requests pooled.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from simulator.metrics.quantiles import weighted_mean, weighted_quantiles
from simulator.trace import Floats, Ints

LATENCIES = ("ttft", "tpot", "itl", "e2e")
STATISTICS = ("mean", "p50", "p90", "p99")
RATES = ("duration_s", "requests_per_s", "output_tokens_per_s", "total_tokens_per_s")
NAN = float("nan")


class Distribution(Protocol):
    """A pooled latency in seconds."""

    @property
    def mean(self) -> float:
        """NaN where it is not known."""
        ...

    def at(self, probabilities: Floats) -> Floats:
        """Quantiles, linear-interpolated; NaN where they are not known."""
        ...


@dataclass(frozen=True)
class Pool:
    """A sample of which value i was seen `counts[i]` times."""

    values: Floats
    counts: Ints

    @staticmethod
    def of(values: Floats) -> "Pool":
        """Each value once, NaN left out."""
        known = values[~np.isnan(values)]
        return Pool(known, np.ones(len(known), np.int64))

    @property
    def mean(self) -> float:
        """See `Distribution`."""
        return weighted_mean(self.values, self.counts)

    def at(self, probabilities: Floats) -> Floats:
        """See `Distribution`."""
        return weighted_quantiles(self.values, self.counts, probabilities)


@dataclass(frozen=True)
class StoredQuantiles:
    """Quantiles as a file has them: `values` at ascending `probabilities`, straight between."""

    probabilities: Floats
    values: Floats
    mean: float = NAN

    def at(self, probabilities: Floats) -> Floats:
        """See `Distribution`: NaN beyond the first and the last."""
        return np.interp(probabilities, self.probabilities, self.values, left=NAN, right=NAN)


@dataclass(frozen=True)
class Requests:
    """The finished requests in order of arrival, or of sending: a value a request, NaN where the file has none.

    `arrival_s` has an arbitrary zero.
    """

    arrival_s: Floats
    prompt_tokens: Floats
    output_tokens: Floats
    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats

    def __len__(self) -> int:
        return len(self.e2e_s)

    @property
    def arrivals_s(self) -> float:
        """From the first arrival to the last."""
        return float(np.ptp(self.arrival_s)) if len(self) else NAN

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last finish."""
        return float(np.max(self.arrival_s + self.e2e_s) - np.min(self.arrival_s)) if len(self) else NAN


@dataclass(frozen=True)
class Run:
    """What a file says about a run.

    `figures` are aggregate ones under the names of `summary.csv`, used where there is no detail to compute them from,
    so only such belong there whose definition is that of this module. `not_comparable` gives the reason for each
    latency that the file has by another definition only, `remarks` what else is peculiar to a latency. `facts` are what
    the file says of engine and configuration. Of requests only finished ones count.
    """

    name: str
    format: str
    path: Path
    requests: Requests | None = None
    itl: Distribution | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    not_comparable: Mapping[str, str] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    num_requests: float = NAN
    prompt_tokens: float = NAN
    output_tokens: float = NAN
    step_log: Path | None = None
    iterations: Path | None = None
    experiment: Path | None = None
    notes: tuple[str, ...] = ()

    def distribution(self, latency: str) -> Distribution | None:
        """That of a latency where the file has its detail."""
        if latency == "itl":
            return self.itl
        if self.requests is None:
            return None
        values: Floats = getattr(self.requests, f"{latency}_s")
        return None if np.isnan(values).all() else Pool.of(values)

    def figure(self, name: str) -> float:
        """The figure of that name in `summary.csv`, from detail if there is any; NaN where the file has none."""
        if name in RATES:
            return self._rate(name)
        latency, statistic, _ = name.split("_")
        detail = self.distribution(latency)
        if detail is None:
            return self.figures.get(name, NAN)
        found = detail.mean if statistic == "mean" else float(detail.at(np.array([int(statistic[1:]) / 100]))[0])
        return self.figures.get(name, NAN) if np.isnan(found) else found

    def _rate(self, name: str) -> float:
        duration = NAN if self.requests is None else self.requests.duration_s
        if np.isnan(duration):
            duration = self.figures.get("duration_s", NAN)
        if name == "duration_s":
            return duration
        amount = {
            "requests_per_s": self.num_requests,
            "output_tokens_per_s": self.output_tokens,
            "total_tokens_per_s": self.prompt_tokens + self.output_tokens,
        }[name]
        found = amount / duration if duration > 0 else NAN
        return self.figures.get(name, NAN) if np.isnan(found) else found
