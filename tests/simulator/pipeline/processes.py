"""Stages as SimPy processes: each takes micro-batches from a store, one at a time and in order, and a courier of its
own brings each of them to the next stage."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field

import simpy


@dataclass
class Job:
    """A micro-batch: when it may start, its price on each stage, how long it is sent, and the one whose tokens it
    continues; then (start, end) of each stage."""

    ready_ns: int
    prices_ns: list[int]
    sending_ns: int
    after: "Job | None" = None
    worked: list[tuple[int, int]] = field(default_factory=list)


class Stages:
    """A chain of as many stages as there are prices; `run` fills in `worked` of all jobs."""

    def __init__(self, stages: int) -> None:
        self.env = simpy.Environment(initial_time=0)
        self.inboxes = [simpy.FilterStore(self.env) for _ in range(stages)]
        self.complete: dict[int, simpy.Event] = {}

    def run(self, jobs: list[Job]) -> None:
        """All of them, in order."""
        self.complete = {id(job): self.env.event() for job in jobs}
        self.env.process(self.plan(jobs))
        for stage in range(len(self.inboxes)):
            self.env.process(self.stage(stage, jobs))
        self.env.run()

    def plan(self, jobs: Iterable[Job]) -> Generator[simpy.Event]:
        """Micro-batches come to the first stage when they are planned."""
        for job in jobs:
            yield self.env.timeout(max(0, job.ready_ns - self.env.now))
            yield self.inboxes[0].put(job)

    def stage(self, stage: int, jobs: list[Job]) -> Generator[simpy.Event]:
        """One at a time, in the order in which they were planned, though a short one may be sent past a long one."""
        for job in jobs:
            yield self.inboxes[stage].get(lambda other, job=job: other is job)
            if stage == 0 and job.after is not None:
                yield self.complete[id(job.after)]
            start = self.env.now
            yield self.env.timeout(job.prices_ns[stage])
            job.worked.append((int(start), int(self.env.now)))
            if stage + 1 < len(self.inboxes):
                self.env.process(self.send(job, stage + 1))
            else:
                self.complete[id(job)].succeed()

    def send(self, job: Job, stage: int) -> Generator[simpy.Event]:
        """Activations are on their way while the stage goes on."""
        yield self.env.timeout(job.sending_ns)
        yield self.inboxes[stage].put(job)
