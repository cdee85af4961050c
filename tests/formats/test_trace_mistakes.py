"""Files that are wrong: the message names the line, the column and the way on; repairs are counted."""

import gzip
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.formats import read_trace

HEADER = "arrival_s,prompt_tokens,output_tokens\n"
GOOD = "0,10,5\n"


def test_missing_file(tmp_path):
    """A path that does not exist is named, with the file beside it that was probably meant."""
    (tmp_path / "conversation.csv").write_text(HEADER + GOOD)
    with pytest.raises(InputError, match=r'conversatoin\.csv: no such file; did you mean ".*conversation\.csv"'):
        read_trace(tmp_path / "conversatoin.csv")


def test_folder(tmp_path):
    """A folder is not a trace."""
    with pytest.raises(InputError, match="is a folder"):
        read_trace(tmp_path)


@pytest.mark.parametrize("content", ["", "\n\n", " \r\n", "\ufeff"])
def test_empty(refused, content):
    """A file without a line that says something is empty."""
    assert refused(content).startswith("trace.csv: the file is empty")


@pytest.mark.parametrize("content", [HEADER, HEADER.strip(), HEADER + "\n\n"])
def test_header_alone(refused, content):
    """A header without rows is no trace."""
    assert refused(content).startswith("trace.csv: there is no request")


def test_binary(refused):
    """A file with NUL bytes is binary."""
    assert refused(b"PAR1\x00\x01\x02").startswith("trace.csv: the file is binary")


def test_utf16(refused):
    """Spreadsheets save UTF-16; say so."""
    assert "UTF-16; save it as UTF-8" in refused((HEADER + GOOD).encode("utf-16"))


def test_not_utf8(refused):
    """A byte that is not UTF-8 is shown with its line."""
    message = refused(b"request_id," + HEADER.encode() + b"a,0,1,1\r\n\r\n\xe9,1,1,1\r\n")
    assert message.startswith("trace.csv, line 4: byte 0xe9 is not UTF-8")


def test_damaged_gzip(refused):
    """A gzip file that ends early is damaged."""
    assert "gzip file is damaged" in refused(gzip.compress((HEADER + GOOD).encode())[:-9])


def test_misspelt_column(refused):
    """A misspelt required column is named, and the right one suggested."""
    message = refused("\narrival_s,promt_tokens,output_tokens\n0,1,1\n")
    assert message.startswith('trace.csv, line 2, promt_tokens: unknown column; did you mean "prompt_tokens"?')


def test_misspelt_optional_column(refused):
    """A column beside the required ones that is not known is not passed over."""
    message = refused("arrival_s,prompt_tokens,output_tokens,prefix_id\n0,1,1,3\n")
    assert message.startswith('trace.csv, line 1, prefix_id: unknown column; did you mean "prefix_ids"?')


def test_missing_column(refused):
    """A required column that is missing is named."""
    message = refused("arrival_s,prompt_tokens\n0,1\n")
    assert message.startswith("trace.csv, line 1, output_tokens: the column is missing")


def test_doubled_column(refused):
    """A column that is there twice is ambiguous."""
    message = refused("arrival_s,prompt_tokens,output_tokens,prompt_tokens\n0,1,1,2\n")
    assert message.startswith("trace.csv, line 1, prompt_tokens: the column is there twice")


def test_unknown_header(refused):
    """A header that resembles none lists the known formats; so does a file without a header."""
    for first in ("0.5,10,5", '{"a": 1}', "Zeit,Anzahl", "x" * 10_000):
        message = refused(f"{first}\n0,1,1\n")
        assert message.startswith("trace.csv, line 1: no known trace format begins with")
        assert "native (CSV: arrival_s," in message
        assert len(message) < 600


@pytest.mark.parametrize(("separator", "noun"), [(";", "semicolons"), ("\t", "tabs")])
def test_other_separator(refused, separator, noun):
    """A table with semicolons or tabs is told from an unknown format."""
    message = refused((HEADER + GOOD).replace(",", separator))
    assert message == f"trace.csv, line 1: the fields are separated by {noun}; separate them by commas"


