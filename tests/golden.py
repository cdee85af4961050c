"""Replays recorded decisions of real schedulers through this project's policies and scheduler.

`python -m tests.golden FILE.jsonl.gz|FOLDER ...` prints a line a scenario (`ok`, or the first differing step with the
recorded and the simulated value of each field), then `N scenarios, M steps, K different`, where M counts the steps
compared; exit status 1 if any differs. Compared are, for each `schedule()` call of the real scheduler, what it
scheduled, admitted, preempted and dropped, its time and the state of queues and memory, and in the end every request's
fate.

Sarathi-Serve lets a preempted request generate all its output again and can lose one for ever; this project resumes
them as vLLM does. Its scenarios are compared up to the first preempting step; of that, victims and decodes must agree.
"""

import sys
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from policies.simple_chunking import SimpleChunking
from simulator.core import Batch, Request, View
from simulator.policy import Policy
from simulator.runlog import REJECTED
from simulator.scheduler import Scheduler
from simulator.step_times import GpuTimes
from tests import golden_sglang, golden_tensorrt_llm, golden_tgi
from tests.golden_files import Contents, Record, Scenario, Verdict, policy_of, scenarios
from tests.golden_replay import costs_of, differences, fates, follow

NOT_RECORDED = {"vllm": ("npf", "ign"), "sarathi-serve": ("hit", "res")}
"""Fields of a step that an engine's recordings do not have."""


