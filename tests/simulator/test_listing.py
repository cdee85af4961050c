"""What `--list` prints."""

import pytest

from simulator.listing import print_listing
from simulator.named_tables import table_names


def listed(what: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of a listing."""
    print_listing(what)
    return capsys.readouterr().out.splitlines()


def test_policies_are_plain_text_with_whole_paths(capsys: pytest.CaptureFixture[str]) -> None:
    """No Markdown, no word broken over two lines."""
    lines = listed("policies", capsys)
    assert "`" not in "".join(lines)
    assert any("sarathi/core/scheduler/simple_chunking_scheduler.py" in line for line in lines)
    assert any("sarathi/core/scheduler/faster_transformer_scheduler.py" in line for line in lines)
    assert max(map(len, lines)) <= 100


def test_a_setting_shows_all_options_of_its_policy(capsys: pytest.CaptureFixture[str]) -> None:
    """Those that it leaves alone, too, with its own values for the rest."""
    text = "\n".join(listed("policies", capsys))
    own = text.split("\nsarathi-serve ")[1].split("\nsimple-chunking ")[0]
    for option in ("max_num_seqs (128)", "chunk_size (2048)", "tile_size (0)", "max_prefills_per_batch (0)"):
        assert option in own


def test_experiments_are_listed_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """They are no policies, so the command that runs them stands there."""
    lines = listed("policies", capsys)
    assert any(line.strip().startswith("simulate-trace policies/all.yaml: ") for line in lines)
    assert not any(line.startswith("all ") for line in lines)
    first = next(place for place, line in enumerate(lines) if line.strip().startswith("simulate-trace policies/"))
    assert lines[first - 1] == ""  # or they read as options of the last policy


def test_lines_have_no_trailing_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    """Which a table fills its lines with."""
    for what in ("policies", "costs"):
        assert all(line == line.rstrip() for line in listed(what, capsys))


def test_small_models_have_small_units(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is zero."""
    lines = listed("models", capsys)
    (tiny,) = (line for line in lines if line.startswith("tiny"))
    assert tiny.split()[-4:] == ["1", "MB", "512", "B"]
    assert any("16.1 GB" in line and "128 KiB" in line for line in lines)


def test_names_of_one_table_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    """The second name stands below the first behind an equals sign; every name is listed."""
    lines = [line.rstrip() for line in listed("costs", capsys)]
    place = next(row for row, line in enumerate(lines) if line.startswith("h200/llama-3.1-8b "))
    assert lines[place + 1] == "= h200/llama-3.1-8b@fa3"
    assert {line.removeprefix("= ").split()[0] for line in lines[1:]} == set(table_names())
