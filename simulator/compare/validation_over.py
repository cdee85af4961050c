"""What the page of a validation says of figures over their limits: what is known of the reason."""

from collections.abc import Iterator, Sequence

import numpy as np

from simulator.compare.figures import Figure
from simulator.compare.limits import within
from simulator.compare.steps import SMALL_STEP, errors_of_kind
from simulator.compare.validated_run import GapShares, ValidatedRun
from simulator.compare.validation_tables import figures
from simulator.compare.wording import wrapped
from simulator.report.wording import duration, significant

NEAR = 2.0
"""Percentiles on either side between which the page tells how steep a distribution is, and what is near an edge."""
ENDERS = ("steps of decodes alone", f"mixed steps of up to {SMALL_STEP} tokens", "larger steps")


def over_section(runs: Sequence[ValidatedRun], drawn: Sequence[str]) -> Iterator[str]:
    """Each figure over its limit: what is known of the reason."""
    found = [(run, figure) for run in runs for figure in figures(run) if within(figure, run.gpus) is False]
    if found:
        yield from ("## Figures over their limits", "")
    for run, figure in found:
        pair = f"measured {_value(figure, figure.reference)}, simulated {_value(figure, figure.other)}"
        sentences = [f"**{figure.title} of {run.name}**: {pair} ({figure.error_percent:+.1f} %)."]
        if figure.group == "itl" and figure.title[-2:].isdigit() and run.measured.itl is not None:
            sentences += _percentile(run, int(figure.title[-2:]), figure.other)
        yield from (wrapped(" ".join(sentences)), "")
    captions = {"itl": "Distribution of the time between tokens", "quantiles": "Measured and simulated percentiles"}
    for name in dict.fromkeys(run.name for run, _ in found):
        for kind, caption in captions.items():
            if f"{kind}-{name}" in drawn:
                yield from (f"![{caption}, {name}]({kind}-{name}.png)", "")


def _percentile(run: ValidatedRun, percent: int, simulated_s: float) -> Iterator[str]:
    """How steep the distribution is there, and which steps end the gaps there."""
    assert run.measured.itl is not None
    shares = np.linspace(0.0, 1.0, 2001)
    place = 100 * float(np.interp(simulated_s, run.measured.itl.at(shares), shares))
    around = (percent - NEAR, min(percent + NEAR, 100.0))
    low, high = (duration(float(value)) for value in run.measured.itl.at(np.array(around) / 100))
    yield f"The simulated value is the measured percentile {place:.1f}: from p{around[0]:g} to p{around[1]:g} the"
    yield f"measured gaps grow from {low} to {high}, so a few gaps move this percentile far."
    if run.gaps is not None:
        yield from _ended_by(run, run.gaps, percent)


def _ended_by(run: ValidatedRun, gaps: GapShares, percent: int) -> Iterator[str]:
    """Steps of later kinds take longer, so the kinds follow each other along the distribution."""
    shares = list(zip(gaps.measured, gaps.simulated, strict=True))
    first = f"{shares[0][0]:.1f} % of the measured gaps ({shares[0][1]:.1f} % of the simulated) end with {ENDERS[0]}"
    others = [
        f"{ours:.1f} % ({theirs:.1f} %) with {steps}"
        for steps, (ours, theirs) in zip(ENDERS[1:], shares[1:], strict=True)
    ]
    yield f"{first}, {' and '.join(others)}."
    ends = np.cumsum(gaps.measured)
    kind = min(int(np.searchsorted(ends, percent)), len(ENDERS) - 1)
    near = [f"{edge:.1f} %" for edge in ends[:-1] if abs(edge - percent) <= NEAR]
    at_edge = f", near the edge at {' and at '.join(near)}" if near else ""
    yield f"So percentile {percent} is of gaps that end with {ENDERS[kind]}{at_edge}."
    if run.comparison.steps is not None:
        bias = errors_of_kind(run.comparison.steps, kind).median_percent
        yield f"In this run the prices of such steps are off by {bias:+.1f} % in the median."


def _value(figure: Figure, value: float) -> str:
    return duration(value) if figure.in_seconds else significant(value)
