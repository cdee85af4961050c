"""`import-costs aiconfigurator`, on a package folder of the same layout with times whose sums are known."""

import sys

import pytest

from profiler.imports.compare import compare, report
from profiler.imports.silicon import Silicon, _version_key
from simulator.named_tables import find_table
from simulator.table_costs import TableCosts
from simulator.table_rows import TOKEN_OPERATORS
from tests.profiler.imports.sources import TOKENS, gemm_ms, write_package


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A small package on the path, before any real one."""
    monkeypatch.syspath_prepend(write_package(tmp_path))
    return tmp_path / "aiconfigurator_core/systems/data"


def rows_of(table, operator, **place):
    """The rows of an operator at a place."""
    frame = table.frame()
    frame = frame[frame["operator"] == operator]
    for column, value in place.items():
        frame = frame[frame[column] == value]
    return frame


@pytest.mark.usefixtures("package")
def test_products_that_were_measured_are_taken_as_they_are(imported):
    """The output projection, 4096 x 4096, in bf16 and not in fp8, at the measured token counts only."""
    rows = rows_of(imported("aiconfigurator", "--gpu", "h200"), "o_proj")
    assert tuple(rows["tokens"]) == TOKENS
    assert rows["time_us"].tolist() == pytest.approx([1000 * gemm_ms(m, 4096, 4096) for m in TOKENS])
    assert (rows["repeats"] == 1).all()


@pytest.mark.usefixtures("package")
def test_sizes_between_the_measured_are_interpolated_and_named(imported):
    """QKV's 6144 features lie between 4096 and 8192."""
    table = imported("aiconfigurator", "--gpu", "h200")
    assert rows_of(table, "qkv_proj", tokens=128)["time_us"].item() == pytest.approx(1000 * gemm_ms(128, 6144, 4096))
    assert any("n 6144, k 4096 was not measured" in note for note in table.metadata.notes)


@pytest.mark.usefixtures("package")
def test_the_mlp_is_both_products_and_a_modelled_activation(imported):
    """16384 x 4096 up (gated), 4096 x 8192 down, and some microseconds."""
    time = rows_of(imported("aiconfigurator", "--gpu", "h200"), "mlp", tokens=256)["time_us"].item()
    products = 1000 * (gemm_ms(256, 16384, 4096) + gemm_ms(256, 4096, 8192))
    assert products < time < products + 10


@pytest.mark.usefixtures("package")
def test_a_measured_cliff_stays_a_cliff(imported):
    """129 tokens cost twice as much as 128."""
    table = imported("aiconfigurator", "--gpu", "h200")
    before, after = (rows_of(table, "o_proj", tokens=tokens)["time_us"].item() for tokens in (128, 129))
    assert after / before == pytest.approx(2)


@pytest.mark.usefixtures("package")
def test_attention_of_the_models_heads_is_taken_where_it_was_measured(imported):
    """A decode's own token counts: a step after 63 cached ones attends to 64."""
    table = imported("aiconfigurator", "--gpu", "h200")
    prefill = rows_of(table, "attention", prefills=2, prefill_tokens=256, prefill_context=0, decodes=0)
    assert (prefill["time_us"].item(), prefill["repeats"].item()) == (pytest.approx(512), 1)
    decode = rows_of(table, "attention", prefills=0, decodes=16, decode_context=1024)
    assert (decode["time_us"].item(), decode["repeats"].item()) == (pytest.approx(16 * 1024 / 100), 1)


@pytest.mark.usefixtures("package")
def test_attention_that_was_not_measured_is_the_model_scaled_to_what_was(imported):
    """Twice the measured times make twice the times after context; such rows have no repeats."""
    table = imported("aiconfigurator", "--gpu", "h200")
    for place in (
        {"prefill_context": 1024, "decodes": 0},
        {"prefill_context": 0, "decodes": 16, "decode_context": 512},
    ):
        row = rows_of(table, "attention", prefills=1, prefill_tokens=256, **place)
        assert row["repeats"].item() == 0
        assert row["time_us"].item() >= 256  # that of the chunk alone, as measured


@pytest.mark.usefixtures("package")
def test_every_measured_chunk_is_there_after_context_too(imported):
    """Also sizes that are not in the grid: from one context alone the price after others would be a guess."""
    table = imported("aiconfigurator", "--gpu", "h200")
    chunks = rows_of(table, "attention", prefills=1, decodes=0)
    assert set(chunks.groupby("prefill_tokens")["prefill_context"].nunique()) == {9}


@pytest.mark.usefixtures("package")
def test_the_sidecar_says_which_rows_nobody_measured(imported):
    """Imported, from which versions, and that elementwise work is a model's."""
    table = imported("aiconfigurator", "--gpu", "h200")
    metadata = table.metadata
    assert (metadata.source, metadata.attention.backend, metadata.attention.version) == (
        "imported",
        "fa3",
        "vllm 0.24.0",
    )
    assert any("rows with 0 repeats" in note for note in metadata.notes)
    frame = table.frame()
    modelled = set(frame[frame["repeats"] == 0]["operator"])
    assert {"elementwise", "embedding"} <= modelled
    assert not {"qkv_proj", "o_proj", "mlp"} & modelled


@pytest.mark.usefixtures("package")
def test_the_simulator_prices_steps_from_it(imported):
    """Every kind of step."""
    costs = TableCosts(imported("aiconfigurator", "--gpu", "h200"))
    assert 0 < costs.step_ns(16, 16 * 500, 500, []) < costs.step_ns(16, 16 * 500, 500, [(256, 100)])


