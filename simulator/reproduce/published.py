"""What SARATHI (arXiv 2308.16369) publishes of its pipeline experiment, section 5.3 and figure 12."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """How many times as long `slower` takes as `faster`; with `of_bubbles` the medians of requests' bubbles instead."""

    name: str
    title: str
    slower: str
    faster: str
    published: float
    of_bubbles: bool = False


TP_PP, SARATHI, TP_ONLY = "tp-pp", "sarathi", "tp-only"
"""The systems, by the labels that they have in the experiment files."""
TITLES = {TP_PP: "TP8 x PP8, Orca", SARATHI: "TP8 x PP8, SARATHI", TP_ONLY: "8 x TP8, Orca"}
RATIOS = (
    Ratio("sarathi_vs_tp_pp", "SARATHI faster than TP x PP", TP_PP, SARATHI, 1.91),
    Ratio("sarathi_vs_tp_only", "SARATHI faster than TP only", TP_ONLY, SARATHI, 1.48),
    Ratio("tp_only_vs_tp_pp", "TP only faster than TP x PP", TP_PP, TP_ONLY, 1.28),
    Ratio("bubble_median", "median bubbles a request, TP x PP over SARATHI", TP_PP, SARATHI, 6.29, of_bubbles=True),
)
"""In the paper's own words and figures; everything below is read off its figure 12 by eye, to 1 to 3 % of the axis."""
DURATION_S = {TP_PP: 3680.0, TP_ONLY: 2860.0, SARATHI: 1925.0}
MEDIAN_BUBBLE_S = {TP_PP: 40.0, SARATHI: 6.4}
