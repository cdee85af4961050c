"""The self-contained page."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from simulator.report import page
from simulator.report.headline import headline
from simulator.report.page import write_page
from simulator.report.values import options
from simulator.results import Columns, PolicyResult

EXPERIMENT: dict[str, Any] = {
    "trace": "traces/conversation.csv",
    "costs": "h200/llama-3.1-8b",
    "seed": 0,
    "policies": [{"policy": "orca", "label": "orca"}],
    "provenance": {"python": "3.11.7", "command": "simulate-trace x.yaml"},
}


@pytest.fixture
def drawings(tmp_path: Path) -> list[Path]:
    """Two plots as files, small stand-ins."""
    for stem in ("ttft", "itl"):
        (tmp_path / f"{stem}.png").write_bytes(b"\x89PNG" + stem.encode())
        (tmp_path / f"{stem}.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
    return [tmp_path / f"{stem}.{kind}" for stem in ("ttft", "itl") for kind in ("png", "svg")]


class Tags(HTMLParser):
    """Collects start tags with their attributes, and complains of tags that do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_no_network(results: list[PolicyResult], drawings: list[Path], tmp_path: Path) -> None:
    """Nothing is fetched: no addresses but data:, no scripts, no style sheets."""
    path = write_page(results, tmp_path, EXPERIMENT, drawings)
    text = path.read_text(encoding="utf-8")
    assert path == tmp_path / "report.html"
    assert not re.search(r"https?://|//[a-z]|url\(|@import|<script|<link", text)
    tags = Tags(text)
    assert tags.open == []
    assert all(str(attrs["src"]).startswith("data:image/svg+xml;base64,") for tag, attrs in tags.seen if tag == "img")


def test_plots_have_captions_and_alternative_text(
    results: list[PolicyResult], drawings: list[Path], tmp_path: Path
) -> None:
    """Who does not see the curves reads the numbers."""
    tags = Tags(write_page(results, tmp_path, EXPERIMENT, drawings).read_text(encoding="utf-8"))
    ttft, itl = (str(attrs["alt"]) for tag, attrs in tags.seen if tag == "img")
    assert "p99 TTFT: orca " in ttft
    assert "sarathi " in itl


def test_the_comparison_the_table_and_the_experiment_are_on_it(results: list[PolicyResult], tmp_path: Path) -> None:
    """Headline sentences, options, definitions, the YAML and where it came from."""
    noted = [replace(results[0], notes=("12 rows dropped",)), *results[1:]]
    text = write_page(noted, tmp_path, EXPERIMENT, []).read_text(encoding="utf-8")
    for part in (*headline(results), "12 rows dropped", "chunk_size: 512", "one output token", "3.11.7"):
        assert part in text
    shown = text.split("<pre>")[1].split("</pre>")[0]
    assert yaml.safe_load(shown) == EXPERIMENT
    assert "without an estimate of uncertainty" in " ".join(text.split())


def test_the_best_cells_are_marked(results: list[PolicyResult], tmp_path: Path) -> None:
    """One of the three has the lowest p99 ITL."""
    text = write_page(results, tmp_path, EXPERIMENT, []).read_text(encoding="utf-8")
    line = text.split("ITL p99</th>")[1].split("</tr>")[0]
    cells = re.findall(r'<td( class="best")?>([^<]*)</td>', line)
    assert [bool(best) for best, _ in cells] == [text.endswith("*") for _, text in cells]
    assert [bool(best) for best, _ in cells] == [False, True, False]


def test_user_text_is_escaped(results: list[PolicyResult], drawings: list[Path], tmp_path: Path) -> None:
    """Labels, options, notes, trace names and the experiment cannot become tags or leave their attribute."""
    evil = "\"'><script>alert(1)</script>"
    odd = [
        replace(result, label=f"{evil}{number}", policy=evil, options={evil: evil}, notes=(evil,))
        for number, result in enumerate(results)
    ]
    experiment = {"trace": evil, "costs": evil, evil: [evil], "provenance": {evil: evil}}
    text = write_page(odd, tmp_path, experiment, drawings).read_text(encoding="utf-8")
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert {tag for tag, _ in Tags(text).seen}.isdisjoint({"script"})
    assert all(set(attrs) == {"src", "alt"} for tag, attrs in Tags(text).seen if tag == "img")


def test_the_same_input_gives_the_same_bytes(results: list[PolicyResult], drawings: list[Path], tmp_path: Path) -> None:
    """No clock and no random names."""
    once = write_page(results, tmp_path / "1", EXPERIMENT, drawings).read_bytes()
    assert write_page(results, tmp_path / "2", EXPERIMENT, drawings).read_bytes() == once


