"""Which policy is best at what and by how much, in sentences; and what to know before believing them."""

import math
from collections import Counter
from collections.abc import Sequence

from simulator.report.comparable import keep_up, remarks, served_alike, with_gpus
from simulator.report.measures import BUBBLES, HEADLINE, Measure, finished, winners, with_pipeline
from simulator.report.wording import listed, opening
from simulator.results import PolicyResult

NEARLY = 1.02  # a factor below which two values are called about the same


def headline(results: Sequence[PolicyResult]) -> list[str]:
    """What sets policies apart, and a sentence for each measure of the comparison that at least two have.

    One sentence in all where they did not finish the same requests: who refuses the long ones looks fast. Who does not
    keep up is compared by throughput alone.
    """
    if len(results) > 1 and not served_alike(results):
        served = ", ".join("{} {:,} of {:,}".format(result.label, *finished(result)) for result in results)
        return [
            "The policies did not serve the same requests to the same length, so none is called better than another:"
            f" finished {served}. See the notes for the reasons; equal limits make them comparable."
        ]
    sentences = remarks(results) if len(results) > 1 else []
    kept = [result for result, kept in zip(with_gpus(results), keep_up(results), strict=True) if kept]
    for measure in with_pipeline(HEADLINE, results, BUBBLES):
        compared = with_gpus(results) if measure.kind == "rate" else kept
        known = [(measure.of(result), result.label) for result in compared if math.isfinite(measure.of(result))]
        if len(known) >= 2:
            ranked = sorted(known, key=lambda one: one[0], reverse=measure.better == "higher")
            everyone = "all policies" if len(compared) == len(results) else "all that keep up"
            whose = everyone if len(known) == len(compared) else f"the {len(ranked)} policies that have one"
            sentences.append(_sentence(measure, ranked, whose, len(compared) < len(results)))
    return sentences


def _sentence(measure: Measure, ranked: list[tuple[float, str]], whose: str, some: bool) -> str:
    """`ranked` are (value, label), best first; `whose` values they are; `some`: only of those that keep up."""
    best, worst = ranked[0][0], ranked[-1][0]
    if _factor(best, worst) < NEARLY:
        return f"{opening(measure.noun)} is about the same for {whose}: {_between(measure, best, worst)}."
    won = winners(measure, [value for value, _ in ranked])
    tied = [label for (_, label), best_too in zip(ranked, won, strict=True) if best_too]
    verb, extreme = "have" if len(tied) > 1 else "has", "highest" if measure.better == "higher" else "lowest"
    shown, rest = _between(measure, best, ranked[len(tied) - 1][0]), _others(measure, ranked[len(tied) :], best)
    among = "Of those that keep up, " if some else ""
    return f"{among}{listed(tied)} {verb} the {extreme} {measure.noun}: {shown}, {rest}."


def _between(measure: Measure, one: float, other: float) -> str:
    """'3,849 to 3,852 tokens/s', or the one text that both values have."""
    low, high = (measure.text(value) for value in sorted((one, other)))
    if low == high:
        return low
    number, _, unit = low.partition(" ")
    return f"{number if unit and high.endswith(f' {unit}') else low} to {high}"


def _others(measure: Measure, others: Sequence[tuple[float, str]], best: float) -> str:
    """The next and the last of the policies that did not win."""
    if len(others) == 1:
        return _against(measure, best, others[0], "")
    near, far = (
        _against(measure, best, others[0], ", the next"),
        _against(measure, best, others[-1], ", the last"),
    )
    return f"{near} and {far}"


def _against(measure: Measure, best: float, other: tuple[float, str], place: str) -> str:
    """How far `best` is from another policy's value: '2.3x below orca (104 ms)'."""
    value, label = other
    factor = _factor(best, value)
    side = "above" if measure.better == "higher" else "below"
    how = "about the same as" if factor < NEARLY else f"{times(factor)} {side}" if math.isfinite(factor) else side
    return f"{how} {label} ({measure.text(value)}{place})"


def times(factor: float) -> str:
    """A factor of at least one with the digits that a single run deserves: 1.08x, 2.3x, 15x."""
    digits = 2 if factor < 1.995 else 1 if factor < 9.95 else 0
    return f"{factor:,.{digits}f}x"


def _factor(one: float, other: float) -> float:
    low, high = sorted((abs(one), abs(other)))
    if low == high:
        return 1.0
    return high / low if low else math.inf


def notes(results: Sequence[PolicyResult]) -> list[str]:
    """What qualifies the numbers: unfinished requests first, then the notes of the runs, equal ones once."""
    lines = [line for result in results if (line := _unfinished(result))]
    said: dict[str, list[str]] = {}
    for result in results:
        for note in result.notes:
            said.setdefault(note, []).append(result.label)
    for note, labels in said.items():
        everyone = len(labels) == len(results)
        lines.append(note if everyone else f"{', '.join(labels)}: {note}")
    return lines


def _unfinished(result: PolicyResult) -> str:
    done, every = finished(result)
    if done == every:
        return ""
    kinds = Counter(str(status) for status in result.requests["status"] if status != "finished")
    why = ", ".join(f"{number:,} {status}" for status, number in sorted(kinds.items()))
    reason = f" ({why})" if why else ""
    return f"{result.label}: {every - done:,} of {every:,} requests did not finish{reason}; compare with care"
