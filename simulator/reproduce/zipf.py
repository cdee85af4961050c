"""Requests whose lengths follow a Zipf law between two bounds, all there at t = 0: SARATHI's pipeline experiment.

SARATHI (arXiv 2308.16369, section 5.3) names the bounds, theta and the ratio of prompt to output. How lengths are drawn
is taken from the generator of Vidur, by the same authors (`utils/zipf_generator.py`): the power-law approximation of
Gray et al. (SIGMOD 1994), whose zeta sum stops one term early, without scrambling.
"""

from pathlib import Path

import numpy as np

from simulator.compare.output import write_text
from simulator.trace import Ints

REQUESTS = 10_000
SHORTEST, LONGEST = 1024, 4096
THETA = 0.4
PROMPT_PER_OUTPUT = 10
SEED = 0


def zipf_lengths(
    count: int, shortest: int = SHORTEST, longest: int = LONGEST, theta: float = THETA, seed: int = SEED
) -> Ints:
    """`count` lengths in tokens from `shortest` on, the most frequent, to `longest`; the same for a seed."""
    items = longest - shortest + 1
    zeta = float((np.arange(1, items) ** -theta).sum())
    eta = (1 - (2 / items) ** (1 - theta)) / (1 - 1 / zeta)
    draws = np.random.RandomState(seed).random_sample(count)  # a stream that NumPy promises never to change
    ranks = (items * (eta * draws - eta + 1) ** (1 / (1 - theta))).astype(np.int64)
    ranks[draws * zeta < 1 + 0.5**theta] = 1
    ranks[draws * zeta < 1] = 0
    return np.asarray(shortest + ranks)


def split_lengths(lengths: Ints, prompt_per_output: float = PROMPT_PER_OUTPUT) -> tuple[Ints, Ints]:
    """Prompt and output tokens of each length; both are cut to whole tokens, as Vidur does."""
    output = lengths / (1 + prompt_per_output)
    return (lengths - output).astype(np.int64), output.astype(np.int64)


def write_requests(path: Path, count: int = REQUESTS) -> None:
    """A trace of `count` requests in the native form; the same bytes every time."""
    prompts, outputs = split_lengths(zipf_lengths(count))
    rows = [f"0,{prompt},{output}\n" for prompt, output in zip(prompts.tolist(), outputs.tolist(), strict=True)]
    write_text(path, "arrival_s,prompt_tokens,output_tokens\n" + "".join(rows))