def test_heavy_drawings_become_pictures(
    results: list[PolicyResult], drawings: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heaviest first, until the rest is light enough."""
    drawings[1].write_text(drawings[1].read_text() + " " * 1000)
    monkeypatch.setattr(page, "SVG_BYTES", 500)
    tags = Tags(write_page(results, tmp_path, EXPERIMENT, drawings).read_text(encoding="utf-8"))
    kinds = [str(attrs["src"]).split(";")[0] for tag, attrs in tags.seen if tag == "img"]
    assert kinds == ["data:image/png", "data:image/svg+xml"]


def test_poor_runs_have_a_page(results: list[PolicyResult], nothing: PolicyResult, tmp_path: Path) -> None:
    """A single policy, one that finished nothing, and an experiment of objects that YAML does not know."""
    poor = "nothing to compare"
    for runs, said in (
        ([nothing], poor),
        (results[:1], poor),
        ([results[0], nothing], "did not serve the same requests"),
    ):
        text = write_page(runs, tmp_path, {"costs": {"linear": {"fixed_ns": 8}}, "at": Path("x")}, []).read_text()
        assert said in text
        assert "{linear: {fixed_ns: 8}}" in text
        assert not re.search(r"\bnan\b", text, re.IGNORECASE)


def test_a_pipeline_has_a_section(
    results: list[PolicyResult], staged: list[PolicyResult], drawings: list[Path], tmp_path: Path
) -> None:
    """Its figures, its causes explained, and a row a stage; other runs have none of it."""
    for kind in ("png", "svg"):
        drawings.append(tmp_path / f"stages.{kind}")
        drawings[-1].write_text("<svg/>")
    text = write_page(staged, tmp_path, EXPERIMENT, drawings).read_text(encoding="utf-8")
    before, section = text.split("<h2>Pipeline</h2>")
    section = section.split("<h2>")[0]
    assert re.findall(r'<figure id="(\w+)"', section) == ["stages"]
    assert re.findall(r'<figure id="(\w+)"', before) == ["ttft", "itl"]
    assert "PB1 prefill lengths</dt>" in section
    assert "host</dt>" not in section
    busy = staged[2].bubbles["busy_s"][1] / staged[2].bubbles["span_s"][1]
    assert f"<td>{100 * busy:.1f}%</td>" in section
    assert section.count('rowspan="3"') == 3
    assert Tags(text).open == []
    assert "Request bubbles p50" in before
    plain = write_page(results, tmp_path, EXPERIMENT, []).read_text(encoding="utf-8")
    assert not re.search("Pipeline|Request bubbles|micro-batch", plain)


def test_the_engine_is_named(results: list[PolicyResult], tmp_path: Path) -> None:
    """Or that there is none."""
    for engine, said in (("vllm-0.23", "and the engine profile vllm-0.23."), ("none", ": the GPU alone, no engine.")):
        text = write_page(results, tmp_path, {**EXPERIMENT, "engine": engine}, []).read_text(encoding="utf-8")
        assert f"step costs of h200/llama-3.1-8b{' ' * said.startswith('and')}{said}" in text


def test_many_policies_are_rows(results: list[PolicyResult], tmp_path: Path) -> None:
    """Nine in tables of few columns, each measure in one of them; eight are columns of one."""
    many = [replace(results[place % 3], label=f"p{place}") for place in range(9)]
    text = write_page(many, tmp_path, EXPERIMENT, []).read_text(encoding="utf-8")
    tables = text.split('<table class="turned">')[1:]
    heads = [re.findall(r'<th scope="col">([^<]+)', table.split("</thead>")[0]) for table in tables]
    assert max(map(len, heads)) <= page.COLUMNS + 1
    assert sum((head.count("ITL p99") for head in heads), 0) == 1
    assert '<table class="summary">' not in text
    place = next(place for place, head in enumerate(heads) if "ITL p99" in head)
    rows = tables[place].split("</table>")[0].split('<th scope="row">')[1:]
    cells = [re.findall(r"<td[^>]*>([^<]*)</td>", row)[heads[place].index("ITL p99") - (place == 0)] for row in rows]
    assert [cell.endswith("*") for cell in cells] == [row[:2] in ("p1", "p4", "p7") for row in rows]
    assert Tags(text).open == []
    few = write_page(many[:8], tmp_path, EXPERIMENT, []).read_text(encoding="utf-8")
    assert '<table class="turned">' not in few


def test_options_of_pools_are_lines_of_their_own(results: list[PolicyResult]) -> None:
    """Without what the experiment says, and what a single GPU need not."""
    pool = {"policy": "vllm", "tensor": 1, "costs": "c", "kv_cache": {"num_blocks": 9}, "max_num_seqs": 4}
    given = {"prefill": pool, "decode": {**pool, "costs": "d", "tensor": 2}, "transfer": "whole"}
    system = replace(results[0], options=given, pools=Columns({"pool": np.array(["prefill", "decode"])}))
    assert options(system, {"costs": "c", "kv_cache": {"num_blocks": 9}}) == [
        ("prefill", [("policy", "vllm"), ("max_num_seqs", "4")]),
        ("decode", [("policy", "vllm"), ("tensor", "2"), ("costs", "d"), ("max_num_seqs", "4")]),
        ("", [("transfer", "whole")]),
    ]
    assert options(replace(results[0], options=given), {})[0][0] == ""
