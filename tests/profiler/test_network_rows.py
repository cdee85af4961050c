"""Readings of exchanges: the fastest kernel at each size, in words and in the CSV."""

import csv
import io

import pytest

from profiler.network_rows import COLUMNS, NCCL, ONE_SHOT, csv_of, fastest, kernels_by_size, shown
from tests.profiler.network_readings import reading

READINGS = [
    reading("send", 8192, 15.0),
    reading("all_reduce", 2**24, 75.0, NCCL),
    reading("all_reduce", 2**24, 98.0, ONE_SHOT),
    reading("all_reduce", 8192, 11.0, NCCL),
    reading("all_reduce", 8192, 6.5, ONE_SHOT),
    reading("all_reduce", 2**20, 18.0, NCCL),
    reading("all_reduce", 2**20, 13.0, ONE_SHOT),
]


def test_the_fastest_kernel_is_chosen_at_each_size():
    """Of each exchange by itself, sizes ascending."""
    chosen = [(each.exchange, each.size, each.kernel) for each in fastest(READINGS)]
    assert chosen == [
        ("all_reduce", 8192, ONE_SHOT),
        ("all_reduce", 2**20, ONE_SHOT),
        ("all_reduce", 2**24, NCCL),
        ("send", 8192, NCCL),
    ]


def test_words_tell_where_each_kernel_is_used():
    """Spans of sizes; a single size by itself."""
    assert kernels_by_size(fastest(READINGS)[:3]) == (
        "PyTorch's one-shot kernel on symmetric memory from 8 KB to 1 MB, NCCL at 16 MB"
    )


def test_the_csv_has_every_kernel():
    """And marks those that the network has."""
    rows = list(csv.DictReader(io.StringIO(csv_of(READINGS))))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == len(READINGS)
    assert [(row["bytes"], row["kernel"]) for row in rows if row["fastest"] == "yes"] == [
        ("8192", ONE_SHOT),
        (str(2**20), ONE_SHOT),
        (str(2**24), NCCL),
        ("8192", NCCL),
    ]
    assert list(rows[0].values())[4:9] == ["11.000", "9.900", "12.100", "31", "40"]


@pytest.mark.parametrize(
    ("size", "words"), [(48, "48 bytes"), (8192, "8 KB"), (3 * 2**19, "1536 KB"), (2**28, "256 MB"), (2**30, "1 GB")]
)
def test_sizes_in_words(size, words):
    """In the largest unit that is whole."""
    assert shown(size) == words
