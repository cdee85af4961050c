"""The slow, obvious system of two pools: every engine stops at each of its steps, every layer is sent by itself.

Engines are those of `tests/reference.py`, under their own schedulers' rules. Written from the description of
disaggregation in the docs, apart from the package's.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from tests.reference import Job, Reference, Step

Reserves = Callable[[Reference, Job], int]


@dataclass(eq=False)
class Wire:
    """One prefill replica's link."""

    whole_ns: Callable[[int], int]
    layer_ns: Callable[[int], int]
    layers: int
    free_ns: int = 0

    def whole(self, tokens: int, now: int) -> int:
        self.free_ns = max(self.free_ns, now) + self.whole_ns(tokens)
        return self.free_ns

    def by_layers(self, lengths: Sequence[int], step: Step) -> list[int]:
        """Layer after layer, in each of them prompt after prompt."""
        done = [0] * len(lengths)
        for layer in range(1, self.layers + 1):
            there = step.start + (step.end - step.start) * layer // self.layers
            for place, tokens in enumerate(lengths):
                self.free_ns = max(self.free_ns, there) + self.layer_ns(tokens)
                done[place] = self.free_ns
        return done


@dataclass(eq=False)
class Passenger:
    """A request between the pools: `prompt` is the job of the prefill pool, `job` that of the other."""

    prompt: Job
    job: Job
    source: int
    place: int
    ready: int
    room: int = -1
    landed: int = -1


@dataclass(eq=False)
class Station:
    """An engine, and when it next does anything; who queues for it, how many are coming, and who is held."""

    engine: Reference
    wakes: float = inf
    queue: list[Passenger] = field(default_factory=list)
    coming: int = 0
    held: list[Job] = field(default_factory=list)


