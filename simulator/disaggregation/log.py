"""The logs of two pools as one: a request's prompt and first token are in one log, its other tokens in another."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.replicas import as_one
from simulator.runlog import LoggedRun
from simulator.trace import Ints

if TYPE_CHECKING:
    from simulator.disaggregation.schedulers import Incoming

_TIMES = ("ready_ns", "room_ns", "landed_ns")


@dataclass(frozen=True)
class Transfers:
    """Of those who went on to the decode pool, a row each: `request`, and when its prompt was computed (`ready_ns`),
    room was found for it (`room_ns`) and its KV had come (`landed_ns`); -1 for what never happened."""

    request: Ints
    ready_ns: Ints
    room_ns: Ints
    landed_ns: Ints


@dataclass(frozen=True)
class PooledRun:
    """`log` has the first `prefill_replicas` of its replicas in the prefill pool, the others in the decode pool."""

    log: LoggedRun
    prefill_replicas: int
    transfers: Transfers


def pooled_run(runs: Sequence[LoggedRun], prefill_replicas: int, sent: "Sequence[Incoming]") -> PooledRun:
    """The logs `runs` of the prefill and then the decode replicas as one of whole requests."""
    both = as_one(runs)
    first_decode = sum(len(run.iterations) for run in runs[:prefill_replicas])
    requests, first_token = _whole_requests(both.requests, prefill_replicas)
    decoded = both.emissions["iteration"] >= first_decode
    log = replace(
        both,
        requests=requests,
        stays=_continued(both.stays, first_token, np.ones(len(both.stays["request"]), bool)),
        emissions=_continued(both.emissions, first_token, decoded),
    )
    moments = [[getattr(incoming, name) for incoming in sent] for name in _TIMES]
    columns = [np.array(values, np.int64) for values in ([incoming.request.index for incoming in sent], *moments)]
    return PooledRun(log, prefill_replicas, Transfers(*columns))


def _whole_requests(rows: dict[str, Ints], prefill_replicas: int) -> tuple[dict[str, Ints], Ints]:
    """A row a request: how it began in the prefill pool and, if it went on, how it ended in the other. Also the
    iteration of the first token by request."""
    begun = rows["replica"] < prefill_replicas
    size = int(rows["request"].max(initial=-1)) + 1
    first, last = np.full(size, -1), np.full(size, -1)
    first[rows["request"][begun]] = np.flatnonzero(begun)
    last[rows["request"][begun]] = np.flatnonzero(begun)
    last[rows["request"][~begun]] = np.flatnonzero(~begun)
    one = last[first >= 0]
    start = first[first >= 0]
    whole = {name: values[one] for name, values in rows.items()}
    for name in ("first_scheduled", "first_token", "cached"):
        whole[name] = rows[name][start]
    went_on = one != start
    whole["preemptions"] = rows["preemptions"][start] + np.where(went_on, rows["preemptions"][one], 0)
    whole["last_token"] = np.where(whole["last_token"] < 0, rows["last_token"][start], whole["last_token"])
    whole["replica"] = rows["replica"][start]
    whole["decode_replica"] = np.where(went_on, rows["replica"][one], -1)
    return whole, rows["first_token"][first]


def _continued(rows: dict[str, Ints], first_token: Ints, where: NDArray[np.bool_]) -> dict[str, Ints]:
    """Before the first token that a request has in the decode pool it had its first, in the other."""
    begins = where & (rows["previous"] < 0)
    return rows | {"previous": np.where(begins, first_token[rows["request"]], rows["previous"])}
