"""Fitting a kernel's constants: what made the calls is found again."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from profiler.fit import MOST_ROUNDS, fit_aloud, fit_kernel, fit_table, replayed_us
from simulator.attention.calls import MeasuredCall, guess_times
from simulator.attention.surfaces import PrefillSurface
from simulator.cost_table import read_table
from simulator.table_costs import TableCosts
from tests.simulator.attention.test_prices import CHUNKS, CONTEXTS, KERNELS, batches
from tests.simulator.attention.tiles import call_us
from tests.simulator.tables import metadata, small_rows, write_small_table


def calls_of(name: str, seed: int, count: int) -> list[MeasuredCall]:
    """Random calls, decodes alone and with chunks, timed by the replay of every tile."""
    kernel, times = KERNELS[name]
    made = []
    for chunks in (0, 1, 3):
        for contexts, pieces in batches(seed + chunks, count, chunks):
            time = call_us(kernel, times, contexts, pieces)
            made.append(MeasuredCall(len(contexts), sum(contexts), max(contexts), tuple(pieces), time))
    return made


def singles_of(name: str) -> list[MeasuredCall]:
    kernel, times = KERNELS[name]
    return [
        MeasuredCall(0, 0, 0, ((before, tokens),), call_us(kernel, times, [], [(before, tokens)]))
        for tokens in CHUNKS
        for before in CONTEXTS
    ]


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_unseen_calls_are_described(name: str) -> None:
    """Constants fitted to some calls describe others, far better than the guess that the fit begins with."""
    kernel, _ = KERNELS[name]
    singles, seen, unseen = singles_of(name), calls_of(name, 1, 20), calls_of(name, 50, 15)
    points: dict[int, dict[int, float]] = {}
    for call in singles:
        before, tokens = call.chunks[0]
        points.setdefault(tokens, {})[before] = call.time_us
    prefill, known = PrefillSurface(points), singles[::4] + seen
    measured = np.array([call.time_us for call in unseen])
    fitted, guessed = (
        abs(replayed_us(kernel, times, prefill, unseen) / measured - 1)
        for times in (fit_kernel(kernel, prefill, known), guess_times(kernel, singles + seen))
    )
    assert np.median(fitted) < 0.06
    assert np.quantile(fitted, 0.95) < 0.25
    assert np.median(fitted) < 0.5 * np.median(guessed)


def test_a_fit_is_kept_in_the_sidecar(tmp_path: Path) -> None:
    """Constants and remaining errors survive the file, and prices are made with them."""
    from simulator.cost_table import write_table

    path = write_small_table(tmp_path)
    fitted = fit_table(read_table(path))
    assert set(fitted.error) == {"decode_median", "decode_p95", "hybrid_median", "hybrid_p95"}
    write_table(path, small_rows(), replace(metadata(), attention_model=fitted))
    table = read_table(path)
    assert table.metadata.attention_model == fitted
    guessed = TableCosts(replace(table, metadata=metadata()))
    assert TableCosts(table).step_ns(16, 16 * 500, 900, [(0, 64)]) != guessed.step_ns(16, 16 * 500, 900, [(0, 64)])


def test_progress_of_a_fit_is_said_unless_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds count up to fewer than the most there can be; nothing is said with quiet."""
    monkeypatch.setattr("profiler.progress.LINE_EVERY_S", 0.0)
    table = read_table(write_small_table(tmp_path))
    assert fit_aloud(table, "import-costs", quiet=False) == fit_aloud(table, "import-costs", quiet=True)
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "import-costs: fitting the attention kernel's schedule"
    done = [int(line.split(" of ")[0]) for line in lines]
    assert done == sorted(set(done))
    assert 3 <= len(done) <= MOST_ROUNDS > done[-1]
