"""A pipeline's log that its own clock wrote is predicted to the nanosecond, and what is off is seen where it is."""

from array import array
from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simulator.costs import LinearCosts
from simulator.engines.profile import CudaGraphs, Handing, HostTime, Launch, Mode
from simulator.pipeline.hosted import HostedPipelineTimes
from simulator.pipeline.layers import split_layers
from simulator.pipeline.prices import SharedByLayers
from simulator.pipeline.replay import replay
from simulator.step_log_file import LoggedSteps
from tests.simulator.engines_fit.synthetic import Batch, batches

COSTS = LinearCosts(fixed_ns=4_000_000, per_token_ns=12_000, per_context_token_ns=10)
STAGES = split_layers(32, 2)
MODE = Mode(
    schedule=HostTime(90, 10),
    full=Launch(HostTime(1200, 12)),
    piecewise=Launch(HostTime(1900, 12), layer_us=190),
    eager=Launch(HostTime(4500, 12), layer_us=450),
    pipeline=Handing(send_us=800, tokens_us=600),
)
CAPTURED = CudaGraphs(sizes=(1, 2, 4), every={8: 256, 16: 512}).captured(None)
STEPS = batches(400)


def clock(mode: Mode = MODE) -> HostedPipelineTimes:
    """A fresh one of two stages; activations take 50 us."""
    return HostedPipelineTimes(SharedByLayers(COSTS, STAGES), STAGES, lambda _: 50_000.0, (), mode, CAPTURED)


def logged(steps: list[Batch], times: HostedPipelineTimes) -> LoggedSteps:
    """`steps` through an engine with three under way: each is planned when the third before it has its output."""
    ends_ns, planned_ns, scheduled_ns, under_way = array("q"), [], [], deque([0, 0, 0])
    host_ns = 1_000_000
    for place, batch in enumerate(steps):
        now_ns = max(host_ns, under_way.popleft())
        times.depends_ns = ends_ns[place - 2] if place > 1 else 0
        chunks = [(before, tokens) for _, before, tokens in batch.chunks]
        longest = -(-batch.context // batch.decodes) if batch.decodes else 0
        times.book(ends_ns, now_ns, batch.tokens, batch.decodes, batch.context, longest, chunks)
        planned_ns.append(now_ns)
        scheduled_ns.append(host_ns := now_ns + times.scheduling_ns(batch.sequences))
        under_way.append(ends_ns[-1])
    return log_of(steps, *(np.array(column) / 1e9 for column in (planned_ns, scheduled_ns, ends_ns)))


def log_of(steps: list[Batch], planned_s, scheduled_s, output_s) -> LoggedSteps:
    """As it would be read."""
    count = np.arange(len(steps))
    return LoggedSteps(
        Path("steps.csv"), count + 2, count, planned_s, scheduled_s, output_s, output_s, 0 * count, 0 * count,
        np.array([batch.decodes for batch in steps]), np.array([batch.context for batch in steps]),
        np.array([-(-batch.context // max(1, batch.decodes)) for batch in steps]),
        tuple(batch.chunks for batch in steps), tuple(() for _ in steps),
    )  # fmt: skip


def test_its_own_log_is_predicted_exactly() -> None:
    """Outputs, and how long each stage was at work."""
    times = clock()
    found = replay(logged(STEPS, times), clock(), in_flight=True)
    columns = times.log.columns()
    assert np.abs(found.late_s).max() < 2e-9
    assert np.abs(found.working_s - (columns.end_ns - columns.start_ns) / 1e9).max() < 2e-9
    assert found.rows.tolist() == list(range(len(STEPS)))


def test_an_output_that_comes_late_is_off_by_as_much() -> None:
    """One of decodes alone among such, 5 ms late, and all after it. Those that were under way then may be off as well,
    no other."""
    log = logged(STEPS, clock())
    quiet = next(k for k in range(50, 300) if not any(batch.chunks for batch in STEPS[k - 5 : k + 8]))
    later = log.output_ready_s.copy()
    later[quiet:] += 0.005
    scheduled = log.schedule_end_s.copy()
    scheduled[quiet + 1 :] += 0.005
    found = replay(replace(log, output_ready_s=later, schedule_end_s=scheduled), clock(), in_flight=True)
    assert found.late_s[quiet] == pytest.approx(-0.005, abs=1e-8)
    assert np.abs(np.delete(found.late_s, [quiet, quiet + 1, quiet + 2])).max() < 2e-9


def test_tokens_that_take_longer_make_decodes_late() -> None:
    """Where the first stage waits for the tokens: by as much as they take longer."""
    log = logged([batch for batch in STEPS if not batch.chunks], clock())
    slower = replace(MODE, pipeline=replace(MODE.pipeline, tokens_us=900))
    late_s = replay(log, clock(slower), in_flight=True).late_s[10:]
    assert np.median(late_s) == pytest.approx(0.0003, abs=1e-8)
    assert late_s.min() > -2e-9


def test_rows_that_run_nothing_hold_a_place() -> None:
    """They have no time; who decodes after one waits for the step two rows before, if that ran anything."""
    times = clock()
    steps = [Batch(0, 0, ((0, 0, 100),)), Batch(0, 0), Batch(1, 101)]
    ends_ns = array("q")
    times.book(ends_ns, 0, 100, 0, 0, 0, [(0, 100)])
    times.depends_ns = ends_ns[0]
    times.book(ends_ns, 1_000_000, 1, 1, 101, 101, [])
    scheduled = np.array([0, 500_000, 1_000_000]) + np.array([100_000, 0, 100_000])
    outputs = np.array([ends_ns[0], ends_ns[0], ends_ns[1]])
    found = replay(log_of(steps, scheduled / 1e9, scheduled / 1e9, outputs / 1e9), clock(), in_flight=True)
    assert found.rows.tolist() == [0, 2]
    assert np.abs(found.late_s).max() < 2e-9


def test_steps_that_are_planned_after_their_tokens_wait_for_none() -> None:
    """An engine without steps in flight has them when it plans, so their way to the first stage is in that."""
    times, ends_ns = clock(), array("q")
    times.book(ends_ns, 0, 1, 1, 101, 101, [])
    first = ends_ns[0]
    times.book(ends_ns, 0, 1, 1, 201, 201, [])
    times.book(ends_ns, first, 1, 1, 102, 102, [])
    scheduled = np.array([100_000, 100_000, first + 100_000]) / 1e9
    log = log_of([Batch(1, 101), Batch(1, 201), Batch(1, 102)], scheduled, scheduled, np.array(ends_ns) / 1e9)
    assert np.abs(replay(log, clock(), in_flight=False).late_s).max() < 2e-9
    assert replay(log, clock(), in_flight=True).late_s[2] == pytest.approx(0.0005, abs=1e-8)
