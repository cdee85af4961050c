"""The logs of several replicas as one: their iterations stand one replica after the other."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simulator.runlog import Iterations, LoggedRun
from simulator.trace import Ints


def as_one(runs: Sequence[LoggedRun]) -> LoggedRun:
    """One log of all requests, with those of the replicas beside it; of one replica its own."""
    if len(runs) == 1:
        return runs[0]
    first_iteration = _starts([len(run.iterations) for run in runs])
    streams = [run.streams if run.streams is not None else np.zeros(len(run.iterations), np.int64) for run in runs]
    first_stream = _starts([int(of_run.max(initial=-1)) + 1 for of_run in streams])
    return replace(
        runs[0],
        iterations=Iterations.one_after_the_other([run.iterations for run in runs]),
        stays=_joined([run.stays for run in runs], {"stream": first_stream, "previous": first_iteration}),
        emissions=_joined([run.emissions for run in runs], {"iteration": first_iteration, "previous": first_iteration}),
        requests=_joined(
            [run.requests for run in runs],
            dict.fromkeys(("first_scheduled", "first_token", "last_token"), first_iteration),
        )
        | {"replica": np.repeat(np.arange(len(runs)), [len(run.requests["request"]) for run in runs])},
        reasons={index: reason for run in runs for index, reason in run.reasons.items()},
        bubble_ns=sum(run.bubble_ns for run in runs),
        streams=np.concatenate([of_run + first for of_run, first in zip(streams, first_stream, strict=True)]),
        replicas=tuple(runs),
    )


def _starts(lengths: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(lengths[:-1]).tolist()]


def _joined(tables: Sequence[dict[str, Ints]], firsts: dict[str, list[int]]) -> dict[str, Ints]:
    """Tables below each other; the columns named count from each replica's first, and -1 stays -1."""
    joined = {}
    for name in tables[0]:
        columns = [table[name] for table in tables]
        if name in firsts:
            columns = [
                np.where(column < 0, column, column + first)
                for column, first in zip(columns, firsts[name], strict=True)
            ]
        joined[name] = np.concatenate(columns)
    return joined
