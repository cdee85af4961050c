"""Replays recorded decisions of real schedulers through this project's policies and scheduler.

`python -m tests.golden FILE.jsonl.gz ...` prints a line a scenario (`ok`, or the first differing step with the recorded
and the simulated value of each field), then `N scenarios, M steps, K different`; exit status 1 if any differs. The
files hold, for each `schedule()` call of the real scheduler, what it scheduled, admitted and preempted, and the state
of queues and memory (format `golden-sched/1`).
"""

import gzip
import json
import sys
from collections.abc import Iterator
from typing import Any

from policies.orca import Orca
from policies.sarathi import Sarathi
from policies.vllm import Vllm
from simulator.core import Batch, Policy, Request, View
from simulator.costs import LinearCosts
from simulator.scheduler import Scheduler

Record = dict[str, Any]


def scenarios(path: str) -> Iterator[tuple[Record, list[Record], list[Record], Record]]:
    """(header, requests, steps, summary) of each scenario of a file."""
    header: Record = {}
    requests: list[Record] = []
    steps: list[Record] = []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            kind = record.get("kind")
            if kind == "header":
                header, steps = record, []
            elif kind == "requests":
                requests = record["requests"]
            elif kind == "summary":
                yield header, requests, steps, record
            else:
                steps.append(record)


def policy_of(header: Record) -> Policy | None:
    """The policy with the header's configuration, or None where no policy covers it."""
    config = header["config"]
    if header["engine"] == "vllm":
        return Vllm(
            max_num_batched_tokens=config["max_num_batched_tokens"],
            max_num_seqs=config["max_num_seqs"],
            long_prefill_token_threshold=config["long_prefill_token_threshold"],
            enable_chunked_prefill=config["enable_chunked_prefill"],
            scheduling_policy=config["policy"],
            enable_prefix_caching=config["enable_prefix_caching"],
            scheduler_reserve_full_isl=config["scheduler_reserve_full_isl"],
            async_scheduling=False,
            max_model_len=config["max_model_len"],
        )
    if header["engine"] == "sarathi-serve" and config["scheduler"] == "sarathi":
        return Sarathi(config["chunk_size"], config["max_num_seqs"], tile_size=0, max_prefills_per_batch=0)
    if header["engine"] == "sarathi-serve" and config["scheduler"] == "orca":
        return Orca(config["max_num_seqs"], "max_model_len", config["max_model_len"])
    return None


class Contents:
    """Keys of blocks from the recorded token identities: equal keys mean equal tokens up to the block's end."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._keys: dict[tuple[int, tuple[int, ...]], int] = {}

    def keys(self, record: Record) -> list[int]:
        """Keys of all full blocks of a request's prompt and output."""
        segments = record.get("seg", [[2**21 + record["id"], record["p"]]])
        tokens = [segment * 2**22 + place for segment, length in segments for place in range(length)]
        tokens += [(2**20 + record["id"]) * 2**22 + place for place in range(record["o"])]
        keys, parent = [], 0
        for start in range(0, len(tokens) - self.block_size + 1, self.block_size):
            block = (parent, tuple(tokens[start : start + self.block_size]))
            parent = self._keys.setdefault(block, len(self._keys) + 1)
            keys.append(parent)
        return keys


