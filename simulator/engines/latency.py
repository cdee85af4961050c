"""What passes between a client and the scheduler: from a request's arrival until the scheduler can see it, and from the
engine's having a token until the client has it.

A step log has the times of `schedule()` calls. A request that a call did not schedule, though it scheduled all that
waited, had not come yet; one that it did, had. With many requests these bounds leave little room.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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
    if not np.isfinite(rows[["arrival_s", "prompt_tokens"]].to_numpy(float)).all():
        raise InputError("arrival_s and prompt_tokens should be known of every request", path=path)
    rows = rows.sort_values("arrival_s", kind="stable")
    return ClientTimes(
        rows["arrival_s"].to_numpy(float), rows["first_token_s"].to_numpy(float), rows["prompt_tokens"].to_numpy(int)
    )


@dataclass(frozen=True)
class Latency:
    """Seconds from arrival to scheduler and from engine to client; the log allows for `room_s` of the first, and does
    not tell what it does not bound (infinite)."""

    arrival_s: float
    delivery_s: float
    room_s: float


def arrival_and_delivery(log: LoggedSteps, clients: ClientTimes) -> Latency:
    """By the first chunk and first token of each request.

    Between two processes whose clocks differ only the sum of both means something. Request numbers of the log are
    places in order of arrival. Raises InputError where the clients' requests cannot be those of the log.
    """
    first, complete = _steps_of_prompts(log, clients.prompt_tokens)
    requests = np.array(sorted(complete), dtype=np.int64)
    if not len(requests):
        raise InputError("none of the requests in the log is in the request file", path=log.path)
    steps = np.array([first[request] for request in requests.tolist()])
    arrival = clients.arrival_s[requests]
    bounded = (steps > 0) & _took_all(log)[steps - 1]
    low = np.where(bounded, log.schedule_start_s[steps - 1] - arrival, -np.inf)
    high = log.schedule_start_s[steps] - arrival
    least, most = most_agreed(low, high)
    agreeing = int(((low < most) & (most <= high)).sum())
    delivery = (
        clients.first_token_s[requests] - log.output_ready_s[[complete[request] for request in requests.tolist()]]
    )
    if 2 * agreeing < len(requests):
        problem = f"the request file does not fit the log: {agreeing} of {len(requests)} arrivals agree with its steps"
        raise InputError(problem, path=log.path)
    if not np.isfinite(delivery).any():
        raise InputError("no request of the file has a first token", path=log.path)
    return Latency((least + most) / 2, float(np.nanmedian(delivery)), most - least)


def most_agreed(low: Floats, high: Floats) -> tuple[float, float]:
    """The ends of the first stretch whose values lie inside as many of the intervals (low, high] as any. O(n log n).

    `low` may be -inf; if that of all is, so is the first end.
    """
    bounds = np.unique(np.concatenate([low, high]))
    ends = bounds[1:] if len(bounds) > 1 else bounds
    inside = np.searchsorted(np.sort(low), ends) - np.searchsorted(np.sort(high), ends)
    place = int(np.argmax(inside))
    return float(bounds[place]), float(ends[place])


def _took_all(log: LoggedSteps) -> NDArray[np.bool_]:
    """Of each step, whether it scheduled every request that waited."""
    running: set[int] = set()
    admitted = np.zeros(len(log), dtype=np.int64)
    for step, (chunks, preempted) in enumerate(zip(log.chunks, log.preempted, strict=True)):
        running.difference_update(preempted)
        new = {request for request, _, _ in chunks} - running
        admitted[step] = len(new)
        running |= new
    return np.asarray(admitted >= log.num_waiting)


def _steps_of_prompts(log: LoggedSteps, prompt_tokens: Ints) -> tuple[dict[int, int], dict[int, int]]:
    """By request: the step of its first chunk, and that whose chunk completes its prompt. InputError where a prompt is
    longer than the client's."""
    first: dict[int, int] = {}
    complete: dict[int, int] = {}
    preempted: set[int] = set()  # these compute their outputs again with the prompt
    for step, chunks in enumerate(log.chunks):
        preempted.update(log.preempted[step])
        for request, before, tokens in chunks:
            if request >= len(prompt_tokens):
                continue
            first.setdefault(request, step)
            if before + tokens > prompt_tokens[request] and request not in preempted:
                problem = f"request {request} has a prompt of {before + tokens} tokens and more, in the request file of"
                raise InputError(f"{problem} {prompt_tokens[request]}", path=log.path, line=int(log.line[step]))
            if before + tokens >= prompt_tokens[request]:
                complete.setdefault(request, step)
    return first, complete
