"""Fit the constants of an attention kernel's replay to measured calls.

Least squares of log(replayed / measured) by Levenberg-Marquardt over the logarithms of the constants, with residuals
above `_OUTLIER` counted as that: a call that the replay does not describe should not bend the others.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiler.progress import ProgressDisplay
from simulator.attention.calls import MeasuredCall, guess_times
from simulator.attention.decodes import replay_decodes
from simulator.attention.kernel_times import DecodeTimes, KernelTimes
from simulator.attention.kernels import Kernel
from simulator.attention.mixed_prices import MixedPrices
from simulator.attention.surfaces import PrefillSurface
from simulator.cost_table import CostTable
from simulator.table_costs import attention_calls, prefill_surface, table_kernel

Vector = NDArray[np.float64]
_OUTLIER = 0.25
_ROUNDS = 14
MOST_ROUNDS = 3 * _ROUNDS
_PULL = 0.03  # of the first guess, for constants that these calls do not show


def replayed_us(kernel: Kernel, times: KernelTimes, prefill: PrefillSurface, calls: Sequence[MeasuredCall]) -> Vector:
    """What each call takes by replay, single chunks too; float64 (calls)."""
    prices, singles = MixedPrices(kernel, times, prefill), MixedPrices(kernel, times, prefill, scaled=False)
    alone: dict[tuple[int, int, int], float] = {}
    replayed = []
    for call in calls:
        if call.chunks:
            of = prices if call.decodes or len(call.chunks) > 1 else singles
            replayed.append(of.price(call.decodes, call.context, call.longest, call.chunks))
        else:
            key = (call.decodes, call.context, call.longest)
            if key not in alone:
                alone[key] = replay_decodes(kernel, times, call.decodes, call.context / call.decodes, call.longest)
            replayed.append(alone[key])
    return np.array(replayed)


_SHARPNESS = (0.8, 6.0)


def _values(times: KernelTimes) -> Vector:
    """The constants in the order of `_names`, none of them 0."""
    flat = [getattr(getattr(times, form), name) if form else getattr(times, name) for form, name in _names()]
    return np.asarray(np.maximum(np.array(flat), 1e-6))


def _names() -> list[tuple[str, str]]:
    """(form, name) of each constant; form is empty for those of the kernel."""
    own = [("", field.name) for field in fields(KernelTimes) if field.name not in ("alone", "mixed", "error")]
    return own + [(form, field.name) for form in ("alone", "mixed") for field in fields(DecodeTimes)]


def _times(values: Vector) -> KernelTimes:
    named = dict(zip(_names(), (float(value) for value in values), strict=True))
    forms = {}
    for form in ("alone", "mixed"):
        of_form = {name: value for (where, name), value in named.items() if where == form}
        of_form["sharpness"] = min(max(of_form["sharpness"], _SHARPNESS[0]), _SHARPNESS[1])
        forms[form] = DecodeTimes(**of_form)
    of_kernel: dict[str, Any] = {name: value for (where, name), value in named.items() if not where}
    return KernelTimes(alone=forms["alone"], mixed=forms["mixed"], **of_kernel)


def fit_kernel(
    kernel: Kernel,
    prefill: PrefillSurface,
    calls: Sequence[MeasuredCall],
    report: Callable[[int], None] = lambda _done: None,
) -> KernelTimes:
    """The constants that describe `calls` best. Deterministic.

    Those of decodes alone first, then all together, and those of decodes alone once more beside the others.
    `report(rounds done)`, of MOST_ROUNDS at most, before each.
    """
    guess = np.log(_values(guess_times(kernel, calls)))
    decodes = [call for call in calls if not call.chunks]
    of_decodes = np.array([form == "alone" or name in _OF_ANY_CALL for form, name in _names()])
    only_alone = np.array([form == "alone" or name == "reorder_us" for form, name in _names()])
    logs = guess
    stages = ((decodes, of_decodes), (calls, np.ones(len(guess), bool)), (decodes, only_alone))
    for before, (fitted, free) in zip(range(0, MOST_ROUNDS, _ROUNDS), stages, strict=True):
        logs = _fit_some(kernel, prefill, fitted, logs, guess, free, _after(before, report))
    return _times(np.exp(logs))


def _after(before: int, report: Callable[[int], None]) -> Callable[[int], None]:
    return lambda done: report(before + done)


_OF_ANY_CALL = ("fixed_us", "combine_us", "combine_split_us", "combine_part_us", "reorder_us")


def _fit_some(
    kernel: Kernel,
    prefill: PrefillSurface,
    calls: Sequence[MeasuredCall],
    start: Vector,
    guess: Vector,
    free: NDArray[np.bool_],
    report: Callable[[int], None],
) -> Vector:
    """Logarithms of the constants, the `free` ones fitted to `calls` from `start` on."""
    measured = np.array([call.time_us for call in calls])

    def errors(some: Vector) -> Vector:
        logs = start.copy()
        logs[free] = some
        replayed = replayed_us(kernel, _times(np.exp(logs)), prefill, calls)
        return np.concatenate([np.log(replayed / measured), _PULL * (some - guess[free])])

    logs = start.copy()
    logs[free] = _levenberg_marquardt(errors, start[free], report)
    return logs


def _levenberg_marquardt(errors: Callable[[Vector], Vector], start: Vector, report: Callable[[int], None]) -> Vector:
    """Minimize the sum of squares, outliers clipped, over bounded steps; numeric derivatives."""
    at, damping, bound = start, 1e-2, 0.7
    residual = errors(at)
    for done in range(_ROUNDS):
        report(done)
        slopes = np.stack([(errors(at + step) - residual) / 0.02 for step in 0.02 * np.eye(len(at))], axis=1)
        weights = np.minimum(1.0, _OUTLIER / np.maximum(abs(residual), 1e-9))
        normal = slopes.T @ (slopes * weights[:, None])
        gradient = slopes.T @ (residual * weights)
        improved = False
        for _ in range(5):
            step = -np.linalg.solve(normal + damping * (np.diag(np.diag(normal)) + 1e-3 * np.eye(len(at))), gradient)
            trial = at + np.clip(step, -bound, bound)
            tried = errors(trial)
            if _cost(tried) < _cost(residual):
                improved = _cost(tried) < 0.998 * _cost(residual)
                at, residual, damping = trial, tried, damping / 4
                break
            damping *= 6
        if not improved:
            break
    return at


def _cost(residual: Vector) -> float:
    """Huber's loss."""
    size = abs(residual)
    return float(np.where(size < _OUTLIER, size**2 / 2, _OUTLIER * (size - _OUTLIER / 2)).sum())