BROKEN = [
    ("1,abc,5", 'prompt_tokens: "abc" is not a number; write a number of tokens'),
    ("1,10,", "output_tokens: the field is empty; write a number of tokens"),
    ("1,12.5,5", 'prompt_tokens: "12.5" is not a whole number of tokens; write 12 or 13'),
    ("1,0.5,5", 'prompt_tokens: "0.5" is not a whole number of tokens; write 1'),
    ("1,10,99999999999999999999", "output_tokens: "),
    ("1,10,1000000001", "output_tokens: 1000000001 tokens, and the most that is believed is 1000000000"),
    ("1,1e400,5", 'prompt_tokens: "1e400" is too large'),
    ("soon,10,5", 'arrival_s: "soon" is not a number; write a number of seconds'),
    ("00:01,10,5", 'arrival_s: "00:01" is not a number'),
    (",10,5", "arrival_s: the field is empty"),
    ("9300000000,10,5", 'arrival_s: "9300000000" seconds is more than the 292 years'),
    ("1e400,10,5", 'arrival_s: "1e400" is too large'),
    ("1_000,10,5", 'arrival_s: "1_000" is not a number'),
]


@pytest.mark.parametrize(("row", "fault"), BROKEN)
def test_broken_field(refused, row, fault):
    """A field that says nothing sensible is named with line and column, and stays an error under repair."""
    content = HEADER + GOOD + row + "\n"
    assert refused(content).startswith(f"trace.csv, line 3, {fault}")
    assert refused(content, repair=True) == refused(content)


def test_too_few_and_too_many_fields(refused):
    """A row of another width is an error, also under repair and also if another row makes up for it."""
    for rows, line, count in (
        ("0,1\n", 2, "2 fields"),
        ("0,1,1\n0,1,1,1\n", 3, "4 fields"),
        ("x\n", 2, "1 field"),
    ):
        message = refused(HEADER + rows, repair=True)
        assert message.startswith(f"trace.csv, line {line}: {count} where the header has 3")
    assert "line 2: 2 fields" in refused(HEADER + "0,1\n0,1,1,1\n")


def test_short_row_before_optional_columns(refused):
    """A missing optional field is not an empty one."""
    message = refused("arrival_s,prompt_tokens,output_tokens,session_id\n0,1,1,\n1,1,1\n")
    assert message.startswith("trace.csv, line 3: 3 fields where the header has 4")


def test_unmatched_quotes(refused):
    """A quote that never closes does not swallow the rest of the file."""
    message = refused("request_id," + HEADER + 'a,0,1,1\n"b,1,1,1\nc,2,1,1\n')
    assert message.startswith("trace.csv, line 3: the quotes in this row do not match")


def test_odd_prefix_ids(refused):
    """Block ids are integers."""
    for prefix in ("1 two", "1_0", "1.5", "\u0661"):
        message = refused(f"arrival_s,prompt_tokens,output_tokens,prefix_ids\n0,1,1,1 2\n0,1,1,{prefix}\n")
        assert message.startswith(f'trace.csv, line 3, prefix_ids: "{prefix}" is not block ids')


def test_odd_priority(refused):
    """Priorities are integers of 64 bits."""
    header = "arrival_s,prompt_tokens,output_tokens,priority\n"
    assert "line 2, priority: the field is empty" in refused(header + "0,1,1,\n")
    assert "line 2, priority: " in refused(header + "0,1,1,9223372036854775808\n")


def test_doubled_request_id(refused):
    """Two requests of one name are an error that names both lines; a repair does not choose."""
    content = "request_id," + HEADER + "a,0,1,1\nb,1,1,1\n\na,2,1,1\n"
    message = refused(content)
    assert message.startswith('trace.csv, line 5, request_id: "a" is already on line 2; give each request its own')
    assert refused(content, repair=True) == message


def test_empty_request_id(refused):
    """A request without a name among named ones is an error."""
    assert "line 3, request_id: the field is empty" in refused("request_id," + HEADER + "a,0,1,1\n,1,1,1\n")


UNRUNNABLE = [
    ("1,0,5", "prompt_tokens: 0 tokens", "with zero tokens"),
    ("1,10,0", "output_tokens: 0 tokens", "with zero tokens"),
    ("1,-3,5", "prompt_tokens: -3 tokens", "with a negative number"),
    ("1,10,-1.0", "output_tokens: -1 tokens", "with a negative number"),
    ("-0.5,10,5", 'arrival_s: "-0.5" seconds is before', "with a negative number"),
    ("nan,10,5", 'arrival_s: "nan" is not a finite', "with a number that is not finite"),
    ("-inf,10,5", 'arrival_s: "-inf" is not a finite', "with a number that is not finite"),
    ("1,NaN,5", 'prompt_tokens: "NaN" is not a finite', "with a number that is not finite"),
]


