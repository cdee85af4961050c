"""Replays step logs of a running engine through this project's `vllm` policy and scheduler.

`python -m tests.step_logs FOLDER...`: given the logged times of all steps, the composition of every step must come
out. Prints the first differing step of each log and a line a log, then `N logs, M steps, K different`; exit status 1 if
any differs. A folder holds `run.json` (configuration), `trace.csv` (the requests) and `steps.csv.gz` (a row a step).

What the clocks decide: the outputs of a step are there for every `schedule()` that starts after its `update_end_s`, and
a request is there for every one that starts at or after its arrival. A client and an engine do not share a moment,
though: messages take time, and an asynchronous engine's clock is only aligned with its client's. So where an arrival
and a schedule() lie within the window of each other, and there only, the logged queue lengths decide whether the
request was there, and the report says how often they overruled the clocks and by how much. In such a row
`num_waiting` proves nothing; all else, and every other row, is the simulation's own.
"""

import argparse
import csv
import gzip
import json
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from policies.vllm import Vllm
from simulator.core import Batch, Request, View
from simulator.costs import LinearCosts
from simulator.pipeline.layers import split_layers
from simulator.pipeline.prices import SharedByLayers
from simulator.pipeline.scheduler import PipelinedScheduler
from simulator.pipeline.times import PipelineTimes
from simulator.scheduler import Scheduler
from simulator.step_times import GpuTimes

Row = dict[str, Any]
COUNTS = ("num_waiting", "num_running", "num_decodes", "decode_context_sum", "decode_context_max")
WINDOW_MS = 2.0


def nanoseconds(seconds: str) -> int:
    """A logged time."""
    return round(float(seconds) * 1e9)


def trace_of(folder: Path) -> list[Request]:
    """The requests in order of arrival."""
    with open(folder / "trace.csv", encoding="utf-8", newline="") as file:
        return [
            Request(i, nanoseconds(row["arrival_s"]), int(row["prompt_tokens"]), int(row["output_tokens"]))
            for i, row in enumerate(csv.DictReader(file))
        ]


def rows_of(folder: Path) -> Iterator[Row]:
    """The logged steps in order."""
    with gzip.open(folder / "steps.csv.gz", "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield {
                "step": int(row["step"]),
                "start": nanoseconds(row["schedule_start_s"]),
                "end": nanoseconds(row["update_end_s"]),
                **{name: int(row[name]) for name in COUNTS},
                "prefills": row["prefills"].split(),
                "preempted": [int(request) for request in row["preempted"].split()],
            }


@dataclass(frozen=True)
class Remembering(Vllm):
    """The policy, and what it planned in the log's columns."""

    planned: list[Row] = field(default_factory=list, compare=False)

    def plan(self, view: View) -> Batch | None:
        """The next step, remembered."""
        batch = super().plan(view)
        preempted = () if batch is None else batch.preempted
        chosen = () if batch is None else view.decoding_requests() if batch.decodes is None else batch.decodes
        contexts = [view.context_tokens(request) + 1 for request in chosen if request not in preempted]
        chunks = () if batch is None else batch.chunks
        self.planned.append(
            {
                "num_decodes": len(contexts),
                "decode_context_sum": sum(contexts),
                "decode_context_max": max(contexts, default=0),
                "prefills": [f"{request.index}:{request.computed}:{tokens}" for request, tokens in chunks],
                "preempted": [request.index for request in preempted],
            }
        )
        return batch


def policy_of(run: Row) -> Remembering:
    """The policy with the log's configuration; ValueError for what this version does not simulate."""
    if run.get("enable_prefix_caching"):
        raise ValueError("prefix caching: not simulated, the log does not hold the prompts' contents")
    if run["mode"] not in ("sync", "async"):
        raise ValueError(f"mode {run['mode']!r}: not simulated by this version")
    return Remembering(
        max_num_batched_tokens=run["budget"],
        max_num_seqs=run["max_num_seqs"],
        long_prefill_token_threshold=run.get("lpt", 0),
        enable_prefix_caching=False,
        async_scheduling=run["mode"] == "async",
    )