MOST_CALLS = 360


def fit_aloud(table: CostTable, command: str, quiet: bool) -> KernelTimes:
    """`fit_table`, some tens of seconds, with its progress on standard error unless `quiet`."""
    if not quiet:
        print(f"{command}: fitting the attention kernel's schedule", file=sys.stderr)
    with ProgressDisplay(MOST_ROUNDS, quiet=quiet, things="rounds at most") as display:
        return fit_table(table, lambda done: display.update(done, "the attention kernel's schedule"))


def fit_table(table: CostTable, report: Callable[[int], None] = lambda _done: None) -> KernelTimes:
    """The constants of the table's attention kernel, with the relative errors that remain: median and 95 % of decodes
    alone, of calls with chunks, and of both together. `report` as for `fit_kernel`.

    Single chunks are priced by the measured surface, so of these only every third is fitted.
    """
    kernel, calls = table_kernel(table), attention_calls(table)
    prefill = prefill_surface(calls, table.name)
    single = [call for call in calls if not call.decodes and len(call.chunks) == 1]
    others = [call for call in calls if call.decodes or len(call.chunks) > 1]
    chosen = single[:: max(3, 3 * len(single) // MOST_CALLS)] + others[:: max(1, 3 * len(others) // (2 * MOST_CALLS))]
    times = fit_kernel(kernel, prefill, chosen, report)
    error = abs(replayed_us(kernel, times, prefill, others) / np.array([call.time_us for call in others]) - 1)
    kinds = {
        "decode": [not call.chunks for call in others],
        "hybrid": [bool(call.decodes and call.chunks) for call in others],
        "prefill": [not call.decodes for call in others],
    }
    remaining = {}
    for kind, of_kind in kinds.items():
        if any(of_kind):
            remaining[f"{kind}_median"] = round(float(np.median(error[of_kind])), 4)
            remaining[f"{kind}_p95"] = round(float(np.quantile(error[of_kind], 0.95)), 4)
    return replace(_rounded(times), error=remaining)


def _rounded(times: KernelTimes) -> KernelTimes:
    """Four digits, which is more than is known."""
    values = [float(f"{value:.4g}") for value in _values(times)]
    return _times(np.array(values))