@pytest.mark.parametrize(("row", "fault", "reason"), UNRUNNABLE)
def test_row_that_cannot_run(read, refused, row, fault, reason):
    """A row that no engine can run is refused with the way on, or under repair dropped and counted."""
    content = HEADER + GOOD + row + "\n2,11,6\n" + row + "\n"
    message = refused(content)
    assert message.startswith(f"trace.csv, line 3, {fault}")
    assert message.endswith(": remove the row, or pass --repair")
    trace = read(content, repair=True)
    assert trace.prompt_tokens.tolist() == [10, 11]
    assert trace.notes == (f"dropped 2 rows {reason} (first: line 3)",)


def test_broken_syntax_beside_what_could_be_dropped(refused):
    """A row with a mistake that cannot be mended is not dropped for another that could."""
    assert refused(HEADER + "0,0,abc\n", repair=True).startswith('trace.csv, line 2, output_tokens: "abc"')


def test_nothing_left(refused):
    """A file of which a repair leaves nothing says why."""
    message = refused(HEADER + "0,0,1\n", repair=True)
    assert message.startswith("trace.csv: no request is left (dropped 1 row with zero tokens (first: line 2))")


def test_unsorted(read, refused):
    """Rows out of order are refused at the first of them, or under repair sorted and counted."""
    content = HEADER + "0,1,1\n5,2,1\n\n3,3,1\n4,4,1\n5,5,1\n"
    message = "trace.csv, line 5, arrival_s: arrives 2 s before the request on line 3: sort it, or pass --repair"
    assert refused(content) == message
    trace = read(content, repair=True)
    assert trace.arrival_ns.tolist() == [0, 3 * 10**9, 4 * 10**9, 5 * 10**9, 5 * 10**9]
    assert trace.prompt_tokens.tolist() == [1, 3, 4, 2, 5]
    assert trace.notes == (
        "skipped 1 blank line (first: line 4)",
        "sorted 2 rows that were out of order (first: line 5)",
    )


def test_sorting_moves_every_column(read):
    """Optional columns move with their rows."""
    trace = read("request_id,priority,prefix_ids," + HEADER + "a,1,1 2,5,1,1\nb,2,3,0,1,1\n", repair=True)
    assert (trace.request_id, trace.prefix_ids) == (("b", "a"), ((3,), (1, 2)))
    assert trace.priority is not None
    assert trace.priority.tolist() == [2, 1]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_line_numbers_with_any_line_end(refused, line_end):
    """Line numbers count blank lines and lines within quotes, whatever ends them."""
    content = '\nrequest_id,arrival_s,prompt_tokens,output_tokens\n\n"a\nb",0,1,1\n\nc,1,0,1\n'
    assert refused(content.replace("\n", line_end)).startswith("trace.csv, line 7, prompt_tokens: 0 tokens")


def test_repairing_a_good_file_changes_nothing(read):
    """A file without faults reads the same, without notes."""
    assert read(HEADER + GOOD, repair=True).notes == ()


HEADS = st.sampled_from(
    [b"", HEADER.encode(), b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n", b"\x1f\x8b", b"\xef\xbb\xbf"]
)
ROWS = st.lists(
    st.sampled_from([b"0", b"1.5", b",", b",", b",", b"\n", b"\r\n", b"\r", b'"', b"-1", b"2023-11-16 18:15:46.1"])
)


@settings(deadline=None)  # the first example imports parsers
@given(head=HEADS, rows=ROWS, tail=st.binary(max_size=40), repair=st.booleans())
def test_hostile_bytes(head, rows, tail, repair):
    """Whatever the bytes, the file is read or refused with InputError."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        path.write_bytes(head + b"".join(rows) + tail)
        try:
            trace = read_trace(path, repair=repair)
        except InputError:
            return
    assert len(trace) > 0
    assert min(trace.prompt_tokens.min(), trace.output_tokens.min()) >= 1
