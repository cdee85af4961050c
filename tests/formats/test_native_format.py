"""The native trace format: what a good file means."""

import gzip
import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.formats import format_names, read_trace

HEADER = "arrival_s,prompt_tokens,output_tokens\n"


def test_plain_rows(read):
    """The three required columns become nanoseconds and tokens, int64."""
    trace = read(HEADER + "0,10,5\n0.5,20,6\n")
    assert trace.arrival_ns.tolist() == [0, 500_000_000]
    assert trace.prompt_tokens.tolist() == [10, 20]
    assert trace.output_tokens.tolist() == [5, 6]
    assert {trace.arrival_ns.dtype, trace.prompt_tokens.dtype, trace.output_tokens.dtype} == {np.dtype(np.int64)}
    assert (trace.request_id, trace.priority, trace.session_id, trace.prefix_ids) == (None,) * 4
    assert trace.notes == ()


def test_columns_in_any_order(read):
    """Columns are found by name, with all optional ones and an empty prefix."""
    trace = read(
        "prefix_ids,session_id,output_tokens,request_id,prompt_tokens,priority,arrival_s\n"
        "1 2 3,alice,5,007,10,-1,0\n,,6,b,20,2,1.5\n"
    )
    assert trace.prefix_ids == ((1, 2, 3), ())
    assert trace.session_id == ("alice", "")
    assert trace.request_id == ("007", "b")
    assert trace.priority is not None
    assert trace.priority.tolist() == [-1, 2]
    assert trace.arrival_ns.tolist() == [0, 1_500_000_000]
    assert trace.output_tokens.tolist() == [5, 6]


def test_arrivals_are_not_rebased(read):
    """The first arrival stays where it is."""
    assert read(HEADER + "100,1,1\n").arrival_ns.tolist() == [100_000_000_000]


def test_half_a_nanosecond_rounds_to_even(read):
    """0.5 ns is 0 and 1.5 ns is 2."""
    trace = read(HEADER + "0.0000000005,1,1\n0.0000000015,1,1\n")
    assert trace.arrival_ns.tolist() == [0, 2]


def test_a_whole_float_is_a_length(read):
    """12.0 and 1e3 are lengths, as spreadsheets and pandas write them."""
    assert read(HEADER + "0,12.0,1e3\n").prompt_tokens.tolist() == [12]


def test_equal_arrivals_keep_file_order(read):
    """Requests that arrive together stay in file order."""
    assert read(HEADER + "1,1,1\n1,2,1\n1,3,1\n").prompt_tokens.tolist() == [1, 2, 3]


def test_blank_lines_inside_are_counted(read):
    """A blank line between rows is skipped with a note; those at the end are nobody's concern."""
    trace = read("\n" + HEADER + "0,1,1\n\n  \n1,2,2\n\n\n")
    assert trace.prompt_tokens.tolist() == [1, 2]
    assert trace.notes == ("skipped 3 blank lines (first: line 1)",)
    assert read(HEADER + "0,1,1\n\n\n").notes == ()


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_any_line_end(read, line_end):
    """Unix, Windows and old Mac line ends, with or without the last one."""
    content = (HEADER + "0,1,2\n1,3,4\n").replace("\n", line_end)
    assert read(content).output_tokens.tolist() == [2, 4]
    assert read(content.removesuffix(line_end)).output_tokens.tolist() == [2, 4]


def test_byte_order_mark_is_tolerated(read):
    """A UTF-8 byte order mark is no part of the first column's name."""
    assert len(read(b"\xef\xbb\xbf" + HEADER.encode() + b"0,1,1\n")) == 1


def test_quoted_fields(read):
    """Quoted ids may hold commas and line ends, and the rows behind them keep their line numbers."""
    trace = read("request_id," + HEADER + '"a,\nb",0,1,1\n"c ""d""",1,2,2\n')
    assert trace.request_id == ("a,\nb", 'c "d"')


def test_accents_in_ids(read):
    """Ids are UTF-8."""
    assert read("request_id," + HEADER + "é1,0,1,1\nü2,1,1,1\n").request_id == ("é1", "ü2")


