"""`import-costs datasheet`, and the table that ships from it."""

import pytest

from profiler.imports.datasheet import load_hardware
from profiler.imports.table import DatasheetSource, make_rows, roofline_of
from simulator.cost_table import read_metadata
from simulator.errors import InputError
from simulator.models import load_model
from simulator.named_tables import find_table, table_names
from simulator.table_costs import TableCosts
from simulator.table_rows import COLUMNS, OPERATORS

SHIPPED = "paper/gpt3-175b-a100@tp8"


def test_a_table_that_the_simulator_prices_steps_from(imported):
    """All operators; decodes, a chunk and both together have prices."""
    table = imported("datasheet", "--gpu", "a100-80")
    assert set(table.rows["operator"]) == {*OPERATORS} - {"whole_layer"}  # no model of falling clocks
    costs = TableCosts(table)
    decodes, chunk = costs.step_ns(64, 64 * 1000, 1000, []), costs.step_ns(0, 0, 0, [(0, 256)])
    assert 0 < max(decodes, chunk) < costs.step_ns(64, 64 * 1000, 1000, [(0, 256)]) < 2 * (decodes + chunk)


def test_both_sides_of_every_tile_boundary_are_in_the_table(imported):
    """Multiples of 64 up to 1024 tokens and the token after each."""
    frame = imported("datasheet", "--gpu", "a100-80").frame()
    tokens = set(frame[frame["operator"] == "qkv_proj"]["tokens"])
    assert {size + one for size in range(64, 1025, 64) for one in (0, 1)} <= tokens


def test_the_grid_reaches_far(imported):
    """Contexts above 16384, 1024 decodes, chunks beside decodes."""
    frame = imported("datasheet", "--gpu", "h200").frame()
    attention = frame[frame["operator"] == "attention"]
    assert attention["prefill_context"].max() >= 16384
    assert attention["decode_context"].max() >= 16384
    assert attention["decodes"].max() >= 1024
    assert ((attention["decodes"] >= 512) & (attention["prefills"] == 1)).any()


def test_the_sidecar_says_that_it_is_a_model(imported):
    """Source, notes, no repeats, no software, the datasheet's links."""
    metadata = imported("datasheet", "--gpu", "a40").metadata
    assert (metadata.source, metadata.repeats, metadata.torch, metadata.cuda) == ("modelled", 0, None, None)
    assert metadata.notes[0].startswith("model, not measured")
    assert any("https://" in note for note in metadata.notes)
    assert metadata.gpu.name == "NVIDIA A40"


def test_a_tensor_parallel_table_is_of_the_shard_and_names_the_whole(imported):
    """Half the work takes less time; the sidecar holds the whole model and the degree."""
    whole, half = (imported("datasheet", "--gpu", "a40", "--tp", tp, "--force") for tp in (1, 2))
    assert half.metadata.tensor_parallel == 2
    assert half.metadata.model == whole.metadata.model
    assert any("all-reduce" in note for note in half.metadata.notes)

    def qkv(table):
        frame = table.frame()
        return frame[(frame["operator"] == "qkv_proj") & (frame["tokens"] == 4096)]["time_us"].item()

    assert 0.4 < qkv(half) / qkv(whole) < 0.6


def test_the_shipped_table_is_what_its_command_makes():
    """Row for row: nothing in it was written by hand."""
    shape, hardware = load_model("gpt3-175b"), load_hardware("a100-80")
    made = make_rows(DatasheetSource(roofline_of(shape, 8, hardware)))
    held = find_table(SHIPPED)
    assert held.metadata.command == (
        "import-costs datasheet --gpu a100-80 --model gpt3-175b --tp 8 --out gpt3-175b-a100@tp8.csv"
    )
    frame = held.frame()[list(COLUMNS)]
    assert frame["time_us"].to_numpy() == pytest.approx(made["time_us"].to_numpy(), abs=1e-4)
    for column in ("operator", "tokens", "sequences", "prefill_tokens", "prefill_context", "decodes", "decode_context"):
        assert frame[column].tolist() == made[column].tolist()


