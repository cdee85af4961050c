"""Sweeps over loads: who keeps a limit, where two sides cross, and what the page says of it."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from simulator.errors import InputError
from simulator.reproduce.loads import figure1
from simulator.reproduce.loads.page import page
from simulator.reproduce.loads.plots import draw_loads, measures
from simulator.reproduce.loads.sweep import Slo, Sweep, crossovers, first_ahead, offered_per_s, read_sweep, run_at
from tests.house.paths import ROOT

FOLDER = ROOT / "results/disaggregation"
LINEAR = {"linear": {"fixed_ns": 100_000_000}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three requests a second apart, each of three tokens, at 0.1 s a step; one system shared, one of two pools."""
    (tmp_path / "tiny.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,5,3\n1,5,3\n2,5,3\n")
    pools = {"prefill": {"policy": "orca"}, "decode": {"policy": "orca"}, "network": {"gb_per_s": 1}}
    policies = [{"policy": "orca", "label": "shared"}, {"disaggregated": pools, "label": "pools"}]
    keys = {"trace": "tiny.csv", "costs": LINEAR, "policies": policies}
    (tmp_path / "systems.yaml").write_text(yaml.safe_dump(keys))
    sweep = {"experiment": "systems.yaml", "speedups": [1], "shared": ["shared"], "pools": ["pools"], "slos": []}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    return tmp_path


def test_a_limit_is_kept_or_not(folder: Path) -> None:
    """Alone each request has its first token after 0.1 s, and one every 0.1 s."""
    result = run_at(folder / "systems.yaml", 1, "shared")
    assert Slo("a", "", ttft_s=0.1, tpot_s=0.1, gap_s=0.1001).kept(result) == 3
    assert Slo("b", "", ttft_s=0.099).kept(result) == 0
    assert Slo("c", "", gap_s=0.09).kept(result) == 0


def test_the_load_is_what_arrives(folder: Path) -> None:
    """Two gaps of a second, at twice the speed."""
    assert offered_per_s(run_at(folder / "systems.yaml", 2, "pools")) == pytest.approx(2)


def test_an_unknown_system_is_named(folder: Path) -> None:
    """With the nearest label."""
    text = (folder / "sweep.yaml").read_text().replace("- pools", "- pool")
    (folder / "sweep.yaml").write_text(text)
    with pytest.raises(InputError, match='no system "pool"; did you mean "pools"'):
        read_sweep(folder / "sweep.yaml")


SWEEP = Sweep("", (1.0, 2.0, 3.0), ("one", "other"), ("pools",), ())


def table(shared: list[float], other: list[float], pools: list[float]) -> list[dict[str, object]]:
    columns = {"one": shared, "other": other, "pools": pools}
    return [
        {"label": label, "offered_per_s_per_gpu": float(load), "x": values[load]}
        for label, values in columns.items()
        for load in range(3)
    ]


def test_they_cross_where_the_better_of_each_side_is_equal() -> None:
    """3, 3, 3 against 1, 2, 5: level a third of the way from 2 to 5, at load 1 + 1/3."""
    [found] = crossovers(table([3, 1, 3], [1, 3, 1], [1, 2, 5]), SWEEP, "x", higher=True)
    assert found.at == pytest.approx(1 + 1 / 3)
    assert (found.before, found.after) == ("shared GPUs", "pools")


def test_less_can_be_better() -> None:
    """The same figures as latencies change hands the other way."""
    [found] = crossovers(table([3, 3, 3], [4, 4, 4], [1, 2, 5]), SWEEP, "x", higher=False)
    assert (found.before, found.after) == ("pools", "shared GPUs")


def test_nearly_equal_is_no_lead() -> None:
    """Within half a per cent nobody leads, so nobody overtakes."""
    assert crossovers(table([3, 3, 3], [1, 1, 1], [3.001, 2, 1]), SWEEP, "x", higher=True) == []


def test_who_is_ahead_first_is_told_where_the_sides_differ() -> None:
    """Level at the lowest load, pools better at the next; where nothing ever differs nobody is."""
    assert first_ahead(table([3, 3, 9], [1, 1, 1], [3, 5, 1]), SWEEP, "x", higher=True) == ("pools", 1.0)
    assert first_ahead(table([3, 3, 9], [4, 4, 9], [3, 5, 1]), SWEEP, "x", higher=False) == ("shared GPUs", 1.0)
    assert first_ahead(table([3, 3, 3], [1, 1, 1], [3, 3, 3]), SWEEP, "x", higher=True) is None


def test_requests_of_figure_1_are_the_committed_ones(tmp_path: Path) -> None:
    """Poisson arrivals at one a second, the same bytes every time."""
    figure1.write_requests(tmp_path / "requests.csv")
    assert (tmp_path / "requests.csv").read_bytes() == (FOLDER / "requests.csv").read_bytes()
    arrivals = np.loadtxt(tmp_path / "requests.csv", delimiter=",", skiprows=1)[:, 0]
    assert np.diff(arrivals).mean() == pytest.approx(1, rel=0.05)


def test_the_committed_page_is_of_the_committed_figures() -> None:
    """README.md is what the page makes of loads.csv and figure-1.csv."""
    sweep = read_sweep(FOLDER / "sweep.yaml")
    rows, rates = (rows_of(FOLDER / name) for name in ("loads.csv", "figure-1.csv"))
    found = {column: crossovers(rows, sweep, column, higher=up) for column, (_, up) in measures(sweep).items()}
    assert page(rows, rates, sweep, found, FOLDER) == (FOLDER / "README.md").read_text(encoding="utf-8")


def rows_of(path: Path) -> list[dict[str, object]]:
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    return [
        {name: number(text) for name, text in zip(header.split(","), line.split(","), strict=True)} for line in lines
    ]


def number(text: str) -> object:
    try:
        return float(text) if text else float("nan")
    except ValueError:
        return text


def test_every_panel_has_numbers_and_the_key_fills_the_empty_field() -> None:
    """Five panels in six fields; the subtitle says how many GPUs and what P and D are."""
    sweep, rows = read_sweep(FOLDER / "sweep.yaml"), rows_of(FOLDER / "loads.csv")
    figure = draw_loads(rows, sweep, {})
    figure.draw_without_rendering()
    *panels, empty = figure.axes
    assert all(any(label.get_text() for label in axes.get_xticklabels()) for axes in panels)
    assert all(axes.xaxis.get_tick_params()["labelbottom"] for axes in panels)
    legend = empty.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [*sweep.shared, *sweep.pools]
    assert figure.legends == []
    assert any(text.get_text().startswith("4 GPUs each; xP + yD: prefill and decode GPUs;") for text in figure.texts)