def test_provenance(read, tmp_path):
    """The trace says its name, format, path and the hash of the file's bytes."""
    content = HEADER + "0,1,1\n"
    trace = read(content, name="my.chat.csv")
    assert (trace.name, trace.format, trace.path) == ("my.chat", "native", str(tmp_path / "my.chat.csv"))
    assert trace.sha256 == hashlib.sha256(content.encode()).hexdigest()


def test_gzip(read):
    """A gzip file reads as its content; the hash is of the file."""
    packed = gzip.compress((HEADER + "0,7,1\n").encode())
    trace = read(packed, name="chat.csv.gz")
    assert trace.prompt_tokens.tolist() == [7]
    assert (trace.name, trace.sha256) == ("chat", hashlib.sha256(packed).hexdigest())


def test_formats_are_found_by_being_there():
    """Each module without a leading underscore is a format."""
    assert {"native", "azure"} <= set(format_names())


ROWS = st.lists(
    st.tuples(
        st.integers(0, 10**12),
        st.integers(1, 10**9),
        st.integers(1, 10**9),
        st.integers(-(2**63), 2**63 - 1),
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6).map(str.strip),
        st.lists(st.integers(0, 2**64), max_size=4),
    ),
    min_size=1,
    max_size=20,
)


@settings(deadline=None)  # the first example imports parsers
@given(rows=ROWS, quote=st.booleans(), line_end=st.sampled_from(["\n", "\r\n"]))
def test_what_is_written_reads_back(rows, quote, line_end):
    """Any native trace reads back equal, with plain fields (read at once) or quoted ones (row by row)."""
    rows = sorted(rows, key=lambda row: row[0])
    lines = ["arrival_s,prompt_tokens,output_tokens,priority,session_id,prefix_ids"]
    for arrival_us, prompt, output, priority, session, prefix in rows:
        if quote or any(letter in session for letter in ',"\r\n'):
            session = '"' + session.replace('"', '""') + '"'
        arrival = f"{arrival_us // 10**6}.{arrival_us % 10**6:06}"
        lines.append(f"{arrival},{prompt},{output},{priority},{session},{' '.join(map(str, prefix))}")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        path.write_bytes((line_end.join(lines) + line_end).encode())
        trace = read_trace(path)
    assert trace.arrival_ns.tolist() == [row[0] * 1000 for row in rows]
    assert trace.prompt_tokens.tolist() == [row[1] for row in rows]
    assert trace.output_tokens.tolist() == [row[2] for row in rows]
    assert trace.priority is not None
    assert trace.priority.tolist() == [row[3] for row in rows]
    assert trace.session_id == tuple(row[4] for row in rows)
    assert trace.prefix_ids == tuple(tuple(row[5]) for row in rows)


FIELDS = st.one_of(
    st.sampled_from(["0", "1", "2", "12.0", "12.5", " 3 ", "+4", "-1", "nan", "inf", "1e3", "1e400", "1_0", "0x1"]),
    st.sampled_from(["", "abc", "9" * 30, "9223372036854775807", "9223372036854775808", "1d5", "True", ".5", "5."]),
    st.text("0123456789.eE+-_ \u0661", max_size=5),
)


def outcome(path, row):
    """What a file of this one row means, or how it is wrong."""
    path.write_text(f"priority,{HEADER}{','.join(row)}\n", encoding="utf-8")
    try:
        trace = read_trace(path)
    except InputError as error:
        return str(error)
    columns = (trace.arrival_ns, trace.prompt_tokens, trace.output_tokens, trace.priority)
    return [column.tolist() for column in columns if column is not None]


@settings(deadline=None)  # the first example imports parsers
@given(place=st.integers(0, 3), field=FIELDS)
def test_quoting_changes_nothing(place, field):
    """A plain field (read at once) and a quoted one (row by row) mean the same, or are the same mistake."""
    with TemporaryDirectory() as folder:
        plain, quoted = (
            outcome(Path(folder) / "trace.csv", ["1"] * place + [quote + field + quote] + ["1"] * (3 - place))
            for quote in ("", '"')
        )
    assert plain == quoted
