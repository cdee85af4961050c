"""The power limit: how hot a GPU gets and what that costs, against the formula worked out in other ways."""

from dataclasses import replace
from math import exp, sqrt
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.integrate import quad

from simulator.cost_table import read_table
from simulator.errors import InputError
from simulator.experiment_keys import resolve_experiment
from simulator.power_limit import MEASURED_REST, Heat, PowerLimit, _mean_fourth_powers
from simulator.table_costs import TableCosts
from tests.simulator.conftest import Simulate, write_yaml
from tests.simulator.tables import small_table, write_small_table

LIMIT = PowerLimit(slowdown=0.2, time_constant_s=0.04, decode_intensity=0.5)
TAU_NS = 40_000_000
TOKEN_NS = [0.0, 1000.0, 1000.0, 1000.0, 2000.0]
"""Three tokens a microsecond at best, two at 4 tokens: on a stair that is no cooler."""
FULL = 3
"""Tokens of a step at the best rate."""
heats = st.floats(0, 1)
lengths = st.floats(0.001, 20)


def factor(heat: Heat, start_ns: int, time_ns: float, decoded_until_ns: int = 0, tokens: int = FULL) -> float:
    """How many times as long as its price a step takes."""
    return heat.step_ns(start_ns, decoded_until_ns, tokens, time_ns) / time_ns


@given(start=heats, draw=heats, length=lengths)
def test_the_mean_of_the_fourth_power(start: float, draw: float, length: float) -> None:
    """The closed form is the integral over the step."""

    def at(time: float) -> float:
        return (draw + (start - draw) * exp(-time)) ** 4

    area, _ = quad(at, 0, length, limit=200)
    mean, other = _mean_fourth_powers(start, draw, draw, length, exp(-length))
    assert mean == pytest.approx(area / length, abs=1e-9, rel=1e-6)
    assert other == pytest.approx(draw**4)


def test_steps_in_a_row_reach_full_heat() -> None:
    """After many time constants at the best rate the heat is 1: slowdown 0.2 over what the table's rests leave."""
    heat, now = Heat(LIMIT, TOKEN_NS), 0
    for _ in range(200):
        taken = heat.step_ns(now, now, FULL, 10e6)
        now += int(taken)
    kept, rest = exp(-0.25), exp(-0.25 * MEASURED_REST)
    rested = (1 - kept) * rest / (1 - kept * rest)
    baseline = 1 + 0.2 * _mean_fourth_powers(rested, rested, 1.0, 0.25, kept)[0]
    assert taken / 10e6 == pytest.approx(1.2 / baseline, rel=1e-6)
    assert 1.05 < taken / 10e6 < 1.2


@given(time_ns=st.floats(1e5, 4e8), tokens=st.integers(1, 8))
def test_steps_with_the_rests_they_were_measured_with_take_their_price(time_ns: float, tokens: int) -> None:
    """However long they are: after some, each takes 1.00 times its price."""
    heat, now = Heat(LIMIT, TOKEN_NS), 0
    for _ in range(20 + int(8 * TAU_NS / time_ns)):
        now += int(MEASURED_REST * time_ns)
        last = factor(heat, now, time_ns, tokens=tokens)
        now += int(time_ns * last)
    assert last == pytest.approx(1, abs=0.002)


@given(rest_ns=st.integers(0, 10**9), longer_ns=st.integers(0, 10**9), time_ns=st.floats(1e6, 1e8))
def test_a_longer_rest_never_makes_a_step_longer(rest_ns: int, longer_ns: int, time_ns: float) -> None:
    """The heat only falls while the GPU idles."""
    taken = []
    for rest in (rest_ns, rest_ns + longer_ns):
        heat = Heat(LIMIT, TOKEN_NS)
        now = int(heat.step_ns(0, 0, FULL, 1e8))
        taken.append(heat.step_ns(now + rest, now, FULL, time_ns))
    assert taken[0] >= taken[1]


def test_idling_cools() -> None:
    """After ten time constants a step is as after none, shorter than its price; right away it is longer."""
    cold = factor(Heat(LIMIT, TOKEN_NS), 0, 10e6)
    heat = Heat(LIMIT, TOKEN_NS)
    now = int(heat.step_ns(0, 0, FULL, 200e6))
    assert cold < 1
    hot = factor(heat, now, 10e6)
    now += int(10e6 * hot) + 10 * TAU_NS
    assert hot > 1.05
    assert factor(heat, now, 10e6) == pytest.approx(cold, rel=1e-4)


def test_decodes_between_keep_the_gpu_warm() -> None:
    """Decodes in place of a rest leave it hotter than the rest, and cooler than no pause."""
    results = []
    for pause_ns, decoding in ((0, False), (TAU_NS, True), (TAU_NS, False)):
        heat = Heat(LIMIT, TOKEN_NS)
        now = int(heat.step_ns(0, 0, FULL, 200e6))
        if decoding:
            heat.during_decodes(1, 1, 1)
        results.append(factor(heat, now + pause_ns, 10e6, now + pause_ns if decoding else now))
    assert results[0] > results[1] > results[2]


def test_a_gap_after_a_prompt_is_idle_although_there_were_decodes_before() -> None:
    """What decodes draw counts from one other step to the next."""
    results = []
    for decoded in (False, True):
        heat = Heat(LIMIT, TOKEN_NS)
        if decoded:
            heat.during_decodes(3, 1, 1)
        now = int(heat.step_ns(0, 0, FULL, 200e6))
        results.append(factor(heat, now + TAU_NS, 10e6, now + TAU_NS))
    assert results[0] == results[1]