@pytest.mark.usefixtures("package")
def test_missing_kv_heads_are_scaled_from_the_nearest(imported):
    """With tp 4 the shard has 8 heads and 2 KV heads, measured; with tp 8 4 heads, not: the model's."""
    four = imported("aiconfigurator", "--gpu", "h200", "--tp", "4")
    assert rows_of(four, "attention", decodes=16, decode_context=64, prefills=0)["repeats"].item() == 1
    eight = imported("aiconfigurator", "--gpu", "h200", "--tp", "8", "--force")
    assert any("with 4 heads was not measured" in note for note in eight.metadata.notes)


@pytest.mark.usefixtures("package")
def test_a_gpu_without_measurements_is_refused(refused):
    """An A40 has none; a B200 has none in this package."""
    assert "no measurements of a40" in refused("aiconfigurator", "--gpu", "a40")
    assert "no gemm_perf of b200_sxm" in refused("aiconfigurator", "--gpu", "b200")


@pytest.mark.usefixtures("package")
def test_an_engine_without_measurements_is_refused_with_those_that_have(refused):
    """Only vllm is there."""
    said = refused("aiconfigurator", "--gpu", "h200", "--engine", "sglang")
    assert "--engine: aiconfigurator-core has no gemm_perf of h200_sxm under sglang; engines with it: vllm" in said


def test_a_table_of_another_layout_is_named(package, refused):
    """The file, the column, the nearest there is."""
    import duckdb

    path = package / "h200_sxm/gemm/vllm/0.24.0/gemm_perf.parquet"
    duckdb.sql("select 1 as m, 2 as n, 3 as k, 'bfloat16' as gemm_dtype, 4.0 as latency_ms").write_parquet(str(path))
    assert "gemm_perf.parquet, latency: column missing" in refused("aiconfigurator", "--gpu", "h200")


def test_a_file_that_is_no_parquet_is_named(package, refused):
    """One line, no traceback."""
    (package / "h200_sxm/gemm/vllm/0.24.0/gemm_perf.parquet").write_text("nothing", encoding="utf-8")
    assert "gemm_perf.parquet: not readable" in refused("aiconfigurator", "--gpu", "h200")


def test_without_the_package_one_line_says_what_to_install(refused, monkeypatch):
    """The extra."""
    monkeypatch.setattr("profiler.imports.silicon.find_spec", lambda _name: None)
    assert 'pip install "chunkwise[imports]"' in refused("aiconfigurator", "--gpu", "h200")


@pytest.mark.usefixtures("package")
def test_the_package_is_read_and_not_run(imported):
    """Its __init__ would raise."""
    imported("aiconfigurator", "--gpu", "h200")
    assert "aiconfigurator_core" not in sys.modules


def test_the_newest_version_counts(tmp_path, monkeypatch):
    """0.24.0 is newer than 0.9.1, and a release than its candidates."""
    assert sorted(["1.3.0rc20", "1.3.0", "1.3.0rc3", "0.9.1", "0.24.0"], key=_version_key) == [
        "0.9.1", "0.24.0", "1.3.0rc3", "1.3.0rc20", "1.3.0",
    ]  # fmt: skip
    for version in ("0.9.1", "0.24.0"):
        write_package(tmp_path, version=version)
    monkeypatch.syspath_prepend(tmp_path)
    assert Silicon("h200_sxm", "vllm").version("gemm_perf") == "vllm 0.24.0"


@pytest.mark.usefixtures("package")
def test_measured_tables_are_compared_at_the_same_sizes():
    """The output projection of the 8B model was measured by both, QKV is interpolated here; differences are ratios."""
    table = find_table("h200/llama-3.1-8b")
    compared = {one.operator: one for one in compare(table, "vllm")}
    assert compared["o_proj"].exact
    assert not compared["qkv_proj"].exact
    frame = table.frame()
    ours = frame[(frame["operator"] == "o_proj") & (frame["tokens"] == 256)]["time_us"].item()
    assert compared["o_proj"].times[256] == (ours, pytest.approx(1000 * gemm_ms(256, 4096, 4096)))
    assert (128, 129) in [(low, high) for low, high, _, _ in compared["o_proj"].steps()]
    times = {tokens: ours for tokens, (ours, _) in compared["o_proj"].times.items()}
    assert f"| o_proj | 128 -> 129 | {times[129] / times[128] - 1:+.1%} | +100.0% |" in report(table, "vllm")


@pytest.mark.silicon
@pytest.mark.parametrize("gpu", ["a100-80", "h100", "h200", "l40s", "b200"])
def test_the_published_package_gives_a_whole_table(imported, gpu):
    """Every token operator has rows, most prefills and decodes were measured, and cliffs can be seen."""
    table = imported("aiconfigurator", "--gpu", gpu, model="llama-3.1-8b")
    frame = table.frame()
    assert set(TOKEN_OPERATORS) <= set(frame["operator"])
    assert {256, 257} <= set(frame[frame["operator"] == "mlp"]["tokens"])
    decodes = frame[(frame["operator"] == "attention") & (frame["prefills"] == 0)]
    assert (decodes["repeats"] == 1).mean() > 0.5
    assert TableCosts(table).step_ns(64, 64 * 1000, 1000, [(0, 512)]) > 0
