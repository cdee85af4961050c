"""The page of a sweep over loads and of DistServe's figure 1, written from their rows."""

from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

from simulator.reproduce.loads.figure1 import TPOT_S, TTFT_S
from simulator.reproduce.loads.plots import measures
from simulator.reproduce.loads.sweep import Crossover, Sweep, first_ahead

Rows = Sequence[Mapping[str, Any]]
CLOSE = 0.15
READING = "reading.md"
"""What people say about the figures, beside them; it is put into the page as it is."""

COLUMNS = """\
## Columns

`loads.csv` has a row a load and system: `label`; `speedup`, times the trace's own rate; `offered_per_s_per_gpu`,
requests that arrive; `gpus`; for each limit `LIMIT_attainment`, the share of all requests that keep it, and
`LIMIT_goodput_per_s_per_gpu`, those that do, divided by the time from the first arrival to the last finish and by the
GPUs. The rest are columns of [`summary.csv`](../../README.md#what-comes-out), explained there and, those of pools, with
[disaggregation](../../docs/disaggregation.md#columns).

`figure-1.csv` has a row a system: `system`; `limits`, those that count for it; `gpus`; `rate_per_s_per_gpu`, the
highest rate found, to one per cent, at which the P90 of each is within its limit; `published_per_s_per_gpu`, empty
where nothing is.
"""


def page(table: Rows, rates: Rows, sweep: Sweep, found: Mapping[str, Sequence[Crossover]], folder: Path) -> str:
    """README.md of the folder."""
    reading = folder / READING
    parts = [
        "# Chunked prefill or disaggregation\n",
        f"Written by `python -m simulator.reproduce.loads` on this folder; `{READING}` has the words, the figures are\n"
        "those of `loads.csv` and `figure-1.csv`. What is simulated: `systems.yaml` at the loads of `sweep.yaml`.\n"
        "[Disaggregation](../../docs/disaggregation.md) tells how.\n",
        "![Goodput, TTFT and ITL over the load](loads.png)\n",
        "Goodput counts requests that keep:\n",
        *(f"- **{slo.name}**: {slo.about}" for slo in sweep.slos),
        "",
        _best(table, sweep),
        "## Where they cross\n",
        "The better of the shared systems against the best of the pools, linear between two loads, loads in requests\n"
        "a second and GPU; within half a per cent neither is better:\n",
        *_crossings(table, found, sweep),
        "",
        "## DistServe's figure 1\n",
        _figure(rates),
        reading.read_text(encoding="utf-8") if reading.exists() else "",
        COLUMNS,
    ]
    return "\n".join(parts).rstrip() + "\n"


def _best(table: Rows, sweep: Sweep) -> str:
    """The highest goodput of each system and where; what it is like at the lowest and the highest load."""
    names = [slo.name for slo in sweep.slos]
    head = [f"best goodput, {name}" for name in names] + [
        *(f"{figure} p99, lowest / highest load" for figure in ("TTFT", "ITL")),
        "idle prefill / decode pool",
    ]
    lines = ["| system | " + " | ".join(head) + " |", "| --- |" + " --- |" * len(head)]
    for label in (*sweep.shared, *sweep.pools):
        rows = [row for row in table if row["label"] == label]
        cells = []
        for name in names:
            best = max(rows, key=lambda row: row[f"{name}_goodput_per_s_per_gpu"])
            last = " (+)" if best is rows[-1] else ""
            cells.append(f"{best[f'{name}_goodput_per_s_per_gpu']:.2f} at {best['offered_per_s_per_gpu']:.2f}{last}")
        cells += [
            " / ".join(f"{1000 * row[column]:,.0f} ms" for row in (rows[0], rows[-1]))
            for column in ("ttft_p99_s", "itl_p99_s")
        ]
        idle = [rows[-1][f"{pool}_idle_fraction"] for pool in ("prefill", "decode")]
        cells.append("-" if isnan(idle[0]) else " / ".join(f"{100 * share:.0f} %" for share in idle))
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "Goodput and load in requests a second and GPU. (+): the highest load tried, so the peak may be higher. Idle",
        "is the share of a pool's time with nobody to serve, at the highest load, from the first step to the last: the",
        "time after the last prompt, in which only decodes are left, is in it.",
        "",
    ]
    return "\n".join(lines)


def _crossings(table: Rows, found: Mapping[str, Sequence[Crossover]], sweep: Sweep) -> list[str]:
    """Who is better from which load on, a line a measure."""
    lines, lowest = [], min(row["offered_per_s_per_gpu"] for row in table)
    for column, (title, higher) in measures(sweep).items():
        first = first_ahead(table, sweep, column, higher=higher)
        if first is None:
            lines.append(f"- {title}: neither is better at any load")
            continue
        side, load = first
        level = "" if load == lowest else f"level below {load:.2f}, then "
        if found[column]:
            turns = [f"{turn.after} from {turn.at:.2f} on" for turn in found[column]]
            lines.append(f"- {title}: {level}{side} are better; {'; '.join(turns)}")
        else:
            lines.append(f"- {title}: {level}{side} are better at every load")
    return lines


def _figure(rates: Rows) -> str:
    """Rates and their ratios to the colocated system, beside the published."""
    by_system = {row["system"]: row for row in rates}
    base = by_system["colocated"]
    lines = [
        f"P90 of TTFT at most {TTFT_S:g} s and of TPOT at most {TPOT_S:g} s (13B, A100 80 GB, 512 and 64 tokens; see",
        "`figure-1.yaml`). Requests a second and GPU, and how many times the colocated rate that is:\n",
        "| system | limits | rate | published rate | times colocated | published times | off by | |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in rates:
        rate, published = row["rate_per_s_per_gpu"], row["published_per_s_per_gpu"]
        ratio = rate / base["rate_per_s_per_gpu"]
        if isnan(published):
            lines.append(f"| {row['system']} | {row['limits']} | {rate:.2f} | - | {ratio:.2f} | - | - | |")
            continue
        wanted = published / base["published_per_s_per_gpu"]
        off = ratio / wanted - 1
        verdict = "" if row is base else ("reproduced" if abs(off) <= CLOSE else "**failed**")
        lines.append(
            f"| {row['system']} | {row['limits']} | {rate:.2f} | {published:g} | {ratio:.2f} | {wanted:.2f} |"
            f" {100 * off:+.0f} % | {verdict} |"
        )
    between = by_system["prefill only"], by_system["decode only"]
    ours, theirs = (between[0][name] / between[1][name] for name in ("rate_per_s_per_gpu", "published_per_s_per_gpu"))
    verdict = "reproduced" if abs(ours / theirs - 1) <= CLOSE else "**failed**"
    lines += ["", f"Prefill alone to decode alone: {ours:.2f}, published {theirs:.2f}: {verdict}."]
    lines += ["", f"Reproduced: the ratio is within {100 * CLOSE:.0f} % of the published one.", ""]
    return "\n".join(lines)