class Replay:
    """One scenario through the scheduler, a recorded step at a time."""

    def __init__(self, scenario: Scenario, policy: Policy) -> None:
        config = scenario.config
        self.engine = scenario.header["engine"]
        self.costs = costs_of(scenario)
        self.scheduler = Scheduler(
            policy,
            GpuTimes(self.costs),
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
        self.coming = [Request(r["id"], r["arr"], r["p"], r["o"], r.get("prio", 0)) for r in scenario.requests][::-1]
        if config.get("enable_prefix_caching"):
            contents = Contents(config["block_size"])
            for request, record in zip(self.coming[::-1], scenario.requests, strict=True):
                request.keys = contents.keys(record)
        self.now = self.steps = 0
        self.with_blocks = any("blk" in step for step in scenario.steps)

    @property
    def over(self) -> bool:
        """Whether every request has arrived and ended."""
        return not self.coming and not self.scheduler.unfinished

    def step(self) -> Record:
        """Schedule and complete the next step; what happened, in the recorded form."""
        scheduler, view = self.scheduler, self.scheduler.view
        record: Record = {"i": self.steps, "add": self._arrivals(), "t": self.now}
        held, decoding = {request: view.context_tokens(request) for request in view.running}, view.decoding_requests()
        tables = {request: len(self._blocks(request)) for request in view.running}
        self.planned = None
        end_ns = self._schedule()
        batch = self.planned or Batch(decodes=())
        decodes = decoding if batch.decodes is None else batch.decodes
        tokens = {request: 1 for request in decodes if request not in batch.preempted} | dict(batch.chunks)
        record |= self._what_ran(batch, tokens, held)
        record |= {"dt": end_ns - self.now, "run": len(view.running), "wait": len(view.waiting)}
        record["free"] = view.free_blocks
        if self.with_blocks:
            record["blk"] = self._handed_out(tables)
        finishing = scheduler.complete() if scheduler.under_way else ()
        record["fin"] = [request.index for request in self._scheduled if request in finishing]
        record["free2"] = view.free_blocks
        self.now = end_ns
        self.steps += 1
        return {key: value for key, value in record.items() if key not in NOT_RECORDED[self.engine]}

    def _blocks(self, request: Request) -> Sequence[int]:
        pool = self.scheduler.view.prefixes
        return () if pool is None else pool.table(request)

    def _handed_out(self, tables: dict[Request, int]) -> list[list[Any]]:
        """The blocks that each scheduled request got in this step; `tables` are the lengths before it."""
        new = {request: list(self._blocks(request)[tables.get(request, 0) :]) for request in self._scheduled}
        return sorted(([request.index, blocks] for request, blocks in new.items() if blocks), key=str)

    def _schedule(self) -> int:
        """When the next step ends; one that schedules nothing takes as long as one without tokens."""
        end_ns = None if self._turn_passes() else self.scheduler.schedule(self.now)
        return self.now + self.costs.fixed_ns if end_ns is None else end_ns

    def _what_ran(self, batch: Batch, tokens: dict[Request, int], held: dict[Request, int]) -> Record:
        """`tokens`: of each scheduled request; `held`: the KV entries of running requests before the step."""
        admitted = [request for request, _ in batch.chunks if request not in held]
        self._scheduled = scheduled = self._in_order(batch, tokens, [*held, *admitted])
        hits = {request: request.computed - tokens[request] for request in admitted}
        before = held | hits
        return {
            "s": [r.index if tokens[r] == 1 else [r.index, tokens[r]] for r in scheduled],
            "npf": len(batch.chunks),
            "new": [r.index for r in admitted if r.preemptions == 0],
            "hit": sorted([r.index, hit] for r, hit in hits.items() if hit),
            "res": [r.index for r in admitted if r.preemptions],
            "pre": [request.index for request in batch.preempted],
            "ign": [request.index for request, _ in batch.rejected],
            "tok": sum(tokens.values()),
            "ctx": sum(before[request] + tokens[request] for request in scheduled),
        }

    def _arrivals(self) -> list[int]:
        if not self.scheduler.unfinished:
            self.now = max(self.now, self.coming[-1].arrival_ns)
        added = []
        while self.coming and self.coming[-1].arrival_ns <= self.now:
            added.append(self.coming[-1].index)
            self.scheduler.arrive(self.coming.pop())
        return added

    def _turn_passes(self) -> bool:
        """A decode turn without decodes, for which this engine schedules nothing, in a call that is recorded as a step.

        The policy lets it pass within its call, since it takes no GPU time.
        """
        view = self.scheduler.view
        passes = isinstance(self.scheduler.policy, SimpleChunking) and view.last_prefills > 0 and not view.decoding
        if passes:
            view.last_prefills = 0
        return passes

    def _in_order(self, batch: Batch, tokens: dict[Request, int], order: list[Request]) -> list[Request]:
        """Who was scheduled, in the engine's order: vLLM's list of running requests, or prefills first."""
        if self.engine == "vllm":
            return [request for request in order if request in tokens]
        chunked = [request for request, _ in batch.chunks]
        return chunked + sorted((r for r in tokens if r not in chunked), key=lambda r: r.index)

    def summary(self, recorded: Record) -> Record:
        """The fate of every request in the recorded form. Ends the run: what has not finished never will."""
        # Whether an unfinished run stalled or was cut off only the recorder knows.
        status = "ok" if self.over else "unfinished" if recorded["status"] == "ok" else recorded["status"]
        self.scheduler.stall("the recording ends")
        run = self.scheduler.logged_run()
        count = len(recorded["out_tokens"])
        columns = (run.requests[name].tolist() for name in ("request", "status", "preemptions", "cached"))
        ended = {index: values for index, *values in zip(*columns, strict=True)}
        ends, preempt, cached = zip(*(ended.get(index, (None, 0, 0)) for index in range(count)), strict=True)
        summary = {
            "status": status,
            "steps": self.steps,
            "end_t": self.now,
            "num_preemptions": self.scheduler.preemptions,
            **fates(run, count),
            "ignored": [index for index, end in enumerate(ends) if end == REJECTED],
            "preempt": list(preempt),
            "hit_tokens_first": list(cached) if self.scheduler.policy.caches_prefixes else [],
        }
        return {key: value for key, value in summary.items() if value or key in recorded}


def difference(recorded: Record, simulated: Record) -> str | None:
    """The fields in which a step or a summary differs, or None. Empty lists are not recorded."""
    if "blk" in recorded:  # recorded in the order of handing out, admitted requests first
        recorded = recorded | {"blk": sorted(recorded["blk"], key=str)}
    return differences(recorded, simulated, simulated)


def preempting(step: Record) -> Record:
    """Of Sarathi-Serve's preempting step, what does not depend on how preempted requests go on."""
    return {"t": step["t"], "add": step.get("add", []), "pre": step["pre"], "decodes": step["s"][step["npf"] :]}


def replay(scenario: Scenario, policy: Policy) -> Verdict:
    """Compare every step and then the summary, of Sarathi-Serve the steps through the first that preempts."""
    restarts = scenario.header["engine"] == "sarathi-serve"

    def unlike(recorded: Record, simulated: Record) -> str | None:
        if restarts and recorded.get("pre"):
            recorded, simulated = preempting(recorded), preempting(simulated)
        return difference(recorded, simulated)

    def through(recorded: Record) -> str | None:
        return "the first preemption" if restarts and recorded.get("pre") else None

    return follow(scenario, Replay(scenario, policy), unlike, through=through)


ENGINES: dict[str, Callable[[Scenario], Verdict]] = {
    "sglang": golden_sglang.replay,
    "tensorrt_llm": golden_tensorrt_llm.replay,
    "tgi": golden_tgi.replay,
}
"""Engines whose recordings have fields and rules of their own, by the name in their headers."""


def judge(scenario: Scenario) -> Verdict:
    """Replay a scenario of whatever engine."""
    engine = scenario.header["engine"]
    if engine in ENGINES:
        return ENGINES[engine](scenario)
    policy = policy_of(scenario)
    if policy is None:
        return Verdict("no policy covers this engine's configuration", 0)
    return replay(scenario, policy)


def recordings(path: str) -> list[str]:
    """A file, or those of a folder."""
    return sorted(map(str, Path(path).glob("*.jsonl.gz"))) if Path(path).is_dir() else [path]


def main(paths: list[str]) -> int:
    """Replay every scenario of every file."""
    if not paths:
        print("usage: python -m tests.golden FILE.jsonl.gz|FOLDER ...", file=sys.stderr)
        return 2
    verdicts = []
    for path in chain.from_iterable(map(recordings, paths)):
        for scenario in scenarios(path):
            verdicts.append(judge(scenario))
            print(f"{scenario.name}: {verdicts[-1].text}"[:400])
    steps, different = sum(verdict.steps for verdict in verdicts), sum(verdict.different for verdict in verdicts)
    print(f"{len(verdicts)} scenarios, {steps} steps, {different} different")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
