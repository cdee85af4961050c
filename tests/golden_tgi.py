"""Replays recordings of text-generation-inference through the policy `tgi`: a line is a forward (`k`: `p` for a Prefill
call, `d` for a Decode call), and `held` counts the blocks of all rows."""

from policies.tgi import Tgi
from simulator.core import Batch, Request, View
from simulator.costs import LinearCosts
from simulator.metrics.tokens import token_times_ns
from simulator.runlog import FINISHED
from simulator.scheduler import Scheduler
from simulator.step_times import GpuTimes
from tests.golden_files import Contents, Record, Scenario, Verdict


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
        config, times = scenario.config, scenario.header["time_model"]
        self.policy = tgi(config)
        costs = LinearCosts(
            fixed_ns=times["a_ns"],
            per_token_ns=times["b_ns_per_token"],
            per_context_token_ns=times["c_ns_per_ctx_token"],
        )
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

    def summary(self, count: int) -> Record:
        """The fate of every request in the recorded form. Ends the run."""
        end_ns, steps = self.now, self.steps
        status = "ok" if self.over else "stalled" if self.step() is None else "unfinished"
        self.scheduler.stall("the recording ends")
        run = self.scheduler.logged_run()
        fates = dict(zip(run.requests["request"].tolist(), run.requests["status"].tolist(), strict=True))
        times = token_times_ns(run, count)
        return {
            "status": status,
            "steps": steps,
            "end_t": end_ns,
            "num_preemptions": self.scheduler.preemptions,
            "num_finished": list(fates.values()).count(FINISHED),
            "total_out_tokens": sum(map(len, times)),
            "first_token_t": [min(tokens, default=None) for tokens in times],
            "finish_t": [max(t) if fates.get(i) == FINISHED else None for i, t in enumerate(times)],
            "out_tokens": [len(tokens) for tokens in times],
        }


def _difference(recorded: Record, simulated: Record) -> str | None:
    """The fields in which they differ, or None. Empty lists are not recorded."""
    both = {**dict.fromkeys(recorded), **dict.fromkeys(simulated)}
    wrong = [
        f"{key}: recorded {recorded.get(key, [])}, simulated {simulated.get(key, [])}"
        for key in both
        if key != "kind" and recorded.get(key, []) != simulated.get(key, [])
    ]
    return "; ".join(wrong) or None


def replay(scenario: Scenario) -> Verdict:
    """Compare every forward and then the summary, up to the first difference."""
    try:
        run = Replay(scenario)
    except ValueError as error:
        return Verdict(str(error), 0)
    for number, recorded in enumerate(scenario.steps):
        simulated = None if run.over else run.step()
        if simulated is None:
            return Verdict(f"step {number}: recorded, but nothing is left to run", number)
        wrong = _difference(recorded, simulated)
        if wrong:
            return Verdict(f"step {number}: {wrong}", number + 1)
    if not scenario.summary:
        return Verdict("the file ends before the summary", run.steps)
    wrong = _difference(scenario.summary, run.summary(len(scenario.requests)))
    return Verdict(f"summary: {wrong}" if wrong else "ok", run.steps, wrong is not None)
