"""The page of the pipeline experiment, `README.md`: our ratios beside the published ones, and what they are made of."""

import platform
from collections.abc import Iterator, Sequence
from textwrap import fill

from simulator import __version__
from simulator.reproduce.figures import Outcome
from simulator.reproduce.published import DURATION_S, MEDIAN_BUBBLE_S, RATIOS, SARATHI, TITLES, TP_ONLY, TP_PP
from simulator.trace import Trace

WIDTH = 116
PAGE = "README.md"
HEADER = (
    "GPT-3 175B on 64 A100 of 80 GB, section 5.3 of SARATHI (arXiv 2308.16369): tensor parallelism in hosts of eight"
    " GPUs and a pipeline of eight stages, with Orca's whole prompts or SARATHI's chunks, against eight replicas"
    " without a pipeline. [What drives each ratio](reading.md) tells what to make of it, by hand; this page is made by"
    " the command at its end, and nothing in the simulator was adjusted to the published figures."
)
COSTS = (
    "The paper's stage times are not published. Its figure 12 and its workload imply about 21 ms for a micro-batch of"
    " 256 tokens on a stage, bubbles included. Here a cost table made of an A100's datasheet is used"
    " (`paper/gpt3-175b-a100`; not measured) with all-reduces on NVLink and sends on InfiniBand; the column"
    " `micro-batch` says what a chunk of 230 tokens beside 26 decodes costs on a stage in the middle."
)
MADE_OF = (
    "A duration is what a stage works (`busy`, the mean over stages; over replicas where there are no stages) divided"
    " by the share of the time that it does. So each ratio of durations is exactly a ratio of work times a ratio of"
    " shares; a share below 1 is bubbles in a pipeline, and in replicas waiting for the one that ends last."
)
BUBBLES = (
    "Bubbles of a request are those before each of its micro-batches, summed over stages and over all of its"
    " iterations, which is the paper's metric. Causes are those of `bubbles.csv`: PB1 to PB3 are SARATHI's three kinds."
)
PLOTS = {
    "completions": "Requests finished over time, as figure 12b; open markers: where the paper's curves end",
    "request-bubbles": "Bubbles of a request, as figure 12a; open markers: the paper's medians",
    "stage-time": "Where the stages' time goes, by variation",
    "ratios": "Each ratio by variation; lines: as published",
}


def page(outcomes: Sequence[Outcome], trace: Trace, command: str, took_s: float) -> str:
    """The text; the first outcome is the plain experiment."""
    return "\n".join(_lines(outcomes, trace, command, took_s)) + "\n"


def _lines(outcomes: Sequence[Outcome], trace: Trace, command: str, took_s: float) -> Iterator[str]:
    yield from ("# SARATHI's pipeline experiment", "", _wrapped(HEADER), "", *_ratios(outcomes), "")
    yield from (_wrapped(COSTS), "", *_abouts(outcomes), "")
    yield from ("## Durations", "", *_durations(outcomes), "", _wrapped(MADE_OF), "", *_factors(outcomes), "")
    yield from ("## Bubbles", "", _wrapped(BUBBLES), "", *_bubbles(outcomes), "")
    for stem, title in PLOTS.items():
        yield from (f"![{title}]({stem}.png)", "")
    yield from ("## The workload", "", _wrapped(_workload(trace)), "")
    yield from ("## Made by", "", *_made_by(outcomes, command, took_s))