def test_the_shipped_table_says_model_not_measured():
    """Eight GPUs, an ungated MLP, learned positions."""
    metadata = read_metadata(table_names()[SHIPPED].with_suffix(".yaml"))
    assert "model, not measured" in metadata.notes[0]
    assert metadata.model == load_model("gpt3-175b")
    assert (metadata.source, metadata.tensor_parallel, metadata.model.gated_mlp) == ("modelled", 8, False)


def test_the_shipped_table_is_found_at_its_degree():
    """By the name without @tp8, too; on one GPU it is refused."""
    name = SHIPPED.removesuffix("@tp8")
    assert find_table(name, None, 8).name == SHIPPED
    with pytest.raises(InputError, match=r"no cost table paper/gpt3-175b-a100 of a tensor-parallel degree of 1; .* 8,"):
        find_table(name, None, 1)


def test_a_share_of_the_flops_slows_what_computes_and_not_what_reads_memory(imported):
    """Half of the FLOP/s: a large product takes twice as long, a decode as long; the sidecar says what if."""
    whole, half = (imported("datasheet", "--gpu", "a40", "--flops-share", share, "--force") for share in (1, 0.5))

    def products(table, tokens):
        frame = table.frame()
        return frame[(frame["operator"] == "mlp") & (frame["tokens"] == tokens)]["time_us"].item()

    assert products(half, 8192) / products(whole, 8192) == pytest.approx(2, rel=0.1)
    assert products(half, 1) / products(whole, 1) < 1.1
    assert not any("what if" in note for note in whole.metadata.notes)
    assert any("0.5 of these FLOP/s" in note for note in half.metadata.notes)
    of_sheet = [note for note in whole.metadata.notes if note.startswith("datasheet:")]
    assert of_sheet == [note for note in half.metadata.notes if note.startswith("datasheet:")]


def test_a_share_of_the_flops_is_of_the_datasheet_alone(refused):
    """Measured times do not follow from it."""
    assert "only datasheet has a peak to lower" in refused("aiconfigurator", "--gpu", "h100", "--flops-share", "0.5")


def test_the_default_name_ends_with_the_degree(import_costs, tmp_path, monkeypatch):
    """As `simulate-trace` looks for it."""
    monkeypatch.chdir(tmp_path)
    for options in ((), ("--tp", "2")):
        assert import_costs("datasheet", "--gpu", "a40", *options, out=None).exit_code == 0
    assert sorted(path.name for path in tmp_path.glob("*.csv")) == ["two-layers-a40.csv", "two-layers-a40@tp2.csv"]


def test_an_unknown_source_is_named_with_the_nearest(refused):
    """And what else it may be."""
    assert 'did you mean "datasheet"?' in refused("datashet", "--gpu", "a40")


def test_an_unknown_gpu_is_refused(refused):
    """With those that are known."""
    assert "GPUs: a100-40, a100-80" in refused("datasheet", "--gpu", "v100")


def test_an_unknown_model_is_refused(refused):
    """With those that are known."""
    assert 'unknown model "llama"' in refused("datasheet", "--gpu", "a40", model="llama")


def test_heads_that_do_not_divide_are_refused(refused):
    """32 heads over 5 GPUs."""
    assert "--tp: two-layers does not divide over 5 ranks (32 attention heads)" in refused(
        "datasheet", "--gpu", "a40", "--tp", "5"
    )


def test_an_existing_table_is_not_overwritten(import_costs, tmp_path):
    """Unless --force says so."""
    (tmp_path / "table.csv").write_text("precious", encoding="utf-8")
    result = import_costs("datasheet", "--gpu", "a40")
    assert (result.exit_code, "--force" in result.output) == (2, True)
    assert (tmp_path / "table.csv").read_text(encoding="utf-8") == "precious"
    assert import_costs("datasheet", "--gpu", "a40", "--force").exit_code == 0
