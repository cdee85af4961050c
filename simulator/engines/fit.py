"""An engine's host times from step logs, by robust regression (soft-L1 loss: a step that the operating system held up
counts little).

| time | seen in a log without steps in flight | and with them |
| --- | --- | --- |
| schedule, update | their own columns | the same |
| between | from an update to the next schedule, of an engine at work | from the update before the last |
| prepare + collect, by way of launch | output ready - scheduled, less the GPU's price; only the sum | not seen |
| launch | steps too small for the GPU to be the slower one | outputs that wait for a launch; prepare + launch |
| GPU time beyond the table | not seen (in prepare) | from output to output of GPU-bound steps, less the price |

What a log does not tell is taken from a profile given as a start, and said.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.engines.fit_alone import fit_alone
from simulator.engines.fit_in_flight import fit_in_flight
from simulator.engines.fit_line import FitLog, told_line
from simulator.engines.logged import EMPTY
from simulator.engines.profile import HostTime, Mode
from simulator.trace import Floats


@dataclass(frozen=True)
class Fitted:
    """A mode, and a sentence for each part that the logs did not tell."""

    mode: Mode
    unidentified: tuple[str, ...]


def fit_mode(logs: Sequence[FitLog], start: Mode) -> Fitted:
    """The host times of `logs`, all of engines with steps in flight or all of engines without."""
    missing: list[str] = []
    seconds: dict[str, Callable[[FitLog], Floats]] = {
        "schedule": lambda log: log.priced.log.schedule_end_s - log.priced.log.schedule_start_s,
        "update": lambda log: log.priced.log.update_end_s - log.priced.log.output_ready_s,
        "between": _between,
    }
    lines: dict[str, Any] = {
        name: _fit_line(name, logs, of_steps, getattr(start, name), missing) for name, of_steps in seconds.items()
    }
    fit_rest = fit_in_flight if logs[0].priced.pipelined else fit_alone
    return Fitted(fit_rest(logs, replace(start, **lines), missing), tuple(missing))


def _fit_line(
    name: str, logs: Sequence[FitLog], seconds: Callable[[FitLog], Floats], start: HostTime, missing: list[str]
) -> HostTime:
    """Seconds by sequences, of steps that run something."""
    sequences, times = [], []
    for log in logs:
        values = seconds(log)
        wanted = log.used & (log.priced.kind != EMPTY) & np.isfinite(values)
        sequences.append(log.priced.sequences[wanted])
        times.append(values[wanted])
    return told_line(name, np.concatenate(sequences), np.concatenate(times), start, missing)


def _between(log: FitLog) -> Floats:
    """Seconds from the update after which a step could be scheduled to its schedule; NaN where the engine was idle.

    The sequences are those of the step that is scheduled.
    """
    steps, back = log.priced.log, 2 if log.priced.pipelined else 1
    seconds = np.full(len(steps), np.nan)
    seconds[back:] = steps.schedule_start_s[back:] - steps.update_end_s[:-back]
    seconds[~log.priced.resumed | (seconds < 0)] = np.nan
    return seconds
