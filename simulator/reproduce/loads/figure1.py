"""DistServe's figure 1: the rate at which nine tenths of the requests keep a limit, of each phase alone and of both.

The figure (Zhong et al., OSDI'24): a 13B model on A100s of 80 GB, prompts of 512 and outputs of 64 tokens, Poisson
arrivals; P90 of TTFT at most 0.4 s and of TPOT at most 0.04 s, as it is retold. Its curves cross these lines at 5.6
requests a second (prefill alone), 10 (decode alone) and 1.6 (colocated, by TPOT); two prefill GPUs and one decode GPU
give 10 / 3.
"""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulator.compare.output import write_text
from simulator.reproduce.loads.sweep import run_at
from simulator.results import floats

REQUESTS, PROMPT, OUTPUT, SEED = 2000, 512, 64, 0
TTFT_S, TPOT_S = 0.4, 0.04
HIGHEST, RELATIVE = 128.0, 0.01


@dataclass(frozen=True)
class Line:
    """A system of the experiment, which limits count for it, on how many GPUs; published requests a second and GPU."""

    label: str
    ttft: bool
    tpot: bool
    gpus: int
    published: float | None


LINES = (
    Line("prefill only", True, False, 1, 5.6),
    Line("decode only", False, True, 1, 10.0),
    Line("colocated", True, True, 1, 1.6),
    Line("2P + 1D", True, True, 3, 3.3),
    Line("colocated chunked", True, True, 1, None),
)


def write_requests(path: Path) -> None:
    """Arrivals at one a second; the same bytes every time."""
    draws = np.random.RandomState(SEED).random_sample(REQUESTS)  # a stream that NumPy promises never to change
    arrivals = np.cumsum(-np.log1p(-draws))
    lines = [f"{at:.6f},{PROMPT},{OUTPUT}\n" for at in (arrivals - arrivals[0]).tolist()]
    write_text(path, "arrival_s,prompt_tokens,output_tokens\n" + "".join(lines))


def rates(experiment: Path, jobs: int) -> list[dict[str, Any]]:
    """A row a line of the figure: the highest rate found, by halving to one per cent, and beside it the published."""
    with ProcessPoolExecutor(jobs) as pool:
        found = list(pool.map(_highest, [(experiment, line) for line in LINES]))
    return [
        {"system": line.label, "limits": _limits(line), "gpus": line.gpus, "rate_per_s_per_gpu": rate / line.gpus}
        | {"published_per_s_per_gpu": float("nan") if line.published is None else line.published}
        for line, rate in zip(LINES, found, strict=True)
    ]


def _limits(line: Line) -> str:
    return " and ".join(name for name, counts in (("TTFT", line.ttft), ("TPOT", line.tpot)) if counts)


def _highest(task: tuple[Path, Line]) -> float:
    experiment, line = task
    low, high = 0.0, 0.25
    while high < HIGHEST and _keeps(experiment, line, high):
        low, high = high, 2 * high
    while high - low > RELATIVE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _keeps(experiment, line, middle) else (low, middle)
    return low


def _keeps(experiment: Path, line: Line, rate: float) -> bool:
    requests = run_at(experiment, rate, line.label).requests
    ttft_s, tpot_s = (float(np.percentile(floats(requests, name), 90)) for name in ("ttft_s", "tpot_s"))
    return (ttft_s <= TTFT_S or not line.ttft) and (tpot_s <= TPOT_S or not line.tpot)
