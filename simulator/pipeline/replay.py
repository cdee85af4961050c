"""A pipeline's step log replayed: when each step should have had its output, given when it was scheduled and when the
outputs before it came.

Steps of a pipeline overlap, so none has a time of its own in the log; when its output comes depends on those under way.
Nothing of the simulation's scheduling is in this. What is left is the error of prices and host times alone.
"""

from array import array
from dataclasses import dataclass

import numpy as np

from simulator.pipeline.hosted import HostedPipelineTimes
from simulator.step_log_file import LoggedSteps
from simulator.trace import Floats, Ints

NS_PER_S = 1e9


@dataclass(frozen=True)
class Replayed:
    """The steps of a log that ran something: `rows` are their places in it, `late_s` predicted less logged times of
    outputs, `working_s` (steps, stages) how long each stage was at work on each."""

    rows: Ints
    late_s: Floats
    working_s: Floats


def replay(log: LoggedSteps, times: HostedPipelineTimes, *, in_flight: bool) -> Replayed:
    """`log` through the fresh clock `times` of its pipeline. O(steps).

    `in_flight`: whether the engine plans decodes before the tokens that they continue are there. Who decodes or
    completes a prompt in a step then decodes again as many steps later as there are stages, rows that run nothing
    included, and the first stage waits for that step's output (vLLM's asynchronous scheduling).
    """
    ready_ns = np.rint(log.output_ready_s * NS_PER_S).astype(np.int64)
    scheduled_ns = np.rint(log.schedule_end_s * NS_PER_S).astype(np.int64)
    answers = _answers(log).tolist()
    ends_ns, late_ns = array("q"), array("q")
    rows = np.flatnonzero(log.tokens)
    for row in rows.tolist():
        before = row - times.stages
        times.depends_ns = int(ready_ns[before]) if in_flight and before >= 0 and answers[before] else 0
        chunks = [(context, tokens) for _, context, tokens in log.chunks[row]]
        decodes, output_ns = int(log.decodes[row]), int(ready_ns[row])
        planned_ns = int(scheduled_ns[row]) - times.scheduling_ns(decodes + len(chunks))
        context, longest = int(log.decode_context[row]), int(log.longest[row])
        times.book(ends_ns, planned_ns, int(log.tokens[row]), decodes, context, longest, chunks)
        late_ns.append(ends_ns[-1] - output_ns)
        times.settle(output_ns)
    columns = times.log.columns()
    return Replayed(rows, np.array(late_ns) / NS_PER_S, (columns.end_ns - columns.start_ns) / NS_PER_S)


def _answers(log: LoggedSteps) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Of each step, whether it samples a token: it decodes, or has the last chunk of a prompt."""
    last = {request: step for step, chunks in enumerate(log.chunks) for request, _, _ in chunks}
    answers = log.decodes > 0
    answers[list(last.values())] = True
    return answers
