"""Draws `docs/images/bubbles.png`: a small pipeline, with every gap coloured by its causes.

    python -m bench.bubble_picture

The run is the simulator's own; what each gap consists of comes from the slow account of the tests, which equals the
simulator's.
"""

from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from policies.orca import Orca
from simulator.costs import LinearCosts
from simulator.report.style import styled
from tests.simulator.pipeline.runs import pipeline
from tests.simulator.pipeline.slow_bubbles import SlowBubbles, slow_bubbles

OUT = Path("docs/images/bubbles.png")
WORK, PROMPT = "#d9d9d9", "#8c8c8c"
COLOURS = {
    "prefill_lengths": ("#d95f02", "PB1: prompts of unequal length"),
    "prefill_and_decode": ("#e6ab02", "PB2: prompt next to decode"),
    "decode_contexts": ("#66a61e", "PB3: decodes of unequal context"),
    "dependency": ("#7570b3", "dependency on the last stage"),
    "transfer": ("#1b9e77", "transfer"),
    "fill_and_drain": ("#e7298a", "fill and drain"),
    "arrivals": ("#ffffff", "waiting for arrivals (no bubble)"),
}
REQUESTS = [(0, 10, 3), (0, 6, 2), (0, 4, 1), (72, 8, 2)]


def draw(axes: Axes, slow: SlowBubbles, names: list[str]) -> None:
    """A row a stage."""
    stages = len(slow.of_stages)
    for k, batch in enumerate(slow.batches):
        parts: Counter[str] = Counter()
        for stage in range(stages):
            start, end, _ = batch.stages[stage]
            colour = PROMPT if batch.prompt_tokens else WORK
            axes.barh(stage, end - start, left=start, height=0.7, color=colour, edgecolor="white", linewidth=0.5)
            axes.text((start + end) / 2, stage, names[k], ha="center", va="center", fontsize=7)
            if not k:
                continue
            parts = slow.gap(k, stage, parts)
            at = slow.batches[k - 1].stages[stage][1]
            for cause in sorted(+parts, key=list(COLOURS).index):
                axes.barh(
                    stage,
                    parts[cause],
                    left=at,
                    height=0.7,
                    color=COLOURS[cause][0],
                    edgecolor="#bbbbbb",
                    linewidth=0.3,
                )
                at += parts[cause]
    axes.set_yticks(range(stages), [f"stage {stage}" for stage in range(stages)])
    axes.invert_yaxis()
    axes.set_xlabel("time")


def main() -> None:
    """Run and draw."""
    run = pipeline(
        Orca(max_batch_size=1),
        *REQUESTS,
        layers=(1, 1, 1),
        costs=LinearCosts(fixed_ns=3, per_token_ns=3),
        send=lambda _: 1,
    )
    names = ["ABCD"[next(iter(step))] + ("" if max(step.values()) > 1 else "'") for step in run.steps]
    with styled():
        figure, axes = plt.subplots(figsize=(10, 3.4), layout="constrained")
        draw(axes, slow_bubbles(run.log), names)
        seen = {cause for parts in run.causes for cause in parts}
        legend = [Patch(color=PROMPT, label="prompt"), Patch(color=WORK, label="decode (')")]
        legend += [
            Patch(facecolor=colour, edgecolor="#bbbbbb", label=label)
            for cause, (colour, label) in COLOURS.items()
            if cause in seen
        ]
        figure.legend(handles=legend, loc="outside lower center", ncols=4, fontsize=8)
        figure.savefig(OUT, dpi=150)
    print(run.causes, run.worked)


if __name__ == "__main__":
    main()
