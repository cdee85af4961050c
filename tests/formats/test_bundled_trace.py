"""The bundled trace has the statistics it claims and can be made again."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from simulator.formats import read_trace

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "traces" / "conversation.csv"


@pytest.fixture(scope="module")
def maker():
    """bench/make_conversation_trace.py as a module."""
    spec = spec_from_file_location("make_conversation_trace", ROOT / "bench" / "make_conversation_trace.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_statistics(maker):
    """Every published statistic is met within 1 %, the variation of the gaps within 2 %."""
    trace = read_trace(TRACE)
    made = maker.statistics(trace.arrival_ns / 1e9, trace.prompt_tokens, trace.output_tokens)
    assert len(trace) == maker.REQUESTS
    assert set(made) == set(maker.ASKED)
    for name, asked in maker.ASKED.items():
        assert made[name] == pytest.approx(asked, rel=0.02 if name == "gap cv" else 0.01), name


def test_what_is_asked_is_what_was_published(maker):
    """The statistics of Azure's conversation trace of 2023."""
    published = {"prompt mean": 1155, "prompt p50": 1020, "prompt p90": 2735, "prompt p99": 4142}
    published |= {"output mean": 211, "output p50": 129, "output p90": 424, "output p99": 601, "gap cv": 1.09}
    assert published | {"requests per s": maker.RATE} == maker.ASKED


def test_made_again(maker, tmp_path):
    """The generator writes the bundled file byte for byte."""
    maker.main(tmp_path / "conversation.csv")
    assert (tmp_path / "conversation.csv").read_bytes() == TRACE.read_bytes()
