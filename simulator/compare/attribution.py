"""Where the error of the mean time between tokens comes from: prices of steps, the host between them, or the batches.

A token of a decode comes one step after the one before. On the logged batches, so without the simulated scheduling, the
mean over all decodes of (predicted - measured) is the error of prices: of the step itself, from its scheduling to its
output given where the engine was, and of the host from an output to the end of the next scheduling. What is left of the
whole error is composition drift: the simulated engine ran other batches than the real one.
"""

from dataclasses import dataclass

import numpy as np

from simulator.engines.logged import Predicted, PricedLog, host_s
from simulator.engines.profile import Mode


@dataclass(frozen=True)
class Part:
    """A part of the error, seconds and per cent of the measured mean time between tokens."""

    name: str
    seconds: float
    percent: float


def token_gap_errors(priced: PricedLog, predicted: Predicted, mode: Mode) -> tuple[float, float]:
    """Mean seconds a token that (steps, the host between them) are predicted too long, weighted by decodes.

    With steps in flight the host works beside the GPU; where it is seen, it is seen in the step.
    """
    log = priced.log
    weight = log.decodes * priced.resumed
    if not weight.sum():
        return 0.0, 0.0
    steps = np.nan_to_num(predicted.ahead_s)
    host = np.zeros(len(log))
    if not priced.pipelined:
        measured = log.schedule_end_s[1:] - log.output_ready_s[:-1]
        between = host_s(mode.update, priced.sequences[:-1]) + host_s(mode.between, priced.sequences[1:])
        host[1:] = between + host_s(mode.schedule, priced.sequences[1:]) - measured
    return float((steps * weight).sum() / weight.sum()), float((host * weight).sum() / weight.sum())


def parts(blame: tuple[float, float], reference_s: float, other_s: float) -> list[Part]:
    """The error of the mean time between tokens, `other_s` against `reference_s`, in its parts; the last is the sum."""
    steps, host = blame
    whole = other_s - reference_s
    named = {
        "prices of steps": steps,
        "host between steps": host,
        "other batches (composition drift)": whole - steps - host,
        "all": whole,
    }
    return [Part(name, seconds, 100 * seconds / reference_s) for name, seconds in named.items()]
