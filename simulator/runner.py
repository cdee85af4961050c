"""Runs an experiment: each policy over the same trace, one after the other or in parallel processes."""

import gc
import multiprocessing
import os
import platform
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from simulator import __version__
from simulator.clients import requests_of
from simulator.core import Request
from simulator.engine import simulate
from simulator.engines.profile import engine_sha256
from simulator.errors import InputError, PolicyError
from simulator.experiment import Experiment
from simulator.formats import read_trace
from simulator.metrics.summary import policy_result
from simulator.policy_runs import PolicyRun
from simulator.results import PolicyResult
from simulator.routers import make_router
from simulator.run_notes import limits_met, notes_of, reserving
from simulator.scheduler import Scheduler
from simulator.table_costs import TableCosts
from simulator.trace import Trace

OnStep = Callable[[Scheduler], None]


def load_trace(experiment: Experiment) -> Trace:
    """The experiment's requests: read, cut to `limit`, sped up."""
    trace = read_trace(experiment.trace, repair=experiment.repair)
    if experiment.limit is not None:
        trace = trace.first(experiment.limit)
    if experiment.speedup == 1:
        return trace
    if int(trace.arrival_ns[-1] - trace.arrival_ns[0]) / experiment.speedup >= 2**63:
        raise InputError("the arrivals would be spread over more than 292 years", key="speedup")
    return trace.sped_up(experiment.speedup)


def run_policy(experiment: Experiment, run: PolicyRun, trace: Trace, on_step: OnStep | None = None) -> PolicyResult:
    """One policy, or one disaggregated system, over the whole trace."""
    system = experiment.systems.get(run.label, experiment)
    if not isinstance(system, Experiment):
        with _unhindered(), _blaming(run):
            return system.run(run, trace, on_step)
    experiment = system
    with _blaming(run):
        policy, costs = experiment.make_policy(run), experiment.make_costs()
        parallel = experiment.parallel
        times = [experiment.make_times(costs, policy, run) for _ in range(parallel.replicas)]
        block_size, num_blocks = experiment.blocks_for(policy)
        if trace.prefix_ids is not None:
            experiment.check_prefixes(run, block_size)
    with _unhindered(), _blaming(run):
        log = simulate(
            requests_of(trace, block_size, experiment.prefix_block_size),
            policy,
            *times,
            block_size=block_size,
            num_blocks=num_blocks,
            prefixes=trace.prefix_ids is not None,
            router=make_router(parallel.router, experiment.seed),
            on_step=on_step,
        )
    result = policy_result(run.label, run.policy, run.options, trace, log, parallel.gpus)
    table = costs if isinstance(costs, TableCosts) else None
    notes = notes_of(log, trace) + limits_met(log, table, run.options)
    with _blaming(run):
        reserved = policy.reserve_tokens(Request(0, 0, 1, 1))
    notes += reserving(log, run.options, reserved, block_size)
    return replace(result, notes=tuple(notes))


@contextmanager
def _unhindered() -> Iterator[None]:
    """A run makes no reference cycles, and collecting over a million requests is a quarter of its time."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def _blaming(run: PolicyRun) -> Iterator[None]:
    """A user's policy that fails is named, with the line of theirs; ours that fail keep their traceback."""
    try:
        yield
    except (InputError, PolicyError, KeyboardInterrupt, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, OverflowError) and not _raised_in(run, error):
            problem = "times exceed 2^63 nanoseconds (292 years): arrivals, lengths or costs are too large"
            raise InputError(problem) from None
        if ":" not in run.policy:
            raise
        origin = error.__cause__ or error  # SimPy raises a copy of what a process raised
        theirs = _raised_in(run, error)
        place = f" at {theirs[-1].filename}, line {theirs[-1].lineno}" if theirs else ""
        problem = f"{type(origin).__name__}: {origin}" if str(origin) else type(origin).__name__
        raise PolicyError(f"policy {run.policy} failed{place}: {problem}") from error


def _raised_in(run: PolicyRun, error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of a user's policy in an error's traceback."""
    if ":" not in run.policy:
        return []
    origin = error.__cause__ or error  # SimPy raises a copy of what a process raised
    module = run.policy.partition(":")[0].rpartition(".")[2]
    return [frame for frame in traceback.extract_tb(origin.__traceback__) if Path(frame.filename).stem == module]


def run_policies(
    experiment: Experiment, trace: Trace, jobs: int, on_step: Callable[[PolicyRun], OnStep | None]
) -> Iterator[PolicyResult]:
    """Results as they come; with `jobs` above 1 in that many processes, so in any order."""
    if jobs == 1 or len(experiment.policies) == 1:
        for run in experiment.policies:
            yield run_policy(experiment, run, trace, on_step(run))
        return
    with ProcessPoolExecutor(min(jobs, len(experiment.policies)), initializer=_follow_parent) as pool:
        futures = [pool.submit(run_policy, experiment, run, trace) for run in experiment.policies]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool:
            raise ChildProcessError("a worker process was killed; where memory is short use fewer --jobs") from None
        except BaseException:  # leaving the pool would wait for what still runs
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _follow_parent() -> None:
    """In a worker: leave Ctrl-C to the parent, and end when the parent is gone, however it went."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def provenance(experiment: Experiment, trace: Trace, command: str) -> dict[str, Any]:
    """What made this run, for `experiment.yaml`."""
    packages = ("numpy", "pandas", "simpy")
    return {
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"chunkwise": __version__, "python": platform.python_version()}
        | {package: _version(package) for package in packages},
        "trace_format": trace.format,
        "trace_sha256": trace.sha256,
        "trace_requests": len(trace),
        "costs_sha256": experiment.costs_sha256,
        "engine_sha256": engine_sha256(experiment.engine),
        "notes": [*experiment.notes, *trace.notes, *_not_simulated(trace)],
    }


def _not_simulated(trace: Trace) -> list[str]:
    """Columns of the trace that this version reads and does not act on."""
    notes = []
    if trace.session_id is not None:
        notes.append("session_id: turns arrive at their recorded times, whether the turn before has ended or not")
    return notes


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
