"""A bare step log of a vLLM server, as `profiler.vllm_steps.StepLogger` writes it: steps, no latencies."""

from simulator.compare.readers._given import Given
from simulator.compare.run import Run

NAME = "step log"
DESCRIPTION = "steps.csv.gz of profiler.vllm_steps.StepLogger; has steps, no latencies"


def recognises(given: Given) -> bool:
    """By its header."""
    return given.is_step_log


def read(given: Given) -> Run:
    """See `Reader.read`."""
    reason = dict.fromkeys(("ttft", "tpot", "itl", "e2e"), "a step log alone has no latencies")
    return Run(name=given.name, format=NAME, path=given.path, not_comparable=reason, step_log=given.path)
