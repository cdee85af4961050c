"""Step logs of engines that are known to the microsecond: the recursion of `simulator.engines.times`, written out again
step by step, over random batches."""

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simulator.costs import LinearCosts, StepCosts
from simulator.engines.fit_line import FitLog
from simulator.engines.logged import price_log
from simulator.engines.profile import Aftermath, CudaGraphs, HostTime, Launch, Mode, padded_tokens
from simulator.step_log_file import read_step_log
from simulator.step_log_rows import COLUMNS

COSTS = LinearCosts(fixed_ns=6_000_000, per_token_ns=12_000, per_context_token_ns=10)
"""6 ms a step, 12 ms more for 1000 tokens."""
LAYERS = 32
CAPTURED = CudaGraphs(sizes=(1, 2, 4), every={8: 256, 16: 512}).captured(None)
EACH = 12.0
SYNC = Mode(
    schedule=HostTime(90, 10),
    update=HostTime(60, 5),
    between=HostTime(110, 9),
    full=Launch(HostTime(1200, EACH)),
    piecewise=Launch(HostTime(1900, EACH), layer_us=240),
    eager=Launch(HostTime(4200, EACH), layer_us=750),
    aftermath=Aftermath(350, 10),
    arrival_us=400,
    delivery_us=500,
)
ASYNC = Mode(
    schedule=HostTime(90, 10),
    update=HostTime(50, 5),
    between=HostTime(80, 1),
    full=Launch(HostTime(1200, EACH), gpu=HostTime(140, 5)),
    piecewise=Launch(HostTime(1900, EACH), layer_us=190, gpu=HostTime(230, 5)),
    eager=Launch(HostTime(4200, EACH), layer_us=450, gpu=HostTime(480, 5)),
    arrival_us=3600,
)


