"""Replays recordings of text-generation-inference through the policy `tgi`: a line is a forward (`k`: `p` for a Prefill
call, `d` for a Decode call), and `held` counts the blocks of its rows.

`python -m tests.golden_tgi CASES.json` replays cases of its queue's own unit tests (format `tgi-cases/1`).
"""

import json
import sys
from pathlib import Path
from typing import Any

from policies.tgi import Tgi
from simulator.core import Batch, Request, View
from simulator.costs import LinearCosts
from simulator.scheduler import Scheduler
from simulator.step_times import GpuTimes
from tests.golden_files import Contents, Record, Scenario, Verdict
from tests.golden_replay import costs_of, every_difference, fates, follow


def tgi(config: Record) -> Tgi:
    """The policy with a recorded configuration. Raises ValueError for what it does not model."""
    if config["requires_padding"] or config["window_size"] is not None:
        raise ValueError("models that pad and sliding windows are not modelled")
    return Tgi(
        waiting_served_ratio=config["waiting_served_ratio"],
        max_waiting_tokens=config["max_waiting_tokens"],
        max_batch_prefill_tokens=config["max_batch_prefill_tokens"],
        max_batch_total_tokens=config["max_batch_total_tokens"],
        max_batch_size=config["max_batch_size"],
        prefill_chunking=config["support_chunking"],
        prefix_caching=config["prefix_caching"],
        block_size=config["block_size"],
        speculate=config["speculate"],
    )