@given(share=st.floats(0, 1), more=st.floats(0, 1))
def test_decodes_take_the_longer_the_less_the_gpu_rests(share: float, more: float) -> None:
    """At the rest they were measured with, 2 of 3 parts of the time, exactly their price."""
    heat = Heat(LIMIT, TOKEN_NS)
    low, high = (heat.factor_of_decodes(2, part)[0] for part in sorted((share, more)))
    assert low <= high
    assert heat.factor_of_decodes(2, 1 / (1 + MEASURED_REST))[0] == pytest.approx(1)


def test_decodes_draw_between_memory_and_full_rate() -> None:
    """One decode at a third of the best rate: half for memory, a third of the other half for computing."""
    factor, heat = Heat(LIMIT, TOKEN_NS).factor_of_decodes(1, 1.0)
    draw = 0.5 + 0.5 / 3
    slowdown = 0.2 * sqrt(1 / 3)
    assert heat == pytest.approx(draw)
    assert factor == pytest.approx((1 + slowdown * draw**4) / (1 + slowdown * (draw / 1.5) ** 4))


@given(limit=st.builds(PowerLimit, st.floats(0, 1), st.floats(0.001, 1), st.floats(0, 1)), time_ns=st.floats(1e4, 1e9))
def test_without_slowdown_nothing_changes(limit: PowerLimit, time_ns: float) -> None:
    """And with it a step never takes more than 1 + slowdown times its price."""
    heat = Heat(limit, TOKEN_NS)
    for now in (0, int(3e9), int(3e9) + 1000):
        slow = factor(heat, now, time_ns, now)
        assert 1 / (1 + limit.slowdown) - 1e-9 <= slow <= 1 + limit.slowdown + 1e-9
    assume(limit.slowdown > 0)
    assert factor(Heat(replace(limit, slowdown=0), TOKEN_NS), 0, time_ns) == 1


class TestTables:
    """`power_limit` in a table's sidecar."""

    def test_a_table_without_one_has_no_heat(self, tmp_path: Path) -> None:
        """Nothing depends on what ran before."""
        assert TableCosts(small_table(tmp_path)).heat() is None

    def test_prices_of_single_steps_leave_it_out(self, tmp_path: Path) -> None:
        """They are those of the table's rests, with a limit or without."""
        table = small_table(tmp_path)
        hot = replace(table, metadata=replace(table.metadata, power_limit=LIMIT))
        for batch in ((3, 300, 110, []), (0, 0, 0, [(0, 64)]), (3, 300, 110, [(16, 40)])):
            assert TableCosts(hot).step_ns(*batch) == TableCosts(table).step_ns(*batch)

    def test_a_run_knows_it(self, simulate: Simulate, here: Path) -> None:
        """Prompts that follow each other without a rest take longer than the table says."""
        (here / "row.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + "0,256,1\n" * 300)
        ends = []
        for limit in (None, {"slowdown": 0.5, "time_constant_s": 0.001, "decode_intensity": 0.5}):
            table = write_small_table(here, "hot.csv")
            sidecar = table.with_suffix(".yaml")
            raw = yaml.safe_load(sidecar.read_text())
            sidecar.write_text(yaml.safe_dump({**raw, "power_limit": limit}))
            policy = {"policy": "orca", "max_prefills_per_batch": 1}
            write_yaml(here / "row.yaml", trace="row.csv", costs="hot.csv", policies=[policy])
            assert simulate("row.yaml", "--out", "out", "--force").code == 0
            ends.append(float((here / "out/orca/iterations.csv").read_text().splitlines()[-1].split(",")[2]))
        assert 1.2 < ends[1] / ends[0] < 1.5

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"slowdown": -0.1}, "power_limit.slowdown: should be greater than or equal to 0"),
            ({"time_constant_s": 0}, "power_limit.time_constant_s: should be greater than 0"),
            ({"decode_intensity": 1.5}, "power_limit.decode_intensity: should be less than or equal to 1"),
            ({"decode_intensity": None}, "power_limit.decode_intensity: missing"),
            ({"slow_down": 0.1}, 'power_limit.slow_down: unknown key; did you mean "slowdown"?'),
            ({"slowdown": "much"}, "power_limit.slowdown: should be a valid number"),
        ],
        ids=["negative", "zero", "above 1", "missing", "unknown", "a word"],
    )
    def test_mistakes_are_named(self, tmp_path: Path, change: dict[str, object], message: str) -> None:
        """With the sidecar's path and the key."""
        table = write_small_table(tmp_path)
        sidecar = table.with_suffix(".yaml")
        limit = {"slowdown": 0.2, "time_constant_s": 0.04, "decode_intensity": 0.5} | change
        limit = {key: value for key, value in limit.items() if value is not None}
        sidecar.write_text(yaml.safe_dump({**yaml.safe_load(sidecar.read_text()), "power_limit": limit}))
        with pytest.raises(InputError) as caught:
            read_table(table)
        assert str(caught.value).startswith(f"{sidecar}, {message}")

    def test_the_default_table_has_one(self) -> None:
        """That of the H200."""
        costs = resolve_experiment({}).make_costs()
        assert isinstance(costs, TableCosts)
        assert costs.heat() is not None
