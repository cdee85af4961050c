"""Prices of whole steps in two tables."""

from dataclasses import replace

import pytest

from profiler.imports.steps import KINDS, differences, line
from simulator.errors import InputError
from simulator.named_tables import find_table

TABLE = find_table("h200/llama-3.1-8b")


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_doubled_times_doubles_every_price(kind):
    """And the table itself does not differ from itself."""
    table = replace(TABLE, metadata=replace(TABLE.metadata, attention_model=None))  # which would need doubling, too
    doubled = replace(table, rows={**table.rows, "time_us": table.rows["time_us"] * 2})
    assert differences(table, doubled, kind, 50) == pytest.approx([1.0] * 50, abs=1e-3)
    assert differences(TABLE, TABLE, kind, 50) == [0.0] * 50


def test_a_table_from_the_datasheet_prices_steps_nearly_as_the_measured_one(imported):
    """The 8B model on an H200, within a tenth in the median."""
    other = imported("datasheet", "--gpu", "h200", model="llama-3.1-8b")
    for kind in KINDS:
        found = sorted(map(abs, differences(TABLE, other, kind)))
        assert found[150] < 0.10
    assert len(line(TABLE, other)) == 3


def test_tables_of_two_models_are_not_compared():
    """Their prices say nothing of each other."""
    with pytest.raises(InputError, match=r"is of llama-13b, not llama-3\.1-8b"):
        differences(TABLE, find_table("h200/llama-13b"), "decode")