class Pools:
    """Both pools over all requests; requests go round the replicas in turns."""

    def __init__(
        self,
        prefills: Sequence[Reference],
        decodes: Sequence[Reference],
        wires: Sequence[Wire],
        *,
        layerwise: bool,
        sequences: float,
        reserves: Reserves,
    ) -> None:
        self.prefills, self.decodes = [Station(engine) for engine in prefills], [Station(engine) for engine in decodes]
        self.wires, self.layerwise, self.sequences, self.reserves = wires, layerwise, sequences, reserves
        self.reached: Counter[str] = Counter()
        self.flights: list[Passenger] = []
        self.passengers: list[Passenger] = []
        self.whole: dict[int, Job] = {}
        self.now = self.turn = self.decode_turn = 0

    def run(self, jobs: Sequence[Job]) -> list[Job]:
        """What became of each request: its job in the pool in which it ended, with the times of all its tokens."""
        coming = list(jobs)
        ended: dict[int, Job] = {}
        while True:
            stations = [*self.prefills, *self.decodes]
            times = [coming[0].arrival_ns if coming else inf]
            times += [flight.landed for flight in self.flights] + [station.wakes for station in stations]
            if min(times) == inf:
                break
            self.now = int(min(times))
            if coming and coming[0].arrival_ns == self.now:
                self.arrive(coming.pop(0), ended)
                continue
            landing = [flight for flight in self.flights if flight.landed == self.now]
            if landing:
                self.land(landing[0])
                continue
            station = next(station for station in stations if station.wakes == self.now)
            self.turn_of(station)
        for job in self.whole.values():
            ended.setdefault(job.index, job)
        for station in [*self.prefills, *self.decodes]:
            for job in [*station.engine.running, *station.engine.waiting, *(p.job for p in station.queue)]:
                self.reached["never finished"] += 1
                job.status = "stalled"
        return [self.last(ended[index]) for index in sorted(ended)]

    def last(self, job: Job) -> Job:
        return self.whole[job.index] if job.index in self.whole and not job.status else job

    def arrive(self, job: Job, ended: dict[int, Job]) -> None:
        station = self.prefills[self.turn % len(self.prefills)]
        self.turn += 1
        station.engine.seen.clear()
        decode = self.decodes[0].engine
        prompt = Job(job.index, job.arrival_ns, job.prompt, 1, job.priority, job.text)
        ended[job.index] = prompt
        if decode.limit(job) > 1:
            job.sampled, job.computed = 1, job.prompt
            if decode.impossible(job):
                self.reached["refused for the decode pool"] += 1
                prompt.status = "rejected"
                return
        if station.engine.impossible(prompt):
            prompt.status = "rejected"
            return
        if decode.limit(job) > 1:
            self.whole[job.index] = job
        station.engine.waiting.append(prompt)
        station.engine.sort_waiting()
        if station.wakes == inf:
            station.wakes = self.now

    def turn_of(self, station: Station) -> None:
        """A step is over, if one is under way; then the next are planned."""
        engine = station.engine
        if engine.flying:
            step = engine.flying.pop(0)
            if station in self.prefills:
                self.prefilled(station, step)
            else:
                engine.finish(step)
                self.let_in(station)
        while len(engine.flying) < engine.depth:
            batch = engine.schedule()
            if batch is None:
                break
            if station.coming or station.held:
                engine.victims.clear()  # memory will yet become free by itself: there is no quarrel for ever
            step = engine.start(batch)
            kv_tokens, *queues = step.after
            step.after = (kv_tokens + sum(job.computed for job in station.held), *queues)
            engine.clock(step, engine.flying, self.now)
            engine.flying.append(step)
            engine.planned.append(step)
            if station in self.decodes:
                self.let_in(station)
        station.wakes = engine.flying[0].end if engine.flying else inf

    def prefilled(self, station: Station, step: Step) -> None:
        """Tokens are there; who goes on keeps its blocks and queues on the other side."""
        engine, at_once = station.engine, list[Passenger]()
        engine.steps.append(step.row)
        source = self.prefills.index(station)
        for job in step.emit:
            job.times.append(step.end)
            whole = self.whole.get(job.index)
            alive = job in engine.running
            if alive:
                engine.running.remove(job)
            if whole is None:
                job.status = "finished"
                engine.memory.release(job.blocks)
                continue
            place = self.decode_turn % len(self.decodes)
            self.decode_turn += 1
            other = self.decodes[place]
            whole.times.append(step.end)
            whole.cached, whole.preemptions = job.cached, job.preemptions
            if not alive:
                self.reached["lost while its token was under way"] += 1
                whole.computed, whole.admissions = 0, 1
                other.engine.seen.clear()
                other.engine.waiting.append(whole)
                other.engine.sort_waiting()
                if other.wakes == inf:
                    other.wakes = self.now
                continue
            passenger = Passenger(job, whole, source, place, self.now)
            self.passengers.append(passenger)
            station.held.append(job)
            other.queue.append(passenger)
            at_once += self.find_room(other)
            self.reached["no room at once"] += passenger.room < 0
        if self.layerwise:
            ends = self.wires[source].by_layers([p.prompt.prompt for p in at_once], step)
            for passenger, end in zip(at_once, ends, strict=True):
                self.reached["layers on the way as it ends"] += end > step.end
                self.fly(passenger, end)
        else:
            for passenger in at_once:
                self.send(passenger)

    def let_in(self, station: Station) -> None:
        for passenger in self.find_room(station):
            self.reached["room later"] += 1
            self.send(passenger)

    def find_room(self, station: Station) -> list[Passenger]:
        found, engine = [], station.engine
        while station.queue:
            job = station.queue[0].job
            need = max(engine.pages(job.prompt), engine.pages(self.reserves(engine, job)))
            full = len(engine.running) + station.coming >= self.sequences
            if engine.waiting or full or need > engine.free:
                self.reached["someone preempted goes first"] += bool(engine.waiting)
                self.reached["no place in the batch"] += full
                break
            passenger = station.queue.pop(0)
            engine.memory.grow(job.blocks, max(job.prompt, self.reserves(engine, job)))
            station.coming += 1
            passenger.room = self.now
            found.append(passenger)
        return found

    def send(self, passenger: Passenger) -> None:
        self.reached["queue on the wire"] += self.wires[passenger.source].free_ns > self.now
        self.fly(passenger, self.wires[passenger.source].whole(passenger.prompt.prompt, self.now))

    def fly(self, passenger: Passenger, landing: int) -> None:
        passenger.landed = landing
        self.flights.append(passenger)

    def land(self, passenger: Passenger) -> None:
        """It goes on here, and its blocks over there are free."""
        self.flights.remove(passenger)
        there, here = self.decodes[passenger.place], self.prefills[passenger.source]
        there.coming -= 1
        here.held.remove(passenger.prompt)
        there.engine.seen.clear()
        here.engine.seen.clear()
        passenger.job.decoding = True
        passenger.job.admissions = 1
        there.engine.running.append(passenger.job)
        self.reached["blocks of the prefill pool were waited for"] += here.wakes == inf and bool(here.engine.waiting)
        here.engine.memory.release(passenger.prompt.blocks)
        for station in (there, here):
            if station.wakes == inf:
                station.wakes = self.now
