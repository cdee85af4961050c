"""What the stages of a pipeline wait for, as readers meet it: names, colours, and what is meant."""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.results import PolicyResult, floats


@dataclass(frozen=True)
class Cause:
    """One of `simulator.pipeline.bubbles.CAUSES`, its `key`; `meaning` is a sentence."""

    key: str
    name: str
    colour: str
    hatch: str
    meaning: str

    def share(self, result: PolicyResult) -> float:
        """Of the spans of all stages, as a fraction."""
        return share_of_spans(result, f"{self.key}_s")


# Reds for what micro-batches differ in, none like the colours of prefill and decode; hatches for greyscale.
CAUSES = (
    Cause(
        "prefill_lengths",
        "PB1 prefill lengths",
        "#f29bb5",
        "",
        "Two micro-batches have prompt tokens, one of them more or after a longer context, and that takes longer.",
    ),
    Cause(
        "prefill_and_decode",
        "PB2 prefill and decode",
        "#c2255c",
        "",
        "One of two micro-batches has prompt tokens and takes longer than the other, which only decodes.",
    ),
    Cause(
        "decode_contexts",
        "PB3 decode contexts",
        "#6b0f3a",
        "//",
        "Two micro-batches differ in nothing but their decodes: how many there are, and how long their contexts.",
    ),
    Cause(
        "uneven_stages",
        "uneven stages",
        "#009e73",
        "\\\\",
        "Another stage takes longer over the same micro-batch: it has more layers, the embedding or the LM head.",
    ),
    Cause(
        "dependency",
        "dependency on own last stage",
        "#56b4e9",
        "..",
        "All requests are under way, and some go on only when the last stage has sampled their token.",
    ),
    Cause(
        "fill_and_drain",
        "fill and drain",
        "#c4c4c4",
        "--",
        "The first micro-batch after a pause is on its way to this stage, or the last requests are ending.",
    ),
    Cause(
        "not_ready",
        "no ready micro-batch",
        "#7a7a7a",
        "xx",
        "There are requests that could run, and the policy schedules none: a limit or the memory holds them back.",
    ),
    Cause("transfer", "transfer", "#8c6d31", "", "Activations are on their way from one stage to the next."),
    Cause("host", "host", "#1a1a1a", "", "The engine's CPU plans or prepares the step."),
)


def share_of_spans(result: PolicyResult, column: str) -> float:
    """A column of `bubbles.csv`, summed over stages, as a fraction of their spans; 0 of nothing."""
    whole = float(floats(result.bubbles, "span_s").sum())
    return float(floats(result.bubbles, column).sum()) / whole if whole else 0.0


def seen_causes(results: Sequence[PolicyResult]) -> list[Cause]:
    """Those with any time in any of the runs, in their order."""
    return [cause for cause in CAUSES if any(cause.share(result) > 0 for result in results)]
