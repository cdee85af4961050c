"""The attention kernel's schedule, fitted to an imported table."""

import pandas as pd
import pytest

from profiler.imports.datasheet import load_hardware
from profiler.imports.schedule import FITTED, NOT_FITTED, with_attention_model
from profiler.imports.table import DatasheetSource, make_rows, roofline_of
from simulator.models import load_model
from simulator.named_tables import find_table
from simulator.table_costs import attention_prices
from tests.simulator.tables import metadata

SHIPPED = find_table("paper/gpt3-175b-a100@tp8")


def _attention(table):
    frame = table.frame()
    return frame[frame["operator"] == "attention"]


@pytest.mark.usefixtures("fitted")
@pytest.mark.parametrize("gpu", ["a100-80", "h200"])
def test_the_replay_is_near_the_models_rows(imported, gpu):
    """Of FlashAttention-2 and 3: half of the decodes within 5 %, half of the calls of both within 12 %."""
    made = imported("datasheet", "--gpu", gpu, model="llama-3.1-8b").metadata
    assert made.attention_model.error["decode_median"] < 0.05
    assert made.attention_model.error["hybrid_median"] < 0.12
    assert FITTED in made.notes


def test_equal_decodes_cost_what_their_rows_say():
    """At every grid point, whatever was fitted."""
    _, prices = attention_prices(SHIPPED)
    rows = _attention(SHIPPED)
    rows = rows[rows["prefills"] == 0]
    for decodes, context, time in rows[["decodes", "decode_context", "time_us"]].itertuples(index=False):
        constant, slope, _ = prices.piece(decodes, decodes * context, context)
        assert constant + slope * decodes * context == pytest.approx(time, rel=1e-6)


def test_single_chunks_cost_what_their_rows_say():
    """At every grid point."""
    prices, _ = attention_prices(SHIPPED)
    rows = _attention(SHIPPED)
    rows = rows[(rows["prefills"] == 1) & (rows["decodes"] == 0)]
    for tokens, context, time in rows[["prefill_tokens", "prefill_context", "time_us"]].itertuples(index=False):
        assert prices.price(0, 0, 0, [(context, tokens)]) == pytest.approx(time, rel=1e-9)


def test_a_table_without_chunks_beside_decodes_says_that_nothing_was_fitted():
    """They are what the constants are for."""
    rows = make_rows(DatasheetSource(roofline_of(load_model("tiny"), 1, load_hardware("a40"))))
    alone = rows[(rows["decodes"] == 0) | (rows["prefills"] == 0)]
    made = with_attention_model(pd.DataFrame(alone), metadata())
    assert made.attention_model is None
    assert made.notes[-1] == NOT_FITTED
