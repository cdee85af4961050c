"""Prices of steps: the linear form by hand, and a small table at, between and beyond its points."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cost_table import Cliff, read_table, write_table
from simulator.costs import LinearCosts
from simulator.errors import InputError
from simulator.named_tables import find_table
from simulator.table_costs import TableCosts
from tests.simulator.attention.tiles import FA2_TIMES
from tests.simulator.tables import (
    DECODE,
    LAYERS,
    LM_HEAD,
    MLP,
    PREFILL,
    linear_us,
    metadata,
    small_rows,
    small_table,
    write_small_table,
)

ROUNDING_NS = 2


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> TableCosts:
    return TableCosts(small_table(tmp_path_factory.mktemp("table")))


def us(microseconds: float) -> object:
    """Nanoseconds, but for the last few."""
    return pytest.approx(microseconds * 1000, abs=ROUNDING_NS)


class TestLinear:
    def test_parts(self) -> None:
        """fixed + per token of the step + per context token after the step."""
        costs = LinearCosts(fixed_ns=1000, per_token_ns=10, per_context_token_ns=1)
        assert costs.step_ns(2, 300, 200, [(0, 50), (100, 7)]) == 1000 + 10 * (2 + 50 + 7) + (300 + 50 + 107)

    def test_decodes_alone(self) -> None:
        """A step without chunks."""
        assert LinearCosts(fixed_ns=5, per_token_ns=2).step_ns(3, 999, 500, []) == 11

    def test_free_steps(self) -> None:
        """A step that costs nothing would let time stand still."""
        with pytest.raises(ValueError, match="a step must cost something"):
            LinearCosts(per_context_token_ns=1)


class TestAtMeasuredPoints:
    @pytest.mark.parametrize(("count", "context"), DECODE)
    def test_decodes(self, costs: TableCosts, count: int, context: int) -> None:
        """Decodes with the measured mean context cost what was measured, layer by layer."""
        expected = linear_us(count) + LM_HEAD[count] + LAYERS * DECODE[count, context]
        assert costs.step_ns(count, count * context, context, []) == us(expected)

    @pytest.mark.parametrize(("tokens", "context"), PREFILL)
    def test_prefill(self, costs: TableCosts, tokens: int, context: int) -> None:
        """A chunk with the measured context costs what was measured."""
        expected = linear_us(tokens) + LM_HEAD[1] + LAYERS * PREFILL[tokens, context]
        assert costs.step_ns(0, 0, 0, [(context, tokens)]) == us(expected)


class TestBetweenPoints:
    def test_cliff(self, costs: TableCosts) -> None:
        """Between n and n + 1 measured tokens the step up stays a step, and one token before it costs little."""
        steps = [costs.step_ns(0, 0, 0, [(0, tokens)]) for tokens in (127, 128, 129, 130)]
        assert steps[2] - steps[1] >= LAYERS * (MLP[129] - MLP[128]) * 1000
        assert steps[1] - steps[0] < 2_000
        assert steps[3] - steps[2] < 2_000

    @pytest.mark.parametrize(("tokens", "mlp"), [(24, 11), (48, 14), (96, 18)])
    def test_linear_part(self, costs: TableCosts, tokens: int, mlp: float) -> None:
        """Halfway between two measured numbers of tokens the matrix multiplications cost their mean."""
        at = costs.step_ns(tokens, tokens * 16, 16, [])
        attention = (4 + (tokens - 16) / 48 * 4) if tokens <= 64 else 8 + (tokens - 64) / 48 * 4
        head = 5 + (tokens - 16) / 48 * 4
        assert at == pytest.approx((LAYERS * (3 + mlp + attention) + 1 + head) * 1000, rel=0.02)

    @pytest.mark.parametrize("context", [100, 500, 900])
    def test_decode_context(self, costs: TableCosts, context: int) -> None:
        """A context between two measured ones costs between them, a longer one no less."""
        prices = [costs.step_ns(16, 16 * each, each, []) for each in (16, context, context + 50, 1024)]
        assert prices == sorted(prices)
        assert prices[0] < prices[1] < prices[3]

    def test_unlike_contexts(self, costs: TableCosts) -> None:
        """Contexts that differ cost no less than equal ones of the same sum."""
        assert costs.step_ns(16, 16 * 520, 4000, []) > costs.step_ns(16, 16 * 520, 520, [])

    def test_sum_of_contexts(self, costs: TableCosts) -> None:
        """One token more in the sum costs more."""
        assert costs.step_ns(16, 16 * 520, 520, []) > costs.step_ns(16, 16 * 519, 519, [])

    @pytest.mark.parametrize("count", [2, 8, 40])
    def test_decode_count(self, costs: TableCosts, count: int) -> None:
        """A number of decodes between two measured ones costs between them."""
        below, above = (1, 16) if count < 16 else (16, 64)
        low, at, high = (costs.step_ns(each, each * 1024, 1024, []) for each in (below, count, above))
        assert low <= at <= high

    @pytest.mark.parametrize("context", [0, 512, 1024])
    @pytest.mark.parametrize("tokens", [20, 100, 200])
    def test_chunk(self, costs: TableCosts, tokens: int, context: int) -> None:
        """A chunk between measured ones costs between them."""
        below, above = {20: (16, 64), 100: (64, 256), 200: (64, 256)}[tokens]
        low, at, high = (costs.step_ns(0, 0, 0, [(context, each)]) for each in (below, tokens, above))
        assert low < at < high
        if context == 512:
            assert costs.step_ns(0, 0, 0, [(0, tokens)]) < at < costs.step_ns(0, 0, 0, [(1024, tokens)])

    def test_monotone_in_tokens(self, costs: TableCosts) -> None:
        """Where the table grows the price grows: never less for a longer chunk."""
        prices = [costs.step_ns(0, 0, 0, [(256, tokens)]) for tokens in range(1, 700)]
        assert prices == sorted(prices)

    def test_monotone_in_decodes(self, costs: TableCosts) -> None:
        """Twice as many decodes cost more; one more may cost less, where the last wave was nearly full."""
        prices = [costs.step_ns(count, count * 300, 300, []) for count in range(1, 300)]
        assert all(prices[2 * place] > prices[place] for place in range(5, 145))

    @settings(max_examples=200, deadline=None)
    @given(
        count=st.integers(0, 200),
        context=st.integers(1, 5000),
        chunks=st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 600)), max_size=4),
    )
    def test_any_work_costs_time(
        self, costs: TableCosts, count: int, context: int, chunks: list[tuple[int, int]]
    ) -> None:
        """Whatever the step, its price is a positive integer, and none costs nothing."""
        price = costs.step_ns(count, count * context, context, chunks)
        assert isinstance(price, int)
        assert (price > 0) == bool(count or chunks)


class TestSeveralChunks:
    def test_one_step_beats_two(self, costs: TableCosts) -> None:
        """Two chunks in one step cost less than in two steps, and more than either alone."""
        both = costs.step_ns(0, 0, 0, [(0, 64), (1024, 64)])
        first, second = costs.step_ns(0, 0, 0, [(0, 64)]), costs.step_ns(0, 0, 0, [(1024, 64)])
        assert max(first, second) < both < first + second

    def test_order(self, costs: TableCosts) -> None:
        """The order of chunks matters little: a long one that starts last ends last."""
        one, other = costs.step_ns(4, 400, 100, [(0, 64), (300, 20)]), costs.step_ns(4, 400, 100, [(300, 20), (0, 64)])
        assert abs(one - other) < 0.1 * one

    @pytest.mark.parametrize("name", ["h200/llama-3.1-8b", "h200/llama-13b"])
    def test_riding_decodes(self, name: str) -> None:
        """With FlashAttention 3 decodes in the step of a chunk cost less than a step of their own."""
        costs = TableCosts(find_table(name))
        hybrid = costs.step_ns(64, 64 * 1024, 3000, [(0, 1000)])
        chunk, decodes = costs.step_ns(0, 0, 0, [(0, 1000)]), costs.step_ns(64, 64 * 1024, 3000, [])
        assert max(chunk, decodes) < hybrid < chunk + decodes

    def test_without_hybrid_rows(self, tmp_path: Path) -> None:
        """A table without hybrid calls and fitted constants prices them above either part."""
        costs = TableCosts(small_table(tmp_path, hybrid=False))
        hybrid = costs.step_ns(16, 16 * 1024, 1024, [(0, 64)])
        assert hybrid > max(costs.step_ns(0, 0, 0, [(0, 64)]), costs.step_ns(16, 16 * 1024, 1024, []))


class TestBeyondTheGrid:
    def test_tokens(self, costs: TableCosts) -> None:
        """More tokens than measured cost more, in the trend of the last measured ones."""
        inside = costs.step_ns(0, 0, 0, [(0, 256)]) - costs.step_ns(0, 0, 0, [(0, 192)])
        beyond = costs.step_ns(0, 0, 0, [(0, 2048)]) - costs.step_ns(0, 0, 0, [(0, 1984)])
        assert 0.5 * inside < beyond < 20 * inside

    def test_context(self, costs: TableCosts) -> None:
        """Longer contexts than measured cost as much more as the last measured ones, about."""
        prices = [costs.step_ns(16, 16 * context, context, []) for context in (1024, 2032, 3040)]
        assert prices[2] - prices[1] == pytest.approx(prices[1] - prices[0], rel=0.2)
        assert prices[1] - prices[0] == pytest.approx(LAYERS * 32_000, rel=0.3)

    def test_decodes(self, costs: TableCosts) -> None:
        """More decodes than measured cost more."""
        assert (
            costs.step_ns(64, 64 * 1024, 1024, [])
            < costs.step_ns(65, 65 * 1024, 1024, [])
            < costs.step_ns(640, 640 * 1024, 1024, [])
        )


def test_no_work_costs_nothing(costs: TableCosts) -> None:
    """A step without tokens takes no time."""
    assert costs.step_ns(0, 0, 0, []) == 0


def test_written_table_reads_back(tmp_path: Path) -> None:
    """Sidecar and rows survive the file."""
    table = small_table(tmp_path)
    assert table.metadata == metadata()
    assert table.rows["time_us"].tolist() == small_rows()["time_us"].tolist()
    assert len(table.sha256) == 64


def test_cliffs_read_back_a_line_each(tmp_path: Path) -> None:
    """Position, size, interval and rounds survive the sidecar; one without the key has none."""
    cliffs = (Cliff("mlp", 256, 0.14, 0.13, 0.15, 4), Cliff("lm_head", 128, -0.05, -0.06, -0.04, 3))
    path = tmp_path / "t.csv"
    write_table(path, small_rows(), replace(metadata(), cliffs=cliffs, power_w={"power_max": 700.0}))
    assert read_table(path).metadata == replace(metadata(), cliffs=cliffs, power_w={"power_max": 700.0})
    sidecar = path.with_suffix(".yaml").read_text()
    assert "- {operator: mlp, tokens: 256, growth: 0.14, low: 0.13, high: 0.15, rounds: 4}\n" in sidecar
    path.with_suffix(".yaml").write_text(sidecar[: sidecar.index("cliffs:")])
    assert read_table(path).metadata.cliffs == ()


class TestFaults:
    """A table that is wrong: one message with file, line and column."""

    def refused(self, path: Path) -> str:
        with pytest.raises(InputError) as caught:
            TableCosts(read_table(path))
        message = str(caught.value)
        assert message.startswith(str(path.parent))
        return message.removeprefix(f"{path.parent}/")

    def replaced(self, path: Path, old: str, new: str) -> Path:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
        return path

    def changed_sidecar(self, folder: Path, **changes: object) -> Path:
        path = write_small_table(folder)
        sidecar = path.with_suffix(".yaml")
        raw = yaml.safe_load(sidecar.read_text())
        for key, value in changes.items():
            place, *rest = key.split("__")
            if rest:
                raw[place][rest[0]] = value
            else:
                raw[place] = value
        sidecar.write_text(yaml.safe_dump(raw))
        return path

    def test_missing_sidecar(self, tmp_path: Path) -> None:
        """Without its YAML nobody knows what was measured."""
        path = write_small_table(tmp_path)
        path.with_suffix(".yaml").unlink()
        assert self.refused(path).startswith("small.yaml: the sidecar of the cost table is missing")

    def test_unreadable_sidecar(self, tmp_path: Path) -> None:
        """A sidecar that is no YAML, or no mapping."""
        path = write_small_table(tmp_path)
        path.with_suffix(".yaml").write_text("a: [")
        assert self.refused(path).startswith("small.yaml: not readable")
        path.with_suffix(".yaml").write_text("- a")
        assert self.refused(path) == "small.yaml: should be a mapping"

    def test_schema(self, tmp_path: Path) -> None:
        """A table of another schema version is not guessed at."""
        path = self.changed_sidecar(tmp_path, schema=99)
        assert self.refused(path) == "small.yaml, schema: this version reads cost tables of schema 1"

    def test_unknown_sidecar_key(self, tmp_path: Path) -> None:
        """A misspelt key of the sidecar is named, with its place."""
        path = self.changed_sidecar(tmp_path, gpu__sm_cuont=3)
        message = self.refused(path)
        assert message.startswith('small.yaml, gpu.sm_cuont: unknown key; did you mean "sm_count"?')

    def test_wrong_sidecar_value(self, tmp_path: Path) -> None:
        """A value of the wrong type is named."""
        path = self.changed_sidecar(tmp_path, page_size="large")
        assert self.refused(path).startswith("small.yaml, page_size: ")

    def test_wrong_cliff(self, tmp_path: Path) -> None:
        """The entry and its key are named."""
        entry = {"operator": "mlp", "tokens": 0, "growth": 0.1, "low": 0.0, "high": 0.2}
        assert self.refused(self.changed_sidecar(tmp_path, cliffs=[entry])).startswith("small.yaml, cliffs[0].tokens: ")
        unknown = {**entry, "tokens": 1, "operator": "mlq"}
        message = self.refused(self.changed_sidecar(tmp_path, cliffs=[unknown]))
        assert message.startswith('small.yaml, cliffs[0].operator: unknown operator "mlq"; did you mean "mlp"?')
        assert self.refused(self.changed_sidecar(tmp_path, cliffs=3)) == (
            "small.yaml, cliffs: should be a list of mappings"
        )

    def test_mixture_of_experts(self, tmp_path: Path) -> None:
        """A table of a mixture-of-experts model is refused in words."""
        path = self.changed_sidecar(tmp_path, model__num_local_experts=8)
        assert self.refused(path).startswith("small.yaml, num_local_experts: a mixture-of-experts model")

    def test_quantized(self, tmp_path: Path) -> None:
        """A table of a quantized model is refused in words."""
        path = self.changed_sidecar(tmp_path, model__quantization="fp8")
        assert self.refused(path).startswith("small.yaml, quantization: a quantized model")

    def test_missing_column(self, tmp_path: Path) -> None:
        """A misspelt column is named, with what was probably meant."""
        path = self.replaced(write_small_table(tmp_path), "time_us", "tine_us")
        assert self.refused(path).startswith('small.csv, time_us: column missing; did you mean "tine_us"?')

    def test_unknown_operator(self, tmp_path: Path) -> None:
        """An operator that no step runs is named with its line."""
        path = self.replaced(write_small_table(tmp_path), "\nqkv_proj", "\nqkv_prog")
        message = 'small.csv, line 2, operator: unknown operator "qkv_prog"; did you mean "qkv_proj"?'
        assert self.refused(path).startswith(message)

    @pytest.mark.parametrize("time", ["-1.0", "0", "nan", "inf", "fast", ""])
    def test_impossible_time(self, tmp_path: Path, time: str) -> None:
        """A time that is not above zero and finite is no measurement."""
        path = write_small_table(tmp_path)
        lines = path.read_text().splitlines()
        place = lines[0].split(",").index("time_us")
        fields = lines[4].split(",")
        fields[place] = time
        path.write_text("\n".join([*lines[:4], ",".join(fields), *lines[5:]]) + "\n")
        assert self.refused(path).startswith("small.csv, line 5, time_us: not a measurement: ")

    def test_negative_place(self, tmp_path: Path) -> None:
        """So is a negative number of tokens."""
        path = self.replaced(write_small_table(tmp_path), "qkv_proj,1,", "qkv_proj,-1,")
        assert self.refused(path).startswith("small.csv, line 2, tokens: not a measurement: ")

    def test_no_rows(self, tmp_path: Path) -> None:
        """A header alone is no table."""
        path = write_small_table(tmp_path)
        path.write_text(path.read_text().splitlines()[0] + "\n")
        assert self.refused(path) == "small.csv: no rows"

    def test_empty_file(self, tmp_path: Path) -> None:
        """Nor is an empty file."""
        path = write_small_table(tmp_path)
        path.write_text("")
        assert self.refused(path) == "small.csv: the file is empty"

    def test_a_column_twice(self, tmp_path: Path) -> None:
        """Which of the two is meant nobody can know."""
        path = write_small_table(tmp_path)
        path.write_text("".join(f"{line},{line.split(',')[1]}\n" for line in path.read_text().splitlines()))
        assert self.refused(path) == "small.csv, tokens: the column is there twice; remove one"

    @pytest.mark.parametrize("field", ["1_0", "\uff11\uff12", "1e19", "-1", "0x10", "nan", ""])
    def test_places_are_plain_numbers(self, tmp_path: Path, field: str) -> None:
        """As in traces: no underscores, no digits of other scripts, nothing that no table could mean."""
        path = self.replaced(write_small_table(tmp_path), "qkv_proj,1,", f"qkv_proj,{field},")
        assert self.refused(path) == f"small.csv, line 2, tokens: not a measurement: {field!r}"

    def test_marks_and_blank_lines_do_no_harm(self, tmp_path: Path) -> None:
        """A byte-order mark, blank lines and a clock that was not seen; lines are counted as in the file."""
        path = write_small_table(tmp_path)
        rows = read_table(path).frame()
        path.write_text("\ufeff" + path.read_text().replace("\n", "\n\n").replace("1980", "n/a"))
        assert read_table(path).frame().drop(columns="sm_mhz").equals(rows.drop(columns="sm_mhz"))
        self.replaced(path, "o_proj,1,", "o_proj,x,")
        assert self.refused(path) == "small.csv, line 17, tokens: not a measurement: 'x'"

    @pytest.mark.parametrize("operator", ["mlp", "embedding", "lm_head"])
    def test_missing_operator(self, tmp_path: Path, operator: str) -> None:
        """A table without one of the operators cannot price a step."""
        path = write_small_table(tmp_path)
        lines = [line for line in path.read_text().splitlines() if not line.startswith(operator)]
        path.write_text("\n".join(lines) + "\n")
        assert operator in self.refused(path)

    def test_unknown_name(self) -> None:
        """A name that no bundled table has lists those there are, and says that a path works."""
        with pytest.raises(InputError, match=r'costs: no cost table "h300/none"; .*or the path of a CSV'):
            find_table("h300/none")

    def test_path_without_suffix_or_of_the_sidecar(self, tmp_path: Path) -> None:
        """The path of the sidecar means its table."""
        path = write_small_table(tmp_path)
        assert find_table(str(path.with_suffix(".yaml"))).sha256 == find_table(str(path)).sha256

    def test_sidecar_without_table(self, tmp_path: Path) -> None:
        """A sidecar alone is not enough."""
        path = write_small_table(tmp_path)
        path.unlink()
        with pytest.raises(InputError, match=r"small\.csv: no such file"):
            find_table(str(path.with_suffix(".yaml")))


def with_layers(folder: Path, longer: dict[int, float]) -> TableCosts:
    """The small table with whole layers that take `longer` times the sum of their parts, by tokens of the prompt."""
    costs = TableCosts(small_table(folder))
    rows = []
    for tokens, factor in longer.items():
        step_ns = costs.step_ns(0, 0, 0, [(0, tokens)])
        us_a_layer = (factor * step_ns - costs.once_ns(tokens, 1)) / LAYERS / 1e3
        rows.append({"operator": "whole_layer", "tokens": tokens, "time_us": us_a_layer})
    frame = pd.concat([small_rows(), pd.DataFrame(rows).assign(p10_us=1.0, p90_us=1.0, repeats=5, sm_mhz=1500)])
    write_table(folder / "slowed.csv", frame, metadata())
    return TableCosts(read_table(folder / "slowed.csv"))


class TestLongSteps:
    def test_at_what_was_measured(self, tmp_path: Path) -> None:
        """A prompt as long as a step of whole layers takes what these took."""
        plain, slowed = TableCosts(small_table(tmp_path)), with_layers(tmp_path, {128: 1.05, 256: 1.2})
        for tokens, factor in ((128, 1.05), (256, 1.2)):
            assert slowed.step_ns(0, 0, 0, [(0, tokens)]) == pytest.approx(
                factor * plain.step_ns(0, 0, 0, [(0, tokens)]), rel=1e-5
            )

    def test_short_steps_are_not_slowed(self, tmp_path: Path) -> None:
        """Below half of the first measured time."""
        plain, slowed = TableCosts(small_table(tmp_path)), with_layers(tmp_path, {256: 1.2})
        assert slowed.step_ns(0, 0, 0, [(0, 16)]) == plain.step_ns(0, 0, 0, [(0, 16)])
        assert slowed.step_ns(16, 16 * 100, 100, []) == plain.step_ns(16, 16 * 100, 100, [])

    def test_longer_steps_are_slowed_as_the_longest(self, tmp_path: Path) -> None:
        """Beyond what was measured the last factor holds, whatever the step is made of."""
        plain, slowed = TableCosts(small_table(tmp_path)), with_layers(tmp_path, {128: 1.05, 256: 1.2})
        work = (16, 16 * 900, 900, [(1024, 256), (512, 256)])
        assert slowed.step_ns(*work) == pytest.approx(1.2 * plain.step_ns(*work), rel=1e-5)


class TestInterval:
    def test_noise_and_errors(self, tmp_path: Path) -> None:
        """Looked-up operators by the repeats' difference, attention by the fit's error, added in quadrature."""
        table = small_table(tmp_path)
        fitted = replace(FA2_TIMES, error={"decode_p95": 0.1, "hybrid_p95": 0.2, "prefill_p95": 0.3})
        made = replace(table.metadata, noise={"repeat_max_percent": 2.0}, attention_model=fitted)
        costs = TableCosts(replace(table, metadata=made))
        interval = costs.interval_ns(16, 16 * 1024, 1024, [])
        assert interval is not None
        attention, rest = LAYERS * DECODE[16, 1024], linear_us(16) + LM_HEAD[16]
        assert (interval[1] - interval[0]) / 2 == us(((0.1 * attention) ** 2 + (0.02 * rest) ** 2) ** 0.5)
        assert sum(interval) / 2 == us(attention + rest)

    def test_without_figures_there_is_none(self, costs: TableCosts) -> None:
        """A table that was not fitted says nothing of its error."""
        assert costs.interval_ns(16, 16 * 1024, 1024, []) is None


@pytest.mark.parametrize(
    ("operator", "column", "place"),
    [
        ("mlp", "tokens", {"tokens": 0}),
        ("whole_layer", "tokens", {"tokens": 0}),
        ("lm_head", "sequences", {"sequences": 0}),
        ("attention", "prefills", {}),
        ("attention", "prefill_tokens", {"prefills": 1}),
        ("attention", "decode_context", {"decodes": 4}),
    ],
)
def test_a_row_that_measured_nothing_is_refused(
    tmp_path: Path, operator: str, column: str, place: dict[str, int]
) -> None:
    """With its line and column: a time without work would bend every price."""
    row = pd.DataFrame([{"operator": operator, **place, "time_us": 5.0, "p10_us": 5.0, "p90_us": 5.0, "repeats": 5}])
    write_table(tmp_path / "odd.csv", pd.concat([small_rows(), row]), metadata())
    with pytest.raises(InputError, match=rf"line {len(small_rows()) + 2}, {column}: should be above 0"):
        read_table(tmp_path / "odd.csv")


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"noise": {"repeat_max_percent": float("nan")}}, "noise.repeat_max_percent"),
        ({"attention_model": replace(FA2_TIMES, error={"decode_p95": -1.0})}, "attention_model.error.decode_p95"),
        ({"attention_model": replace(FA2_TIMES, fixed_us=float("inf"))}, "attention_model.fixed_us"),
    ],
)
def test_figures_of_a_sidecar_are_finite(tmp_path: Path, changed: dict[str, object], key: str) -> None:
    """No price comes out of others."""
    write_table(tmp_path / "odd.csv", small_rows(), replace(metadata(), **changed))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=key):
        read_table(tmp_path / "odd.csv")