@dataclass(frozen=True)
class Batch:
    """Decodes, the sum of their contexts, and chunks as (request, context before, tokens)."""

    decodes: int
    context: int
    chunks: tuple[tuple[int, int, int], ...] = ()

    @property
    def tokens(self) -> int:
        return self.decodes + sum(tokens for *_, tokens in self.chunks)

    @property
    def sequences(self) -> int:
        return self.decodes + len(self.chunks)

    @property
    def row(self) -> str:
        """The last columns of a step log; the prompts of a step were all that waited."""
        longest = -(-self.context // self.decodes) if self.decodes else 0
        chunks = " ".join(":".join(map(str, chunk)) for chunk in self.chunks)
        return f"{len(self.chunks)},{self.decodes},{self.decodes},{self.context},{longest},{chunks},"


def batches(number: int, seed: int = 0, prompts: Sequence[int] = (30, 450, 600, 3000), most: int = 60) -> list[Batch]:
    """So many steps of up to `most` decodes; each tenth or so computes a prompt of up to one of `prompts` tokens."""
    random = np.random.default_rng(seed)
    decodes, request, found = 1, 0, [Batch(0, 0, ((0, 0, 100),))]
    for _ in range(number - 1):
        chunks: tuple[tuple[int, int, int], ...] = ()
        if prompts and random.random() < 0.1 and decodes < most:
            request += 1
            chunks = ((request, 0, int(random.choice(prompts) * random.uniform(0.5, 1))),)
        found.append(Batch(decodes, decodes * int(random.integers(500, 1500)), chunks))
        decodes = max(1, decodes + len(chunks) - int(random.random() < 0.09))
    return found


@dataclass(frozen=True)
class Clock:
    """Seconds of each step: scheduled from and to, output ready, updated."""

    start: list[float]
    end: list[float]
    ready: list[float]
    updated: list[float]


def run(
    steps: Sequence[Batch],
    mode: Mode,
    *,
    in_flight: bool,
    costs: StepCosts = COSTS,
    jitter: float = 0.0,
    workers: bool = False,
) -> Clock:
    """`steps` one after the other through an engine of `mode`; `jitter` is the relative deviation of each time, and one
    in fifty steps is held up by 30 ms somewhere. `workers` launch beside the engine, one step after the other."""
    random = np.random.default_rng(1)
    padded = padded_tokens(CAPTURED)

    def took(time: HostTime, batch: Batch) -> float:
        usual = 1e-6 * (time.step_us + time.sequence_us * batch.sequences) * (1 + jitter * random.standard_normal())
        return usual + (0.03 if jitter and random.random() < 0.004 else 0)

    clock = Clock([], [], [], [])
    now, gpu_end, quiet_from, launched = 1.0, 0.0, 0, 0.0
    for step, batch in enumerate(steps):
        graph = batch.tokens < len(padded)
        way = mode.eager if not graph else mode.piecewise if batch.chunks else mode.full
        chunks = [(before, tokens) for _, before, tokens in batch.chunks]
        gpu = costs.step_ns(batch.decodes, batch.context, 0, chunks) * 1e-9 * (1 + jitter * random.standard_normal())
        if graph:
            gpu += (costs.token_ns(padded[batch.tokens]) - costs.token_ns(batch.tokens)) * 1e-9
        gpu += took(way.gpu, batch)
        if not batch.chunks and step < quiet_from:
            gpu += 1e-6 * mode.aftermath.step_us
        if not graph:
            quiet_from = step + 1 + mode.aftermath.steps
        clock.start.append(now)
        clock.end.append(now + took(mode.schedule, batch))
        prepared = max(clock.end[-1], launched if workers else 0.0) + took(way.prepare, batch)
        launched = prepared + 1e-6 * LAYERS * way.layer_us
        gpu_end_before, gpu_end = gpu_end, max(max(prepared, gpu_end) + gpu, launched)
        collected = step if not in_flight else step - 1
        if collected < 0:
            now = clock.end[-1] if workers else launched  # nothing to collect: the next step is planned at once
            continue
        done = gpu_end if not in_flight else max(gpu_end_before, clock.end[-1] if workers else launched)
        clock.ready.append(done + 1e-6 * mode.collect_us)
        clock.updated.append(clock.ready[-1] + took(mode.update, steps[collected]))
        following = steps[min(step + 1, len(steps) - 1)]
        now = clock.updated[-1] + took(mode.between, following)
    if in_flight:
        clock.ready.append(gpu_end + 1e-6 * mode.collect_us)
        clock.updated.append(clock.ready[-1] + took(mode.update, steps[-1]))
    return clock


def write_log(path: Path, steps: Sequence[Batch], clock: Clock) -> Path:
    """As StepLogger would."""
    lines = [",".join(COLUMNS)]
    for step, (batch, *times) in enumerate(zip(steps, clock.start, clock.end, clock.ready, clock.updated, strict=True)):
        lines.append(f"{step},{','.join(f'{time:.9f}' for time in times)},{batch.row}")
    path.write_bytes(gzip.compress("\n".join([*lines, ""]).encode()))
    return path


def fit_log(
    path: Path, steps: Sequence[Batch], clock: Clock, costs: StepCosts = COSTS, *, workers: bool = False
) -> FitLog:
    """The log of `steps` priced, all of it used."""
    priced = price_log(read_step_log(write_log(path, steps, clock)), costs, CAPTURED, workers=workers)
    return FitLog(priced, LAYERS, np.ones(len(steps), dtype=np.bool_))


def requests_csv(path: Path, steps: Sequence[Batch], clock: Clock, arrival_s: float, delivery_s: float) -> Path:
    """What clients saw of each prompt: it came to the scheduler between two calls of `schedule()`."""
    random = np.random.default_rng(2)
    lines = ["arrival_s,first_token_s,prompt_tokens"]
    for step, batch in enumerate(steps):
        for _, _, tokens in batch.chunks:
            since = clock.start[step - 1] if step else clock.start[0] - 0.01
            seen = random.uniform(since, clock.start[step])
            lines.append(f"{seen - arrival_s:.9f},{clock.ready[step] + delivery_s:.9f},{tokens}")
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return path