class Replay:
    """One scenario through the scheduler, a recorded step at a time."""

    def __init__(self, header: Record, requests: list[Record], policy: Policy) -> None:
        config, times = header["config"], header["time_model"]
        self.prefills_first = header["engine"] == "sarathi-serve"
        costs = LinearCosts(
            fixed_ns=times["a_ns"],
            per_token_ns=times["b_ns_per_token"],
            per_context_token_ns=times["c_ns_per_ctx_token"],
        )
        self.costs = costs
        self.scheduler = Scheduler(
            policy,
            costs,
            block_size=config["block_size"],
            num_blocks=config["num_gpu_blocks"],
            prefixes=True,
            give_up_on_impossible=False,
        )
        self.planned: Batch | None = None
        plan = self.scheduler._plan

        def capture(view: View) -> Batch | None:
            self.planned = plan(view)
            return self.planned

        self.scheduler._plan = capture
        self.coming = [Request(r["id"], r["arr"], r["p"], r["o"], r.get("prio", 0)) for r in requests][::-1]
        if config.get("enable_prefix_caching"):
            contents = Contents(config["block_size"])
            for request, record in zip(self.coming[::-1], requests, strict=True):
                request.keys = contents.keys(record)
        self.now = 0

    def step(self) -> Record:
        """Schedule and complete the next step; what happened, in the recorded form."""
        scheduler, view = self.scheduler, self.scheduler.view
        if not scheduler.unfinished:
            self.now = max(self.now, self.coming[-1].arrival_ns)
        added = []
        while self.coming and self.coming[-1].arrival_ns <= self.now:
            added.append(self.coming[-1].index)
            scheduler.arrive(self.coming.pop())
        order, decoding, waited = list(view.running), set(view.decoding_requests()), list(view.waiting)
        kv_before = {request: view.context_tokens(request) for request in order}
        end_ns = scheduler.schedule(self.now)
        batch = self.planned or Batch()
        decodes = () if end_ns is None else (decoding if batch.decodes is None else batch.decodes)
        tokens = {request: 1 for request in decodes if request not in batch.preempted}
        tokens.update(batch.chunks)
        admitted = [request for request, _ in batch.chunks if request in waited]
        lined_up = [request for request in order if request in tokens and request not in admitted] + admitted
        if self.prefills_first:
            chunked = [request for request, _ in batch.chunks]
            lined_up = chunked + sorted((r for r in tokens if r not in chunked), key=lambda r: r.index)
        hits = {request: request.computed - tokens[request] for request in admitted}
        context = sum((hits[r] if r in hits else kv_before[r]) + tokens[r] for r in lined_up)
        record = {
            "t": self.now,
            "dt": self.costs.fixed_ns if end_ns is None else end_ns - self.now,
            "add": added,
            "s": [r.index if tokens[r] == 1 else [r.index, tokens[r]] for r in lined_up],
            "new": [r.index for r in admitted if r.preemptions == 0],
            "hit": sorted([r.index, hits[r]] for r in admitted if hits[r]),
            "res": [r.index for r in admitted if r.preemptions],
            "pre": [request.index for request in batch.preempted],
            "tok": sum(tokens.values()),
            "ctx": context,
            "run": len(view.running),
            "wait": len(view.waiting),
            "free": view.free_blocks,
        }
        finishing = () if end_ns is None else scheduler.complete()
        record["fin"] = [request.index for request in lined_up if request in finishing]
        record["free2"] = view.free_blocks
        self.now += record["dt"]
        return record


def difference(recorded: Record, simulated: Record) -> str | None:
    """The fields in which a step differs, or None."""
    wrong = [
        f"{key}: recorded {recorded.get(key, [])}, simulated {value}"
        for key, value in simulated.items()
        if recorded.get(key, []) != value
    ]
    return "; ".join(wrong) or None


def replay(header: Record, requests: list[Record], steps: list[Record], policy: Policy) -> str | None:
    """The first difference of a scenario, or None."""
    run = Replay(header, requests, policy)
    for recorded in steps:
        wrong = difference(recorded, run.step())
        if wrong:
            return f"step {recorded['i']}: {wrong}"
    return None


def main(paths: list[str]) -> int:
    """Replay every scenario of every file."""
    counts = {"scenarios": 0, "steps": 0, "different": 0}
    for path in paths:
        for header, requests, steps, _ in scenarios(path):
            policy = policy_of(header)
            counts["scenarios"] += 1
            counts["steps"] += len(steps)
            wrong = (
                "no policy covers this engine's configuration"
                if policy is None
                else replay(header, requests, steps, policy)
            )
            counts["different"] += wrong is not None
            print(f"{header['engine']} {header['name']}: {wrong or 'ok'}"[:400])
    print(f"{counts['scenarios']} scenarios, {counts['steps']} steps, {counts['different']} different")
    return int(counts["different"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
