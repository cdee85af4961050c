"""`import-costs FOLDER`: profiles in Vidur's format."""

import pandas as pd
import pytest

from simulator.table_costs import TableCosts
from tests.profiler.imports.sources import TOKENS, write_vidur
from tests.profiler.imports.test_silicon import rows_of


@pytest.fixture
def profiles(tmp_path):
    """A folder with mlp.csv and attention.csv."""
    return write_vidur(tmp_path / "profiles")


def edit(path, change):
    """Rewrite a CSV."""
    change(pd.read_csv(path)).to_csv(path, index=False)


@pytest.mark.parametrize(
    ("operator", "microseconds"),
    [("qkv_proj", 1), ("o_proj", 1), ("mlp", 3), ("elementwise", 5), ("embedding", 1)],
)
def test_operators_are_sums_of_vidurs_operations(imported, profiles, operator, microseconds):
    """Milliseconds to microseconds; the MLP with its activation, elementwise with two residual additions."""
    rows = rows_of(imported(profiles, "--gpu", "a100-80"), operator)
    assert tuple(rows["tokens"]) == TOKENS
    expected = [microseconds * (2 if tokens > 128 else 1) for tokens in TOKENS]
    assert rows["time_us"].tolist() == pytest.approx(expected)
    assert (rows["p10_us"] == rows["time_us"] / 2).all()
    assert (rows["p90_us"] == rows["time_us"] * 2).all()


def test_attention_is_read_with_its_context(imported, profiles):
    """A chunk after cached entries; a decode also attends to its own token."""
    table = imported(profiles, "--gpu", "a100-80")
    chunk = rows_of(table, "attention", prefills=1, prefill_tokens=128, prefill_context=256, decodes=0)
    assert chunk["time_us"].item() == pytest.approx(15)
    decode = rows_of(table, "attention", decodes=16, decode_context=1024, prefills=0)
    assert decode["time_us"].item() == pytest.approx(20)
    assert table.metadata.attention.backend == "flashinfer"


def test_what_vidur_does_not_measure_is_the_models_and_says_so(imported, profiles):
    """LM head and chunks beside decodes; no measured operator has a modelled row."""
    table = imported(profiles, "--gpu", "a100-80")
    frame = table.frame()
    hybrid = (frame["prefills"] > 0) & (frame["decodes"] > 0)
    assert (frame[(frame["operator"] == "lm_head") | hybrid]["repeats"] == 0).all()
    assert (frame[(frame["operator"] != "lm_head") & ~hybrid]["repeats"] == 1).all()
    assert table.metadata.source == "imported"
    assert any("beside decodes is a roofline model" in note for note in table.metadata.notes)
    assert TableCosts(table).step_ns(8, 8 * 300, 300, [(0, 128)]) > 0


def test_without_attention_csv_all_attention_is_the_models(imported, tmp_path):
    """Vidur's attention files are large and often left out."""
    table = imported(write_vidur(tmp_path / "half", attention=False), "--gpu", "a100-80")
    assert (rows_of(table, "attention")["repeats"] == 0).all()
    assert "no attention.csv: attention is a roofline model" in table.metadata.notes


def test_the_mlp_file_itself_may_be_named(imported, profiles):
    """What lies beside it is read too."""
    assert imported(profiles / "mlp.csv", "--gpu", "a100-80").metadata.attention.backend == "flashinfer"


def test_repeated_rows_count_once(imported, profiles):
    """Vidur's files hold some token counts twice: their median."""
    edit(profiles / "mlp.csv", lambda frame: pd.concat([frame, frame]))
    assert tuple(rows_of(imported(profiles, "--gpu", "a100-80"), "mlp")["tokens"]) == TOKENS


def test_only_the_wanted_degree_is_read(imported, refused, profiles):
    """Vidur keeps all tensor-parallel degrees in one file."""
    assert "num_tensor_parallel_workers: no rows of 2; held: 1" in refused(profiles, "--gpu", "a100-80", "--tp", "2")
    faster = pd.read_csv(profiles / "mlp.csv")
    times = [column for column in faster if column.startswith("time_stats")]
    faster[times] /= 2
    edit(profiles / "mlp.csv", lambda frame: pd.concat([frame, faster.assign(num_tensor_parallel_workers=2)]))
    (profiles / "attention.csv").unlink()
    table = imported(profiles, "--gpu", "a100-80", "--tp", "2")
    assert rows_of(table, "qkv_proj", tokens=1)["time_us"].item() == pytest.approx(0.5)


def test_another_models_profile_is_refused(refused, tmp_path):
    """It has other KV heads."""
    folder = write_vidur(tmp_path / "other", kv_heads=32)
    assert "mlp.csv, n_kv_head: 32 where two-layers has 8" in refused(folder, "--gpu", "a100-80")


def test_a_missing_column_is_named(refused, profiles):
    """With the nearest there is."""
    edit(profiles / "mlp.csv", lambda frame: frame.rename(columns={"num_tokens": "tokens_num"}))
    assert "mlp.csv, num_tokens: column missing" in refused(profiles, "--gpu", "a100-80")


def test_a_count_that_is_none_is_named_with_its_line(refused, profiles):
    """The second row of data is the third line."""
    edit(profiles / "mlp.csv", lambda frame: frame.assign(num_tokens=["1", "many", "3", "4", "5"]))
    assert "mlp.csv, line 3, num_tokens: not a count: 'many'" in refused(profiles, "--gpu", "a100-80")


def test_a_folder_without_profiles_is_refused(refused, tmp_path):
    """It says what should be there."""
    (tmp_path / "empty").mkdir()
    assert "holds mlp.csv" in refused(tmp_path / "empty", "--gpu", "a100-80")
