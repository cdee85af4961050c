"""Writes the measured table of docs/schedulers.md from the folder that `simulate-trace policies/all.yaml --out` wrote.

    simulate-trace policies/all.yaml --out results/all
    python bench/schedulers_table.py results/all

`make schedulers` does both.
"""

import csv
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs/schedulers.md"
BEGIN, END = "<!-- measured: make schedulers -->\n", "<!-- end -->\n"
COLUMNS = {
    "GPUs": ("gpus", 1, ".0f"),
    "output tokens/s": ("output_tokens_per_s", 1, ",.0f"),
    "queue mean, s": ("queue_mean_s", 1, ".3f"),
    "TTFT p50, s": ("ttft_p50_s", 1, ".3f"),
    "TTFT p99, s": ("ttft_p99_s", 1, ".3f"),
    "ITL p50, ms": ("itl_p50_s", 1000, ".1f"),
    "ITL p99, ms": ("itl_p99_s", 1000, ".1f"),
    "E2E p50, s": ("e2e_p50_s", 1, ".2f"),
    "KV peak, %": ("kv_peak_fraction", 100, ".1f"),
    "preemptions": ("preemptions", 1, ".0f"),
}
"""Heading: column of summary.csv, factor, format."""


def measured(folder: Path) -> str:
    """The table of a run, in Markdown, a row for each policy in its order."""
    with (folder / "summary.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    lines = [["policy", *COLUMNS], ["---", *["---:" for _ in COLUMNS]]]
    for row in rows:
        assert row["num_finished"] == row["num_requests"], f"{row['label']} has not served all requests"
        cells = [format(float(row[name]) * factor, shape) for name, factor, shape in COLUMNS.values()]
        lines.append([f"`{row['label']}`", *cells])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def parts(page: str) -> tuple[str, str, str]:
    """A page up to the measured table, the table, and the rest."""
    before, begin, rest = page.partition(BEGIN)
    table, end, after = rest.partition(END)
    assert end, "the page has marks around the table"
    return before + begin, table, end + after


if __name__ == "__main__":
    above, _, below = parts(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(above + measured(Path(sys.argv[1])) + below, encoding="utf-8")
