"""Make `traces/conversation.csv`: synthetic requests with the published statistics of a conversation service.

The statistics are those of the Azure LLM inference trace 2023, conversation (CC-BY-4.0; Patel et al.,
"Splitwise", ISCA 2024); no row is copied. Lengths come from a quantile function, log-linear between known
quantiles, with one draw in each of as many equally likely strata as there are requests, so that the sample
has the statistics too. Prompts, outputs and gaps between arrivals are drawn independently.

    python bench/make_conversation_trace.py   # prints made against asked, writes the trace
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

REQUESTS = 2000
RATE = 19.0  # requests per second
GAP_CV = 1.09  # coefficient of variation of the gaps between arrivals; Poisson arrivals have 1
SEED = 2023
OUT = Path(__file__).resolve().parent.parent / "traces" / "conversation.csv"

# Quantiles of the real trace; 0 and 1 are its least and its most.
SHARES = (0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99, 0.999, 1)
PROMPT_TOKENS = (2, 29, 181, 207, 387, 403, 703, 1020, 1071, 1130, 1315, 1876, 2735, 4083, 4142, 6179, 14050)
OUTPUT_TOKENS = (7, 16, 41, 54, 77, 91, 103, 129, 177, 384, 400, 411, 424, 451, 601, 954, 1000)
PROMPT_MEAN = 1155.0
OUTPUT_MEAN = 211.0
PROMPT_SOLVED, OUTPUT_SOLVED = 0.85, 0.6  # the quantile that is moved until the mean fits

ASKED = {
    "prompt mean": PROMPT_MEAN,
    **{f"prompt p{100 * share:.0f}": PROMPT_TOKENS[SHARES.index(share)] for share in (0.5, 0.9, 0.99)},
    "output mean": OUTPUT_MEAN,
    **{f"output p{100 * share:.0f}": OUTPUT_TOKENS[SHARES.index(share)] for share in (0.5, 0.9, 0.99)},
    "gap cv": GAP_CV,
    "requests per s": RATE,
}


def log_linear(quantiles: Floats, shares: Floats) -> Floats:
    """The quantile function at `shares`: straight lines between the logarithms of the quantiles at SHARES."""
    return np.exp(np.interp(shares, SHARES, np.log(quantiles)))


def with_mean(quantiles: Floats, mean: float, solved: float) -> Floats:
    """The same quantiles with the one at `solved` moved, between its neighbours, until the mean fits."""
    shares = (np.arange(100_000) + 0.5) / 100_000
    place = SHARES.index(solved)
    moved = quantiles.copy()
    low, high = quantiles[place - 1], quantiles[place + 1]
    for _ in range(60):
        moved[place] = (low + high) / 2
        if log_linear(moved, shares).mean() < mean:
            low = moved[place]
        else:
            high = moved[place]
    return moved


def draw_tokens(quantiles: Floats, rng: np.random.Generator) -> Ints:
    """Lengths in random order, one drawn from each of REQUESTS equally likely strata."""
    shares = (np.arange(REQUESTS) + rng.random(REQUESTS)) / REQUESTS
    tokens = np.rint(log_linear(quantiles, shares)).astype(np.int64)
    return rng.permutation(tokens)


def draw_arrivals(rng: np.random.Generator) -> Floats:
    """Seconds from 0 with gamma gaps in random order, one from each stratum of a hundred times as many."""
    shape = 1 / GAP_CV**2
    strata = np.sort(rng.gamma(shape, size=(REQUESTS - 1) * 100)).reshape(REQUESTS - 1, 100)
    gaps = rng.permutation(strata[np.arange(REQUESTS - 1), rng.integers(100, size=REQUESTS - 1)])
    return np.concatenate([[0.0], np.cumsum(gaps / gaps.mean() / RATE)])


def statistics(arrivals: Floats, prompts: Ints, outputs: Ints) -> dict[str, float]:
    """What the sample has of what was asked, under the names of ASKED."""
    gaps = np.diff(arrivals)
    made = {"gap cv": float(gaps.std() / gaps.mean()), "requests per s": float(1 / gaps.mean())}
    for noun, tokens in (("prompt", prompts), ("output", outputs)):
        made[f"{noun} mean"] = float(tokens.mean())
        made |= {f"{noun} p{percent}": float(np.percentile(tokens, percent)) for percent in (50, 90, 99)}
    return made


def main(out: Path = OUT) -> None:
    """Draw the trace, print its statistics and write it; the same bytes every time."""
    rng = np.random.default_rng(SEED)
    prompts = draw_tokens(with_mean(np.array(PROMPT_TOKENS, float), PROMPT_MEAN, PROMPT_SOLVED), rng)
    outputs = draw_tokens(with_mean(np.array(OUTPUT_TOKENS, float), OUTPUT_MEAN, OUTPUT_SOLVED), rng)
    arrivals = draw_arrivals(rng)
    made = statistics(arrivals, prompts, outputs)
    print(f"{'':16}{'asked':>10}{'made':>10}")
    for name, asked in ASKED.items():
        print(f"{name:16}{asked:10.2f}{made[name]:10.2f}")
    rows = [
        f"{arrival:.6f},{prompt},{output}\n" for arrival, prompt, output in zip(arrivals, prompts, outputs, strict=True)
    ]
    out.write_bytes(("arrival_s,prompt_tokens,output_tokens\n" + "".join(rows)).encode())
    print(f"{REQUESTS} requests over {arrivals[-1]:.1f} s -> {out}")


if __name__ == "__main__":
    main()
