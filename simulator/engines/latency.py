"""What passes between a client and the scheduler: from a request's arrival until the scheduler can see it, and from the
engine's having a token until the client has it.

A step log has the times of `schedule()` calls. A request that the first call after its arrival did not schedule, though
nobody waited, had not come yet; one that it did, had. With many requests these bounds leave little room.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simulator.errors import InputError
from simulator.step_log_file import LoggedSteps
from simulator.trace import Floats, Ints


@dataclass(frozen=True)
class ClientTimes:
    """What clients saw, a value a request in order of arrival: seconds and tokens."""

    arrival_s: Floats
    first_token_s: Floats
    prompt_tokens: Ints


def read_client_times(path: Path) -> ClientTimes:
    """Columns `arrival_s`, `first_token_s` and `prompt_tokens` of a CSV, sorted by arrival. Raises InputError."""
    import pandas as pd

    names = ("arrival_s", "first_token_s", "prompt_tokens")
    try:
        rows = pd.read_csv(path, usecols=lambda name: name in names)
    except (ValueError, OSError) as error:
        raise InputError(f"cannot be read: {' '.join(str(error).split())}", path=path) from None
    for name in names:
        if name not in rows:
            raise InputError("column missing", path=path, key=name)
        if not len(rows) or not pd.api.types.is_numeric_dtype(rows[name]):
            raise InputError("should be numbers", path=path, key=name)
    rows = rows.sort_values("arrival_s", kind="stable")
    return ClientTimes(
        rows["arrival_s"].to_numpy(float), rows["first_token_s"].to_numpy(float), rows["prompt_tokens"].to_numpy(int)
    )


def arrival_and_delivery(log: LoggedSteps, clients: ClientTimes) -> tuple[float, float]:
    """Seconds (from arrival to scheduler, from engine to client) by the first chunk and first token of each request.

    Between two processes whose clocks differ only the sum of both means something. Request numbers of the log are
    places in order of arrival. Raises InputError where no request of the log is among the clients'.
    """
    first, complete = _steps_of_prompts(log, clients.prompt_tokens)
    requests = np.array(sorted(complete), dtype=np.int64)
    if not len(requests):
        raise InputError("none of the requests in the log is in the request file", path=log.path)
    steps = np.array([first[request] for request in requests.tolist()])
    arrival = clients.arrival_s[requests]
    not_before = np.where(steps > 0, log.schedule_start_s[np.maximum(steps - 1, 0)], -np.inf) - arrival
    not_after = log.schedule_start_s[steps] - arrival
    ready = log.output_ready_s[[complete[request] for request in requests.tolist()]]
    delivery = clients.first_token_s[requests] - ready
    return most_agreed(not_before, not_after), float(np.nanmedian(delivery))


def most_agreed(low: Floats, high: Floats) -> float:
    """A value inside as many of the intervals (low, high] as any: the middle of the first such stretch."""
    bounds = np.sort(np.concatenate([low[np.isfinite(low)], high]))
    middles = (bounds[:-1] + bounds[1:]) / 2 if len(bounds) > 1 else bounds
    lows, highs = np.sort(low), np.sort(high)
    inside = np.searchsorted(lows, middles, side="left") - np.searchsorted(highs, middles, side="left")
    return float(middles[np.argmax(inside)])


def _steps_of_prompts(log: LoggedSteps, prompt_tokens: Ints) -> tuple[dict[int, int], dict[int, int]]:
    """By request: the step of its first chunk, and that whose chunk completes its prompt."""
    first: dict[int, int] = {}
    complete: dict[int, int] = {}
    for step, chunks in enumerate(log.chunks):
        for request, before, tokens in chunks:
            if request < len(prompt_tokens):
                first.setdefault(request, step)
                if before + tokens >= prompt_tokens[request]:
                    complete.setdefault(request, step)
    return first, complete