class Replay:
    """One log through the scheduler, a row at a time."""

    def __init__(self, folder: Path, window_ns: int) -> None:
        run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        self.policy = policy_of(run)
        self.scheduler = _scheduler(self.policy, run)
        self.coming = trace_of(folder)[::-1]
        self.requests = len(self.coming)
        self.late_ns = window_ns
        self.early_ns = window_ns if self.policy.async_scheduling else 0  # else client and engine share one clock
        self.flying: deque[tuple[int, bool]] = deque()
        """The end of each step under way, and whether it has a place of the scheduler's."""
        self.overruled: dict[int, int] = {}
        """By how much (ns) the queue lengths overruled the clocks, by request."""

    def step(self, row: Row) -> Row:
        """What the simulation says about the step that starts at the row's time; `in_flight` are the steps before it
        that are not complete, which the engine's rule prescribes and the row's clock shows."""
        view, start = self.scheduler.view, row["start"]
        before = len(self.flying)
        self._complete(start)
        dry = not self.scheduler.unfinished
        self._let_arrive(row)
        row["in_flight"] = shown = len(self.flying)
        prescribed = min(before, self.scheduler.depth - 1)
        simulated: Row = {
            "in_flight": min(shown, prescribed) if dry else prescribed,
            "num_waiting": len(view.waiting),
            "num_running": len(view.running),
        }
        under_way = self.scheduler.under_way
        self.scheduler.schedule(start)
        self.flying.append((row["end"], self.scheduler.under_way > under_way))
        return simulated | self.policy.planned[-1]

    def left_over(self) -> int:
        """Requests of the trace that are not finished after the last row."""
        self._complete(None)
        return self.scheduler.unfinished + len(self.coming)

    def _complete(self, now: int | None) -> None:
        """Apply the outputs of the steps that are complete by `now` (None: of all)."""
        while self.flying and (now is None or self.flying[0][0] <= now):
            if self.flying.popleft()[1]:
                self.scheduler.complete()

    def _let_arrive(self, row: Row) -> None:
        """Queue the requests that this step can know, as the module's docstring says."""
        unseen = row["num_waiting"] + row["num_running"] - self.scheduler.unfinished
        while self.coming:
            since = row["start"] - self.coming[-1].arrival_ns
            by_clock = since >= 0
            there = unseen > 0 if -self.early_ns <= since < self.late_ns else by_clock
            if there != by_clock:
                index = self.coming[-1].index
                self.overruled[index] = max(abs(since), self.overruled.get(index, 0))
            if not there:
                return
            self.scheduler.arrive(self.coming.pop())
            unseen -= 1


def _scheduler(policy: Remembering, run: Row) -> Scheduler:
    costs, stages = LinearCosts(fixed_ns=1, per_token_ns=0, per_context_token_ns=0), run.get("pipeline", 1)
    memory: Row = {"block_size": run["block"], "num_blocks": run["kv_blocks"], "give_up_on_impossible": False}
    if stages == 1:
        return Scheduler(policy, GpuTimes(costs), **memory)  # the log has the times
    prices = SharedByLayers(costs, split_layers(stages, stages))
    return PipelinedScheduler(policy, PipelineTimes(prices, stages, lambda _: 0), **memory)


def difference(row: Row, simulated: Row) -> str | None:
    """The columns in which a step differs, or None."""
    wrong = [f"{key}: recorded {row[key]}, simulated {value}" for key, value in simulated.items() if row[key] != value]
    return f"step {row['step']}: " + "; ".join(wrong) if wrong else None


def replay(folder: Path, window_ns: int) -> tuple[int, list[str], str]:
    """(steps, what differs, the log's line) of one log."""
    try:
        run = Replay(folder, window_ns)
    except ValueError as error:
        return 0, [str(error)], "not replayed"
    steps, wrong = 0, []
    for row in rows_of(folder):
        steps += 1
        differing = difference(row, run.step(row))
        if differing:
            wrong.append(differing)
    if run.left_over():
        wrong.append(f"after the last step: {run.left_over()} requests of the trace are not finished")
    most = max(run.overruled.values(), default=0) / 1e6
    window = f"{len(run.overruled)} of {run.requests} arrivals needed the window, at most {most:.3f} ms"
    return steps, wrong, f"{steps} steps, {len(wrong)} different, {window}"


def main(arguments: list[str]) -> int:
    """Replay every log."""
    parser = argparse.ArgumentParser(prog="python -m tests.step_logs", description="Replay step logs of an engine.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--window", type=float, default=WINDOW_MS, metavar="MS", help="default: %(default)s")
    options = parser.parse_args(arguments)
    all_steps = different = 0
    for folder in options.folders:
        steps, wrong, line = replay(folder, round(options.window * 1e6))
        all_steps, different = all_steps + steps, different + len(wrong)
        if wrong:
            print(f"{folder.name}: {wrong[0]}"[:600])
        print(f"{folder.name}: {line}")
    print(f"{len(options.folders)} logs, {all_steps} steps, {different} different")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
