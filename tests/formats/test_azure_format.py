"""Azure's traces of 2023 and 2024. The rows here are made up."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.formats import read_trace

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
AZURE_2023 = (
    HEADER + "\r\n2023-11-16 18:00:00.1234567,374,44\r\n2023-11-16 18:00:00.1234569,396,109\r\n"
    "2023-11-16 18:00:02.0000000,879,55"
)
AZURE_2024 = HEADER + (
    "\n2024-05-10 23:59:59.999999+00:00,2162,5\n2024-05-11 00:00:00+00:00,2399,6\n"
    "2024-05-11 00:00:00.000001+00:00,76,15\n"
)


def test_2023_keeps_seven_digits(read):
    """Stamps of 100 ns, CRLF, no line end after the last row; arrivals count from the first request."""
    trace = read(AZURE_2023)
    assert trace.format == "azure"
    assert trace.arrival_ns.tolist() == [0, 200, 1_876_543_300]
    assert trace.prompt_tokens.tolist() == [374, 396, 879]
    assert trace.output_tokens.tolist() == [44, 109, 55]


def test_2024_mixes_stamps_with_and_without_fraction(read):
    """A stamp on the full second has no fraction; nothing is lost between its neighbours."""
    assert read(AZURE_2024).arrival_ns.tolist() == [0, 1000, 2000]


def test_first_stamp_without_fraction(read):
    """The first row does not set the resolution of the rest."""
    trace = read(HEADER + "\n2024-05-12 00:00:00+00:00,1,1\n2024-05-12 00:00:00.0000001+00:00,1,1\n")
    assert trace.arrival_ns.tolist() == [0, 100]


def test_zones(read):
    """A stamp with another offset is the same moment elsewhere; without one it is UTC."""
    trace = read(HEADER + "\n2024-05-12 00:00:00,1,1\n2024-05-12T01:00:00.5+01:00,1,1\n2024-05-12T00:00:01Z,1,1\n")
    assert trace.arrival_ns.tolist() == [0, 500_000_000, 1_000_000_000]


def test_sorted_before_counting_from_the_first(read):
    """A repaired file counts from its earliest request, and says what was moved."""
    trace = read(HEADER + "\n2024-05-12 00:00:05,1,1\n2024-05-12 00:00:03,2,1\n", repair=True)
    assert trace.arrival_ns.tolist() == [0, 2_000_000_000]
    assert trace.prompt_tokens.tolist() == [2, 1]
    assert trace.notes == ("sorted 1 row that was out of order (first: line 3)",)


def test_odd_stamp_is_named(refused):
    """A stamp that is not one is named with its line, and an example."""
    for stamp in (
        "16/11/2023 18:15",
        "2023-11-16",
        "2023-13-01 00:00:00",
        "2023-11-16 24:00:01",
        "now",
        "",
        "nan",
    ):
        message = refused(f"{HEADER}\r\n2023-11-16 18:00:00.1234567,1,1\r\n{stamp},1,1\r\n")
        assert message.startswith(f'trace.csv, line 3, TIMESTAMP: "{stamp}" is not a time stamp; write it as in 2023')


def test_stamp_out_of_range(refused):
    """A year that nanoseconds cannot hold is refused."""
    assert "line 2, TIMESTAMP" in refused(f"{HEADER}\n9999-01-01 00:00:00,1,1\n")


def test_lengths_are_checked(refused):
    """The token columns have the rules of the native ones."""
    assert "line 2, GeneratedTokens: 0 tokens" in refused(f"{HEADER}\n2024-05-12 00:00:00,1,0\n")


STAMPS = st.one_of(
    st.builds(
        lambda moment, between, fraction, zone: f"{moment:%Y-%m-%d}{between}{moment:%H:%M:%S}{fraction}{zone}",
        st.datetimes(),
        st.sampled_from([" ", "T", "/", ""]),
        st.sampled_from(["", ".5", ".1234567", ".123456789", ".", ".1234567891"]),
        st.sampled_from(["", "Z", "+00:00", "-0530", "+02", " +00:00", "+24:00", "z", "x"]),
    ),
    st.sampled_from(["2023/11/16 18:15:46", "20231116 181546", "now", "today", "NaT", "2023-11-16 18:15:60"]),
)


def outcome(path, stamps, quote):
    """The arrivals of a file with these stamps, or how it is wrong."""
    path.write_text("\n".join([HEADER, *(f"{quote}{stamp}{quote},1,1" for stamp in stamps)]))
    try:
        return read_trace(path, repair=True).arrival_ns.tolist()
    except InputError as error:
        return str(error)


@settings(deadline=None)  # the first example imports parsers
@given(stamps=st.lists(STAMPS, min_size=1, max_size=4))
def test_quoting_changes_nothing(stamps):
    """Stamps read at once and stamps read row by row are the same moments, or the same mistake."""
    with TemporaryDirectory() as folder:
        plain, quoted = (outcome(Path(folder) / "trace.csv", stamps, quote) for quote in ("", '"'))
    assert plain == quoted


def test_three_centuries_are_refused(read):
    """Stamps 550 years apart do not fit the clock; each alone would."""
    with pytest.raises(InputError, match="more than 292 years"):
        read(HEADER + "\n1700-01-01 00:00:00,10,5\n2250-01-01 00:00:00,10,5\n")