class Replay:
    """One scenario through the scheduler, a recorded forward at a time."""

    def __init__(self, scenario: Scenario) -> None:
        config = scenario.config
        self.policy = tgi(config)
        costs = costs_of(scenario)
        self.scheduler = Scheduler(
            self.policy,
            GpuTimes(costs),
            block_size=config["block_size"],
            num_blocks=config["max_batch_total_tokens"] // config["block_size"],
            prefixes=True,
            give_up_on_impossible=False,
        )
        self.planned = Batch(decodes=())
        plan = self.scheduler._plan

        def capture(view: View) -> Batch | None:
            batch = plan(view)
            self.planned = batch or Batch(decodes=())
            return batch

        self.scheduler._plan = capture
        self.coming = [Request(r["id"], r["arr"], r["p"], r["o"]) for r in scenario.requests][::-1]
        contents = Contents(config["block_size"])
        for request, record in zip(self.coming[::-1], scenario.requests, strict=True):
            request.keys = contents.keys(record)
        self.now = self.steps = 0

    @property
    def over(self) -> bool:
        """Whether every request has arrived and ended."""
        return not self.coming and not self.scheduler.unfinished

    def step(self) -> Record | None:
        """The next forward in the recorded form, or None if there is none whoever comes."""
        scheduler, view = self.scheduler, self.scheduler.view
        added = self._arrivals()
        held = {request: view.context_tokens(request) for request in view.running}
        decoding = view.decoding_requests()
        end_ns = scheduler.schedule(self.now)
        while end_ns is None:
            if not self.coming:
                return None
            self.now = self.coming[-1].arrival_ns
            added += self._arrivals()
            end_ns = scheduler.schedule(self.now)
        batch = self.planned
        decodes = decoding if batch.decodes is None else batch.decodes
        tokens = dict.fromkeys(decodes, 1) | dict(batch.chunks)
        joined = [request for request, _ in batch.chunks if request not in held]
        hits = {request: request.computed - tokens[request] for request in joined}
        rows = [request for request in view.running if request in tokens]
        before = held | hits
        record: Record = {
            "i": self.steps,
            "t": self.now,
            "dt": end_ns - self.now,
            "k": "p" if joined else "d",
            "add": added,
            "s": [row.index if tokens[row] == 1 else [row.index, tokens[row]] for row in rows],
            "new": [row.index for row in joined],
            "hit": [[row.index, hit] for row, hit in hits.items() if hit],
            "tok": sum(tokens.values()),
            "ctx": sum(before[row] + tokens[row] for row in rows),
            "rows": len(rows),
            "held": sum(-(-self.policy.reserve_tokens(row) // view.block_size) for row in rows),
            "wait": len(view.waiting),
        }
        finishing = scheduler.complete()
        record["fin"] = [row.index for row in rows if row in finishing]
        self.now = end_ns
        self.steps += 1
        return record

    def _arrivals(self) -> list[int]:
        if not self.scheduler.unfinished and self.coming:
            self.now = max(self.now, self.coming[-1].arrival_ns)
        added = []
        while self.coming and self.coming[-1].arrival_ns <= self.now:
            added.append(self.coming[-1].index)
            self.scheduler.arrive(self.coming.pop())
        return added

    def summary(self, recorded: Record) -> Record:
        """The fate of every request in the recorded form. Ends the run."""
        end_ns, steps = self.now, self.steps
        status = "ok" if self.over else "stalled" if self.step() is None else "unfinished"
        self.scheduler.stall("the recording ends")
        return {
            "status": status,
            "steps": steps,
            "end_t": end_ns,
            "num_preemptions": self.scheduler.preemptions,
            **fates(self.scheduler.logged_run(), len(recorded["out_tokens"])),
        }


def replay(scenario: Scenario) -> Verdict:
    """Compare every forward and then the summary, up to the first difference."""
    try:
        run = Replay(scenario)
    except ValueError as error:
        return Verdict(str(error), 0)
    return follow(scenario, run, every_difference)


def judge_case(case: Record) -> str:
    """Ok, what differs, or why a unit test of the queue (`queue.rs`) cannot be replayed. Its requests have a prompt
    of one token and declare one more; none ends."""
    rest = dict.fromkeys(("waiting_served_ratio", "max_waiting_tokens", "max_batch_prefill_tokens"), 1)
    try:
        policy = tgi({"max_batch_size": None, **rest, **case["state"]})
    except ValueError as error:
        return f"not modelled: {error}"
    if any(op.get("client_gone") for op in case["ops"]):
        return "not modelled: clients that leave"
    size = policy.block_size or 1
    blocks = case["state"]["max_batch_total_tokens"] // size
    scheduler = Scheduler(policy, GpuTimes(LinearCosts(fixed_ns=1)), block_size=size, num_blocks=blocks)
    planner: Any = scheduler.planner
    appended = batches = 0
    for place, op in enumerate(case["ops"]):
        expected = {key: value for key, value in op.items() if key.endswith("_after") or key == "expect"}
        found: Record = {}
        if op["op"] == "append":
            scheduler.arrive(Request(appended, 0, 1, 1))
            appended += 1
        else:
            limits = op["min_size"] or 0, op["max_size"], op["prefill_token_budget"], op["token_budget"]
            joining = planner.next_batch(scheduler.view, *limits)
            found["expect"] = None
            if joining:
                ids = [request.index for request, _ in joining]
                found["expect"] = {"ids": ids, "size": len(ids), "batch_id": batches}
                scheduler._book(Batch(joining, ()), 0)
                batches += 1
        found["queue_after"] = [request.index for request in scheduler.waiting]
        found |= {"next_id_after": appended, "next_batch_id_after": batches}
        if any(found[key] != value for key, value in expected.items()):
            return f"op {place}: recorded {expected}, simulated {found}"
    return "ok"


def main(paths: list[str]) -> int:
    """Replay every case of every file; exit status 1 if any differs."""
    if not paths:
        print("usage: python -m tests.golden_tgi CASES.json ...", file=sys.stderr)
        return 2
    texts = []
    for path in paths:
        for case in json.loads(Path(path).read_text(encoding="utf-8"))["cases"]:
            texts.append(judge_case(case))
            print(f"{case['test']}: {texts[-1]}"[:400])
    unlike = sum(not text.startswith(("ok", "not modelled")) for text in texts)
    print(f"{len(texts)} cases, {texts.count('ok')} the same, {unlike} different")
    return int(unlike > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
