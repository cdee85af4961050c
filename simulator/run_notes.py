"""What the reader of a run must know beside its numbers."""

from collections.abc import Mapping
from typing import Any

from simulator.runlog import REJECTED, STALLED, LoggedRun
from simulator.table_costs import TableCosts
from simulator.trace import Trace

_PLACES = ("max_batch_size", "max_num_seqs", "max_running_requests")
"""Options that say how many requests run at once."""


def notes_of(log: LoggedRun, trace: Trace) -> list[str]:
    """Who could not be served, or not to the end."""
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
    return notes


def limits_met(log: LoggedRun, costs: TableCosts | None, options: Mapping[str, Any]) -> list[str]:
    """Which limits of the cost table and of the policy were met."""
    return ([] if costs is None else _outside_grid(log, costs)) + _at_the_cap(log, options)


def _at_the_cap(log: LoggedRun, options: Mapping[str, Any]) -> list[str]:
    """Where requests waited because as many ran as the policy allows: its limit is then what is compared."""
    notes = []
    rows = log.iterations
    time_ns, waiting = rows.of_stretches("time_ns"), rows.of_stretches("waiting") > 0
    in_step, running = (
        rows.of_stretches("num_decodes") + rows.of_stretches("num_prefills"),
        rows.of_stretches("running"),
    )
    for option in _PLACES:
        if options.get(option) is not None:
            of_each_step = bool((running > options[option]).any())  # in a pipeline some policies limit micro-batches
            held_up = waiting & ((in_step if of_each_step else running) >= options[option])
            share = time_ns[held_up].sum() / max(1, time_ns.sum())
            if share >= 0.01:
                notes.append(f"requests waited at {option} {options[option]} in {100 * share:.0f} % of the busy time")
    return notes


def reserving(log: LoggedRun, options: Mapping[str, Any], reserved_tokens: int, block_size: int) -> list[str]:
    """Where requests waited because of what is reserved for each, whatever its length."""
    rows = log.iterations
    fit = log.total_blocks // max(1, -(-reserved_tokens // block_size))
    for option in _PLACES:
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
