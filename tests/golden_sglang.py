"""Replays recorded decisions of SGLang: its two loops, and what it remembers between passes.

Beside what `tests.golden` compares: whether the server was idle before a pass, the kind of batch, the prompt in
progress, the memo that keeps admission shut, and the new-token ratio to the last bit.
"""

from collections.abc import Sequence

from policies._sglang_loop import SglangLoop
from policies._sglang_radix import RadixLoop
from policies.sglang import Sglang
from simulator.core import Batch, Request, View
from simulator.scheduler import Scheduler
from simulator.step_times import GpuTimes
from tests.golden_files import Contents, Record, Scenario, Verdict
from tests.golden_replay import costs_of, every_difference, fates, follow

OPTIONS = (
    "chunked_prefill_size",
    "max_prefill_tokens",
    "max_running_requests",
    "schedule_policy",
    "schedule_conservativeness",
    "enable_mixed_chunk",
    "disable_radix_cache",
    "page_size",
)


def policy_of(config: Record) -> Sglang:
    """The policy with the recorded configuration."""
    options = {name: config[name] for name in OPTIONS}
    return Sglang(
        **options, context_length=config["context_len"], disable_overlap_schedule=not config.get("overlap", False)
    )


class SglangReplay:
    """One scenario through the scheduler, a pass of SGLang's loop at a time."""

    def __init__(self, scenario: Scenario) -> None:
        config = scenario.config
        self.costs = costs_of(scenario)
        self.policy = policy_of(config)
        self.scheduler = Scheduler(
            self.policy,
            GpuTimes(self.costs),
            block_size=config["page_size"],
            num_blocks=config["max_total_num_tokens"] // config["page_size"],
            prefixes=not config["disable_radix_cache"],
            give_up_on_impossible=False,
        )
        assert isinstance(self.scheduler.planner, SglangLoop)
        self.loop = self.scheduler.planner
        self.planned: Batch | None = None
        plan = self.scheduler._plan

        def capture(view: View) -> Batch | None:
            self.planned = plan(view)
            return self.planned

        self.scheduler._plan = capture
        self.requests = [_request(record) for record in scenario.requests]
        if self.policy.caches_prefixes:
            contents = Contents(config["page_size"])
            for request, record in zip(self.requests, scenario.requests, strict=True):
                request.keys = contents.keys(record)
        self.coming = self.requests[::-1]
        self.now = self.steps = 0
        self.clipped: Record = {}
        self._ran: list[Request] = []
        self._ran_before: list[Request] = []
        self.depth = 2 if config.get("overlap") else 1

    @property
    def over(self) -> bool:
        """Whether every request has arrived and ended, and nothing is under way."""
        return not (self.coming or self.scheduler.unfinished or self.scheduler.under_way)

    def step(self) -> Record:
        """The next pass; what happened, in the recorded form."""
        scheduler, view, loop = self.scheduler, self.scheduler.view, self.loop
        record: Record = {"i": self.steps, **self._arrivals(), "t": self.now}
        held = {request: view.context_tokens(request) for request in view.running}
        decoding = view.decoding_requests()
        before_ns = max(self.now, scheduler.log.end_ns[-1]) if scheduler.log.end_ns else self.now
        end_ns = self._schedule()
        batch = self.planned or Batch(decodes=())
        record |= self._what_ran(batch, decoding, held)
        record |= {"run": len(view.running), "wait": len(view.waiting), **self._memory()}
        record |= {"full": int(loop.full), "ratio": loop.ratio}
        record["ck"] = [] if loop.chunked is None else loop.chunked.index
        nothing_ns = self.costs.fixed_ns if self.depth == 1 else 0
        record["dt"] = nothing_ns if end_ns is None else end_ns - before_ns
        record |= self._apply(end_ns)
        record["free2"] = self._memory()["free"]
        self.steps += 1
        return record

    def _memory(self) -> Record:
        """Tokens that are free, and with the radix cache those that can be evicted."""
        page = self.scheduler.view.block_size
        if not isinstance(self.loop, RadixLoop):
            return {"free": self.scheduler.view.free_blocks * page}
        return {"free": self.loop.cache.free * page, "evic": self.loop.cache.tree.evictable * page}

    def loses_a_prompt(self, recorded: Record) -> bool:
        """Whether two prompts are cut in this recorded step: SGLang then computes the rest of the second only."""
        if recorded["k"] not in ("extend", "mixed"):
            return False
        chunks = recorded["s"][: recorded["npf"]] if recorded["k"] == "mixed" else recorded["s"]
        tokens = dict(entry if isinstance(entry, list) else [entry, 1] for entry in chunks)
        found = dict(recorded.get("hit", []))
        cut = [
            index for index, count in tokens.items() if count < self._rest(self.requests[index]) - found.get(index, 0)
        ]
        return len(cut) > 1

    @staticmethod
    def _rest(request: Request) -> int:
        return request.known - request.computed

    def _schedule(self) -> int | None:
        self.planned = None
        return self.scheduler.schedule(self.now)

    def _apply(self, end_ns: int | None) -> Record:
        """Take in the outputs that are due by the end of this pass, and go on to the next."""
        scheduler = self.scheduler
        finishing: Sequence[Request] = ()
        ran = self._ran if self.depth == 1 else self._ran_before
        self._ran_before = self._ran
        if scheduler.under_way == self.depth or (scheduler.under_way and end_ns is None):
            self.now = scheduler.next_end_ns()
            finishing = scheduler.complete()
        elif end_ns is None:
            self.now += self.costs.fixed_ns
        return {"fin": [request.index for request in ran if request in finishing]}

    def _what_ran(self, batch: Batch, decoding: list[Request], held: dict[Request, int]) -> Record:
        """`decoding`: who could decode; `held`: KV entries of running requests before the pass."""
        chunks = dict(batch.chunks)
        decodes = decoding if batch.decodes is None else list(batch.decodes)
        tokens = chunks | {request: 1 for request in (*decodes, *batch.in_vain) if request not in batch.preempted}
        order = [r for r in (*self.loop.last, *self.loop.running) if r in tokens and r not in chunks]
        ran = self._ran = [*chunks, *order]
        admitted = [request for request in chunks if request not in held]
        before = held | {request: request.computed - chunks[request] for request in admitted}
        kind = ("mixed" if order else "extend") if chunks else "decode" if order else "none"
        return {
            "k": kind,
            "s": [r.index if tokens[r] == 1 else [r.index, tokens[r]] for r in ran],
            "npf": len(chunks) if kind == "mixed" else [],
            "new": [r.index for r in admitted if r.preemptions == 0],
            "hit": [[r.index, before[r]] for r in admitted if before[r]],
            "res": [r.index for r in admitted if r.preemptions],
            "pre": [r.index for r in batch.preempted],
            "tok": sum(tokens.values()),
            "ctx": sum(before[request] + tokens[request] for request in ran),
        }

    def _arrivals(self) -> Record:
        """Who is handed over before this pass; an idle server has had a pass of nothing before."""
        scheduler = self.scheduler
        idle: int | list[int] = []
        if not scheduler.unfinished and not scheduler.under_way and self.coming[-1].arrival_ns > self.now:
            assert self._schedule() is None
            self.now, idle = self.coming[-1].arrival_ns, 1
        added = []
        while self.coming and self.coming[-1].arrival_ns <= self.now:
            request = self.coming.pop()
            added.append(request.index)
            scheduler.arrive(request)
            if self.loop.limits[request] < request.max_tokens:
                self.clipped[str(request.index)] = self.loop.limits[request]
        return {"add": added, "idle": idle}

    def summary(self, recorded: Record) -> Record:
        """The fate of every request in the recorded form. Ends the run: what has not finished never will."""
        status = "ok" if self.over else "unfinished" if recorded["status"] == "ok" else recorded["status"]
        self.scheduler.stall("the recording ends")
        run = self.scheduler.logged_run()
        columns = (run.requests[name].tolist() for name in ("request", "preemptions", "cached"))
        ended = {index: values for index, *values in zip(*columns, strict=True)}
        count = len(self.requests)
        retracted, cached = zip(*(ended.get(index, (0, 0)) for index in range(count)), strict=True)
        return {
            "status": status,
            "steps": self.steps,
            "end_t": self.now,
            "num_retractions": self.scheduler.preemptions,
            **fates(run, count, self.now),
            "retracted": list(retracted),
            "clipped_max_new": self.clipped,
            "hit_tokens_first": list(cached) if self.policy.caches_prefixes else [],
        }


def _request(record: Record) -> Request:
    request = Request(record["id"], record["arr"], record["p"], record["o"])
    request.max_tokens = record.get("mnt", record["o"])
    request.ignore_eos = bool(record.get("ie", 1))
    return request


def difference(recorded: Record, simulated: Record) -> str | None:
    """The fields in which a pass or a summary differs, or None. Empty mappings and zeros of `full` are not recorded."""
    return every_difference(_told(recorded), _told(simulated))


def _told(record: Record) -> Record:
    return {key: value for key, value in record.items() if value != {} and not (key == "full" and value == 0)}


def replay(scenario: Scenario) -> Verdict:
    """Compare every pass and then the summary, up to the first difference."""
    run = SglangReplay(scenario)

    def up_to(recorded: Record) -> str | None:
        return "where SGLang cuts two prompts and forgets one" if run.loses_a_prompt(recorded) else None

    return follow(scenario, run, difference, up_to=up_to)
