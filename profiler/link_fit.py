"""Facts of a link, fitted to readings: the alpha-beta model of `simulator.network`, by least squares.

The time of an exchange is latency x rounds + bytes moved / bandwidth (Hockney, 1994), with a ring's rounds and bytes.
All readings share the bandwidth. All-reduces and sends have a latency each, because what starts a send is not what
starts a round of an all-reduce; the link gets that of an all-reduce's round, since it is asked for collectives of other
numbers of ranks, and sends are measured. Each residual is divided by its measured time: sizes span five decades, and
plain residuals would fit the largest messages alone.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profiler.network_rows import Reading
from simulator.network import Link, Network

FITTED = ("all_reduce", "send")
_ROUNDS = Network("rounds", "", Link(1.0, math.inf))
_BYTES = Network("bytes", "", Link(0.0, 1.0))


@dataclass(frozen=True, slots=True)
class LinkFit:
    """The link, the latency of a send by the same fit, and (median, largest) relative error of each exchange."""

    link: Link
    send_latency_us: float
    errors: dict[str, tuple[float, float]]

    def __str__(self) -> str:
        errors = "; ".join(
            f"{exchange} off by {median:.0%} in the median, {largest:.0%} at most"
            for exchange, (median, largest) in self.errors.items()
        )
        return (
            "link: alpha-beta model, least squares of relative errors over all_reduce and send readings; one bandwidth,"
            f" a latency for each exchange, of which the all_reduce's is given (send: {self.send_latency_us:.3g} us);"
            f" {errors}"
        )


def fit_link(readings: Sequence[Reading]) -> LinkFit | None:
    """The link of all-reduces and sends among `readings`, others left out.

    None where they tell no bandwidth: sizes do not differ, or larger messages take no longer.
    """
    used = [reading for reading in readings if reading.exchange in FITTED]
    if len({reading.size for reading in used}) < 2 or not any(each.exchange == "all_reduce" for each in used):
        return None
    measured_us = np.array([reading.timing.time_us for reading in used])
    terms = np.array([_terms(reading) for reading in used])
    alpha_us, send_us, us_per_kilobyte = _least_squares(terms / measured_us[:, None])
    if us_per_kilobyte <= 0:
        return None
    errors = terms @ [alpha_us, send_us, us_per_kilobyte] / measured_us - 1
    by_exchange = defaultdict(list)
    for reading, error in zip(used, errors, strict=True):
        by_exchange[reading.exchange].append(abs(float(error)))
    spread = {exchange: (float(np.median(of_it)), max(of_it)) for exchange, of_it in by_exchange.items()}
    return LinkFit(Link(round(alpha_us, 3), float(f"{1 / us_per_kilobyte:.4g}")), send_us, spread)


def _terms(reading: Reading) -> tuple[float, float, float]:
    """What the latency of a round, that of a send, and 1 / (gigabytes a second) are multiplied with."""
    rounds, kilobytes = _by_link(_ROUNDS, reading), _by_link(_BYTES, reading)
    return (rounds, 0.0, kilobytes) if reading.exchange == "all_reduce" else (0.0, rounds, kilobytes)


def _by_link(network: Network, reading: Reading) -> float:
    if reading.exchange == "send":
        return network.send_us(reading.size)
    return network.all_reduce_us(reading.size, reading.ranks)


def _least_squares(terms: np.ndarray) -> tuple[float, float, float]:
    """Factors that bring each row's sum closest to 1. One that would be negative is 0, and the others fitted again."""
    kept = [column for column in range(terms.shape[1]) if terms[:, column].any()]
    found = np.zeros(terms.shape[1])
    while kept:
        solved = np.linalg.lstsq(terms[:, kept], np.ones(len(terms)), rcond=None)[0]
        if solved.min() >= 0:
            found[kept] = solved
            break
        kept.pop(int(solved.argmin()))
    return float(found[0]), float(found[1]), float(found[2])
