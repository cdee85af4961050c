"""What a table says to someone who sets `chunk_size` or `max_num_batched_tokens`, in plain words, from its rows.

The rates are those of the work that depends on a step's tokens alone: matrix products, norms and the like, embedding.
Attention depends on contexts, the LM head on the number of sequences, so they are left out and the answer says so.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from profiler.chunk_jumps import jump_lines
from profiler.cliffs import LAYER, curve, described, find_cliffs, interval_of, is_clear
from profiler.grid import LINEAR_OPERATORS
from simulator.cost_table import Cliff, Source, TableMetadata
from simulator.table_rows import TOKEN_OPERATORS
from simulator.trace import Floats

LIMITS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
SMALLEST_TOKENS = 64  # below, steps of decodes alone: nothing to choose
SMALLEST_CHUNK = 64  # a shorter one is no advice
ALIKE = 0.01  # rates that differ by less are the same to separate measurements
LISTED = 5


def answer(rows: pd.DataFrame, metadata: TableMetadata, decodes: int) -> list[str]:
    """The lines that `profile-gpu` ends with: the cliffs, a chunk for so many `decodes`, and good totals of tokens."""
    cliffs = find_cliffs(rows, metadata.cliffs)
    layer = [cliff for cliff in cliffs if cliff.operator == LAYER and cliff.tokens >= SMALLEST_TOKENS]
    lines = _cliff_lines(layer, metadata.source)
    heads = [cliff for cliff in cliffs if cliff.operator == "lm_head" and is_clear(cliff)]
    if heads:
        lines.append(f"  LM head: {described(_largest(heads), 'sequences')}")
    lines += jump_lines(rows)
    times = step_us(rows, metadata)
    if times is None:
        return [*lines, "Not every operator was measured, so no number of tokens is recommended."]
    return [*lines, *_chunk_lines(layer, decodes), *_total_lines(best_totals(times, _measured(rows)), layer, decodes)]


def step_us(rows: pd.DataFrame, metadata: TableMetadata) -> Floats | None:
    """Microseconds of all that depends on the tokens alone, by tokens from 0 (unused); None if an operator is missing.

    Of the whole model, up to the most tokens at which every matrix product was measured.
    """
    curves = {name: curve(rows, name)["time"] for name in TOKEN_OPERATORS}
    if any(times.empty for times in curves.values()):
        return None
    tokens = np.arange(min(int(curves[name].index.max()) for name in LINEAR_OPERATORS) + 1)
    total = np.zeros(len(tokens))
    for name, times in curves.items():
        once = np.interp(tokens, times.index.to_numpy(dtype=float), times.to_numpy(dtype=float))
        total += once * (1 if name == "embedding" else metadata.model.num_hidden_layers)
    return total


def _largest(cliffs: Sequence[Cliff]) -> Cliff:
    return max(cliffs, key=lambda cliff: abs(cliff.growth))


def _cliff_lines(layer: list[Cliff], source: Source) -> list[str]:
    if not layer:
        return ["No two neighbours were measured of all matrix products, so nothing is said about cliffs."]
    clear = sorted((cliff for cliff in layer if is_clear(cliff)), key=lambda cliff: -abs(cliff.growth))
    compared = sum(cliff.rounds > 0 for cliff in layer)
    how = (f"{compared} of them compared in turn, " if compared else "") + interval_of(layer, source)
    lines = [
        f"The matrix products of a layer, {len(layer)} steps from t to t + 1 tokens ({how}):"
        f" {len(clear)} {'are 2 % or more' if source == 'modelled' else 'stand out of the noise'},"
        f" {sum(cliff.growth < 0 for cliff in clear)} of them downward."
    ]
    lines += [f"  {described(cliff)}" for cliff in clear[:LISTED]]
    famous = next((cliff for cliff in layer if cliff.tokens == 256), None)
    if famous is not None and famous not in clear[:LISTED]:
        lines.append(f"  {described(famous)}" + ("" if is_clear(famous) else ", which the noise may explain"))
    return lines


def _chunk_lines(layer: list[Cliff], decodes: int) -> list[str]:
    """What to do about the largest step up, and about the largest one down."""
    clear = [cliff for cliff in layer if is_clear(cliff) and cliff.tokens >= decodes + SMALLEST_CHUNK]
    up = [cliff for cliff in clear if cliff.growth > 0]
    down = [cliff for cliff in clear if cliff.growth < 0]
    lines = []
    if up:
        first = _largest(up)
        chunk = first.tokens - decodes
        lines.append(
            f"{described(first)}; with {decodes} decodes take a {chunk}-token chunk"
            f" ({first.tokens} tokens in all) rather than one token more."
        )
    if down:
        first = _largest(down)
        lines.append(f"{described(first)}: where {first.tokens} is reached, one token more is cheaper.")
    return lines


@dataclass(frozen=True, slots=True)
class Total:
    """A good number of tokens up to `limit`: its time in microseconds, and its rate in tokens per second."""

    limit: int
    tokens: int
    us: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.us * 1e6


def best_totals(times_us: Floats, measured: Iterable[int]) -> list[Total]:
    """For each of LIMITS, the largest of the `measured` numbers of tokens in its upper half at nearly the best rate."""
    found, places = [], np.array(sorted(measured))
    for limit in (limit for limit in LIMITS if limit < len(times_us)):
        tokens = places[(places > limit // 2) & (places <= limit)]
        if not len(tokens):
            continue
        rates = tokens / times_us[tokens]
        best = int(tokens[rates >= (1 - ALIKE) * rates.max()][-1])
        found.append(Total(limit, best, float(times_us[best])))
    return found


def _measured(rows: pd.DataFrame) -> set[int]:
    """Numbers of tokens at which every matrix product was measured."""
    return set.intersection(*(set(map(int, curve(rows, name).index)) for name in LINEAR_OPERATORS))


def _total_lines(totals: list[Total], layer: list[Cliff], decodes: int) -> list[str]:
    steps = {cliff.tokens: cliff for cliff in layer if is_clear(cliff)}
    totals = [total for total in totals if total.tokens > decodes]
    if not totals:
        return []
    lines = [
        "Tokens of a step (max_num_batched_tokens, or chunk_size plus decodes): the largest within 1 % of the most",
        "tokens/s, attention and LM head left out:",
        f"  {'up to':>7} {'take':>6} {f'chunk beside {decodes} decodes':>24} {'ms a step':>10} {'tokens/s':>10}"
        "  one token more",
    ]
    for total in totals:
        step = steps.get(total.tokens)
        more = f"{step.growth * 100:+.0f} % matrix products" if step else ""
        lines.append(
            f"  {total.limit:>7,} {total.tokens:>6,} {total.tokens - decodes:>24,} {total.us / 1e3:>10.2f}"
            f" {total.rate:>10,.0f}  {more}".rstrip()
        )
    return lines
