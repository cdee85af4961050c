"""Runs an experiment: each policy over the same trace, one after the other or in parallel processes."""

import gc
import multiprocessing
import os
import platform
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
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
from simulator.runlog import REJECTED, STALLED, LoggedRun
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
    """One policy over the whole trace."""
    with _blaming(run):
        policy, costs = experiment.make_policy(run), experiment.make_costs()
        parallel = experiment.parallel
        times = [experiment.make_times(costs, policy, run) for _ in range(parallel.replicas)]
        block_size, num_blocks = experiment.blocks_for(policy)
    gc.collect()
    gc.disable()  # a run makes no reference cycles, and collecting over a million requests is a quarter of its time
    try:
        with _blaming(run):
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
    finally:
        gc.enable()
    result = policy_result(run.label, run.policy, run.options, trace, log)
    table = costs if isinstance(costs, TableCosts) else None
    notes = _notes(log, table, trace, run.options)
    with _blaming(run):
        reserved = policy.reserve_tokens(Request(0, 0, 1, 1))
    notes += _reserving(log, run.options, reserved, block_size)
    return replace(result, notes=tuple(notes))


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


def _notes(log: LoggedRun, costs: TableCosts | None, trace: Trace, options: Mapping[str, Any]) -> list[str]:
    """What the reader must know beside the numbers."""
    notes = []
    for status, word in ((REJECTED, "rejected"), (STALLED, "stalled")):
        indices = log.requests["request"][log.requests["status"] == status].tolist()
        if indices:
            first = min(indices)
            name = trace.request_id[first] if trace.request_id is not None else first
            notes.append(
                f"{len(indices)} of {len(trace)} requests {word} (first: request {name}: {log.reasons[first]})"
            )
    cut = int(
        (log.requests["generated"] < trace.output_tokens[log.requests["request"]])[log.requests["status"] == 0].sum()
    )
    if cut:
        notes.append(f"{counted(cut, 'request')} reached max_model_len; output was cut there")
    if costs is not None:
        notes += _outside_grid(log, costs)
    notes += _at_the_cap(log, options)
    return notes


def _at_the_cap(log: LoggedRun, options: Mapping[str, Any]) -> list[str]:
    """Where requests waited because as many ran as the policy allows: its limit is then what is compared."""
    notes = []
    rows = log.iterations
    time_ns, waiting = rows.of_stretches("time_ns"), rows.of_stretches("waiting") > 0
    in_step, running = (
        rows.of_stretches("num_decodes") + rows.of_stretches("num_prefills"),
        rows.of_stretches("running"),
    )
    for option in ("max_batch_size", "max_num_seqs"):
        if options.get(option) is not None:
            of_each_step = bool((running > options[option]).any())  # in a pipeline some policies limit micro-batches
            held_up = waiting & ((in_step if of_each_step else running) >= options[option])
            share = time_ns[held_up].sum() / max(1, time_ns.sum())
            if share >= 0.01:
                notes.append(f"requests waited at {option} {options[option]} in {100 * share:.0f} % of the busy time")
    return notes


def _reserving(log: LoggedRun, options: Mapping[str, Any], reserved_tokens: int, block_size: int) -> list[str]:
    """Where requests waited because of what is reserved for each, whatever its length."""
    rows = log.iterations
    fit = log.total_blocks // max(1, -(-reserved_tokens // block_size))
    for option in ("max_batch_size", "max_num_seqs"):
        waited = fit < (options.get(option) or 0) and bool((rows.of_stretches("waiting") > 0).any())
        if waited and rows.of_stretches("running").max() >= fit:
            reach = f"{option} {options[option]} is out of reach"
            return [f"the {reserved_tokens} tokens reserved for a request fit {fit} times; {reach}"]
    return []


def counted(count: int, noun: str) -> str:
    """'1 step', '2 steps'."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _outside_grid(log: LoggedRun, costs: TableCosts) -> list[str]:
    rows, grid, notes = log.iterations, costs.grid, []
    steps, decodes = rows.of_stretches("length"), rows.of_stretches("num_decodes")
    tokens = decodes + rows.of_stretches("prefill_tokens")
    sequences = decodes + rows.of_stretches("num_prefills")
    for outside, limit, what in (
        (int(steps[tokens > grid.tokens].sum()), grid.tokens, "tokens"),
        (int(steps[sequences > grid.sequences].sum()), grid.sequences, "sequences"),
        (int(steps[decodes > grid.decodes].sum()), grid.decodes, "decodes"),
        (costs.steps_beyond_prefill_context, grid.prefill_context, "tokens of context before a chunk"),
        (costs.steps_beyond_decode_context, grid.decode_context, "tokens of mean decode context"),
    ):
        if outside:
            share = f"{100 * outside / len(rows):.2g} %"
            notes.append(
                f"{counted(outside, 'step')} ({share}) of more than the {limit} {what} measured; the trend is continued"
            )
    return notes