def _ratios(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield "| variation | micro-batch | " + " | ".join(ratio.title for ratio in RATIOS) + " |"
    yield "| --- |" + " ---: |" * (1 + len(RATIOS))
    yield "| **published** | **~21 ms** | " + " | ".join(f"**{ratio.published:.2f}x**" for ratio in RATIOS) + " |"
    for outcome in outcomes:
        cells = " | ".join(_times(outcome.ratio(ratio)) for ratio in RATIOS)
        yield f"| {outcome.variation.name} | {1e3 * outcome.micro_batch_s:.1f} ms | {cells} |"


def _abouts(outcomes: Sequence[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        yield _wrapped(f"- `{outcome.variation.name}`: {outcome.variation.about}.", "  ")


def _durations(outcomes: Sequence[Outcome]) -> Iterator[str]:
    labels = (TP_PP, TP_ONLY, SARATHI)
    yield "| variation | " + " | ".join(f"{TITLES[label]}: s | busy s | share" for label in labels) + " |"
    yield "| --- |" + " ---: |" * (3 * len(labels))
    yield "| published (figure 12b) | " + " | ".join(f"~{DURATION_S[label]:,.0f} | | " for label in labels) + "|"
    for outcome in outcomes:
        runs = [outcome.runs[label] for label in labels]
        cells = (f"{run.duration_s:,.0f} | {run.busy_s:,.0f} | {100 * run.busy_share:.1f} %" for run in runs)
        yield f"| {outcome.variation.name} | " + " | ".join(cells) + " |"


def _factors(outcomes: Sequence[Outcome]) -> Iterator[str]:
    ratios = [ratio for ratio in RATIOS if not ratio.of_bubbles]
    yield "| variation | " + " | ".join(f"{ratio.title} = work x share" for ratio in ratios) + " |"
    yield "| --- |" + " ---: |" * len(ratios)
    for outcome in outcomes:
        cells = []
        for ratio in ratios:
            work, share = outcome.factors(ratio)
            cells.append(f"{outcome.ratio(ratio):.2f} = {work:.2f} x {share:.2f}")
        yield f"| {outcome.variation.name} | " + " | ".join(cells) + " |"


def _bubbles(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield "| variation | system | request p50 s | share of a stage's time | PB1 | PB2 | PB3 | other |"
    yield "| --- | --- |" + " ---: |" * 6
    for label in (TP_PP, SARATHI):
        yield f"| published (figure 12a) | {TITLES[label]} | ~{MEDIAN_BUBBLE_S[label]:g} | | | | | |"
    for outcome in outcomes:
        for label in (TP_PP, SARATHI):
            run = outcome.runs[label]
            shares = [100 * seconds / run.duration_s for seconds in run.bubbles_s.values()]
            cells = [f"{sum(shares):.1f} %", *(f"{share:.1f} %" for share in (*shares[:3], sum(shares[3:])))]
            yield f"| {outcome.variation.name} | {TITLES[label]} | {run.median_bubble_s:.2f} | {' | '.join(cells)} |"


def _workload(trace: Trace) -> str:
    prompt, output = trace.prompt_tokens, trace.output_tokens
    return (
        f"{len(trace):,} requests, all there at t = 0. Prompts have {prompt.mean():,.0f} tokens in the mean"
        f" ({prompt.min():,} to {prompt.max():,}), outputs {output.mean():,.0f} ({output.min():,} to {output.max():,})."
        " Lengths together are from 1,024 to 4,096, Zipf with theta 0.4, ten prompt tokens an output token, drawn as"
        " Vidur does (`simulator/reproduce/zipf.py`). `requests.csv` is kept in the repository, 108 kB, so that"
        " `simulate-trace tp-pp.yaml` works as it is; where it is missing, the command below makes the same bytes."
    )


def _made_by(outcomes: Sequence[Outcome], command: str, took_s: float) -> Iterator[str]:
    yield "```sh"
    yield command
    yield "```"
    yield ""
    yield _wrapped(
        f"Chunkwise {__version__}, Python {platform.python_version()}, in {took_s / 60:.0f} min; the plain experiment's"
        f" three runs took {' + '.join(f'{run.took_s:.0f}' for run in outcomes[0].runs.values())} s. `ratios.csv` and"
        " `times.csv` hold the tables. `variations.yaml` says what is varied: add your own table there. `simulate-trace"
        " results/sarathi-pipeline/tp-pp.yaml` (or `tp-only.yaml`) runs the plain experiment with all output files,"
        " timelines and plots of its own."
    )
    notes = dict.fromkeys(note for outcome in outcomes for run in outcome.runs.values() for note in run.notes)
    outside = [note for note in notes if "max_batch_size" not in note and "max_num_seqs" not in note]
    if outside:
        yield ""
        yield from (_wrapped(f"- note of a run: {note}", "  ") for note in outside)


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x"


def _wrapped(text: str, indent: str = "") -> str:
    return fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
