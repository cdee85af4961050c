"""`price-batches`: the simulator's prices of batches in a file, and what is refused."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from simulator.cost_table import read_table
from simulator.errors import InputError
from simulator.price_cli import main, price_batches
from simulator.table_costs import TableCosts
from tests.simulator.tables import linear_us, write_small_table

BATCHES = [
    {"id": "prefill", "prefills": [[0, 64]], "decodes": []},
    {"id": "decode", "prefills": [], "decodes": [16] * 16},
    {"id": "hybrid", "prefills": [[0, 64], [1024, 48]], "decodes": [7, 25] * 8},
    {"id": "long", "prefills": [[1025, 16]], "decodes": []},
    {"id": "many", "prefills": [], "decodes": [16] * 65},
    {"id": "old", "prefills": [], "decodes": [1024, 1025]},
    {"id": "large", "prefills": [[0, 257]], "decodes": []},
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`small.csv`, a cost table, and `batches.jsonl`; the current folder."""
    monkeypatch.chdir(tmp_path)
    write_small_table(tmp_path)
    (tmp_path / "batches.jsonl").write_text("".join(f"{json.dumps(batch)}\n" for batch in BATCHES))
    return tmp_path


def price(*options: str) -> str:
    words = ["batches.jsonl", "--costs", "small.csv", "--out", "priced.csv", *options]
    result = CliRunner().invoke(price_batches, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


COUNTS = ("id", "tokens", "num_prefills", "num_decodes")


def test_columns_and_a_price_by_hand(folder: Path) -> None:
    """64 tokens of one prompt: the linear part, LM head 5 us, attention 4 us in each of two layers."""
    price()
    first, second, third, *_ = rows(folder / "priced.csv")
    assert list(first) == [*COUNTS, "gpu_s", "gpu_low_s", "gpu_high_s", "in_grid"]
    assert first["gpu_low_s"] == first["gpu_high_s"] == ""  # the small table knows no errors of its own
    assert list(first.values())[:4] == ["prefill", "64", "1", "0"]
    assert float(first["gpu_s"]) == pytest.approx((linear_us(64) + 5 + 2 * 4) * 1e-6)
    assert float(second["gpu_s"]) == pytest.approx((linear_us(16) + 5 + 2 * 4) * 1e-6)
    assert list(third.values())[:4] == ["hybrid", "128", "2", "16"]


def test_prices_are_the_simulator_s(folder: Path) -> None:
    """To the nanosecond."""
    price()
    costs = TableCosts(read_table(folder / "small.csv"))
    for batch, row in zip(BATCHES, rows(folder / "priced.csv"), strict=True):
        chunks = [(context, new) for context, new in batch["prefills"]]  # type: ignore[misc]
        decodes: list[int] = batch["decodes"]  # type: ignore[assignment]
        price_ns = costs.step_ns(len(decodes), sum(decodes), max(decodes, default=0), chunks)
        assert row["gpu_s"] == f"{price_ns / 1e9:.9f}"


def test_what_is_outside_the_grid(folder: Path) -> None:
    """Context of a prompt, decodes, their mean context, tokens: one more than was measured of each."""
    printed = price()
    inside = {row["id"] for row in rows(folder / "priced.csv") if row["in_grid"] == "1"}
    assert inside == {"prefill", "decode", "hybrid"}
    assert "7 batches, " in printed
    assert "4 of them outside the measured grid" in printed
    assert "long, many, old, large" in printed


def test_quiet_prints_nothing(folder: Path) -> None:
    """The file is written."""
    assert price("--quiet") == ""
    assert len(rows(folder / "priced.csv")) == len(BATCHES)


def test_the_table_of_a_rank(folder: Path) -> None:
    """--tensor must be the table's, and what is missing is said."""
    write_small_table(folder, tensor_parallel=2)
    assert "one of 2 ranks, without the all-reduces" in price("--tensor", "2")
    with pytest.raises(InputError, match="degree of 2"):
        price("--tensor", "1", "--force")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--out", "."], "is a folder"),
        (["--out", "batches.jsonl", "--force"], "batches.jsonl is the file of batches"),
        (["--out", "small.csv", "--force"], "small.csv is the cost table"),
        (["--out", "taken.csv"], "taken.csv exists; --force overwrites it"),
        (["--out", "taken.csv/priced.csv"], "cannot write taken.csv/priced.csv"),
        (["--costs", "smal.csv"], 'no cost table "smal.csv"'),
    ],
)
def test_mistakes(options: list[str], expected: str) -> None:
    """Nothing of the user's is overwritten."""
    Path("taken.csv").write_text("precious")
    with pytest.raises(InputError, match=expected):
        price(*options)
    assert Path("taken.csv").read_text() == "precious"


@pytest.mark.usefixtures("folder")
def test_a_mistake_is_one_line_and_exit_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of any command of the project."""
    Path("batches.jsonl").write_text("{}\n")
    monkeypatch.setattr(sys, "argv", ["price-batches", "batches.jsonl", "--costs", "small.csv", "--out", "p.csv"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert capsys.readouterr().err == "price-batches: batches.jsonl, line 1, id: missing\n"
    assert not Path("p.csv").exists()


@pytest.mark.usefixtures("folder")
def test_pricing_loads_neither_torch_nor_the_profiler() -> None:
    """No GPU is needed, and --help loads nothing at all."""
    program = (
        "import sys; from simulator.price_cli import price_batches\n"
        "try: price_batches()\n"
        "except SystemExit: print(sorted({'torch', 'pandas', 'matplotlib', 'profiler', 'numpy'} & set(sys.modules)))"
    )
    for options, loaded in (
        (["batches.jsonl", "--costs", "small.csv", "--out", "p.csv"], "['numpy']"),
        (["--help"], "[]"),
    ):
        done = subprocess.run([sys.executable, "-c", program, *options], capture_output=True, text=True, check=True)
        assert done.stdout.rstrip().endswith(loaded)
