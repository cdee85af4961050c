"""The terminal's table."""

from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.table import Table

from simulator.printing import print_table
from simulator.report.terminal import summary_table
from simulator.results import Columns, PolicyResult


def printed(table: Table, width: int = 100, colour: bool = False) -> str:
    """What a terminal of `width` columns shows."""
    console = Console(width=width, force_terminal=colour, color_system="standard" if colour else None, record=True)
    with console.capture() as shown:
        console.print(table)
    return shown.get()


def row(text: str, label: str) -> list[str]:
    """The cells of the row of `label`."""
    return next(line.split() for line in text.splitlines() if line.startswith(label))


def test_the_best_of_each_column_has_a_star_without_colour(results: list[PolicyResult]) -> None:
    """The stars are where the summaries' least values are."""
    text = printed(summary_table(results))
    least = min(results, key=lambda result: float(result.summary["itl_p99_s"]))
    starred = [result.label for result in results if row(text, result.label)[6].endswith("*")]
    assert starred == [least.label] == ["sarathi"]
    assert "* best of its column" in text


def test_the_best_is_bold_green_with_colour(results: list[PolicyResult]) -> None:
    """ANSI bold and green go round the value and its star."""
    assert "\x1b[1;32m" in printed(summary_table(results), colour=True)


def test_eight_long_labels_fit_a_hundred_columns(results: list[PolicyResult]) -> None:
    """Nothing wraps or is cut: columns are left out and named instead."""
    labels = [f"{i}-{'long-label-' * 4}"[:40] for i in range(8)]
    text = printed(summary_table([replace(results[i % 3], label=label) for i, label in enumerate(labels)]))
    assert all(label in text for label in labels)
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "left out for width, see summary.csv: KV peak, Preemptions" in " ".join(text.split())


def test_a_single_policy_is_listed_downwards(results: list[PolicyResult]) -> None:
    """A row a measure, without a best."""
    text = printed(summary_table(results[:1]))
    assert "TPOT p90" in text
    assert "*" not in text


def test_labels_are_not_markup(results: list[PolicyResult]) -> None:
    """Square brackets are shown as they are."""
    pair = [replace(results[0], label="[bold]a[/bold]"), replace(results[1], label="[link=x]")]
    text = printed(summary_table(pair))
    assert "[bold]a[/bold]" in text
    assert "[link=x]" in text
    assert "[bold]a[/bold]" in printed(summary_table(pair[:1]))


def test_missing_values_are_dashes(results: list[PolicyResult], nothing: PolicyResult) -> None:
    """A run that finished nothing still has its row."""
    assert row(printed(summary_table([*results, nothing])), "nothing")[1:4] == ["0/60", "-", "-"]
    assert "0/60" in printed(summary_table([nothing]))


def test_pipelines_have_a_column_of_bubbles(results: list[PolicyResult], staged: list[PolicyResult]) -> None:
    """The least share has a star; a single policy has what its requests met, too. Other runs have neither."""
    text = printed(summary_table(staged))
    shares = [row(text, result.label)[-1] for result in staged]
    least = min(staged, key=lambda result: float(result.summary["bubble_fraction"]))
    assert [share.endswith("*") for share in shares] == [result is least for result in staged]
    assert shares[0].rstrip("*") == f"{100 * staged[0].summary['bubble_fraction']:.1f}%"
    assert "Bubbles" in text
    assert "Bubbles" not in printed(summary_table(results))
    assert "Request bubbles p50" in printed(summary_table(staged[:1]))
    assert "Request bubbles p50" not in printed(summary_table(results[:1]))


def test_gpus_have_a_column_where_they_differ(results: list[PolicyResult]) -> None:
    """Behind the finished requests; not where all have as many."""
    unlike = [
        replace(each, summary={**each.summary, "gpus": gpus}) for each, gpus in zip(results, (1, 2, 1), strict=True)
    ]
    text = printed(summary_table(unlike))
    assert [row(text, result.label)[2] for result in results] == ["1", "2", "1"]
    assert "GPUs" not in printed(summary_table(results))


def test_pools_have_rows_where_there_are_any(results: list[PolicyResult]) -> None:
    """A single policy on GPUs of one kind is not told of transfers."""
    [alone] = results[:1]
    assert "Transfer" not in printed(summary_table([alone]))
    assert "pool" not in printed(summary_table([alone]))
    pools = replace(alone, pools=Columns({"pool": np.array(["prefill", "decode"])}))
    text = printed(summary_table([pools]))
    assert all(name in text for name in ("Transfer p99", "Queue for room p99", "Idle prefill pool", "Idle decode pool"))


def test_tables_are_printed_without_trailing_spaces(results: list[PolicyResult]) -> None:
    """Else as rich has them, colours included."""
    for colour in (False, True):
        console = Console(width=100, force_terminal=colour, color_system="standard" if colour else None)
        with console.capture() as shown:
            print_table(console, summary_table(results))
        lines = printed(summary_table(results), colour=colour).splitlines()
        assert shown.get().splitlines() == [line.rstrip() for line in lines]
        assert any(line != line.rstrip() for line in lines)
