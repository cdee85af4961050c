"""Files of batches: what is read, and every mistake as one message with file, line and key."""

import hashlib
import tracemalloc
from pathlib import Path

import pytest

from simulator.batch_file import MOST_BYTES, ListedBatch, read_batches
from simulator.errors import InputError

GOOD = '{"id": "b1", "prefills": [[0, 64], [512, 3]], "decodes": [1, 121]}'


def write(folder: Path, *lines: str) -> Path:
    path = folder / "batches.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_batch(tmp_path: Path) -> None:
    """Chunks, decodes and their sums: 64 + 3 tokens of prompts and two decodes; four sequences."""
    [batch] = read_batches(write(tmp_path, GOOD)).batches
    assert batch == ListedBatch("b1", ((0, 64), (512, 3)), (1, 121), 1)
    assert (batch.tokens, batch.sequences, batch.decode_context) == (69, 4, 122)


def test_blank_lines_carriage_returns_and_a_byte_order_mark(tmp_path: Path) -> None:
    """None of them is a mistake, and lines are counted with them."""
    path = tmp_path / "batches.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode() + b"\r\n\r\n" + GOOD.replace("b1", "b2").encode())
    assert [(batch.id, batch.line) for batch in read_batches(path).batches] == [("b1", 1), ("b2", 3)]


def batch(prefills: str = "[]", decodes: str = "[]", name: str = '"b"') -> str:
    return f'{{"id": {name}, "prefills": {prefills}, "decodes": {decodes}}}'


MISTAKES = {
    "{'id': 1}": "not JSON at character 2: Expecting property name",
    GOOD + GOOD: "not JSON at character 67: Extra data",
    "[1]": "should be an object with id, prefills, decodes, not [1]",
    '{"id": "b", "prefills": [], "decode": [3]}': '"decode": unknown key; did you mean "decodes"?',
    '{"id": "b", "prefills": [[0, 5]]}': "decodes: missing",
    '{"id": "b", "id": "c", "prefills": [], "decodes": [1]}': "id: the key is there twice",
    batch(): "an empty batch",
    batch(decodes="[1]", name="7"): "id: should be a text of printable characters, not 7",
    batch(decodes="[1]", name='" "'): 'id: should be a text of printable characters, not " "',
    batch(decodes="[1]", name='"a\\nb"'): "id: should be a text of printable characters",
    batch(decodes="[1]", name='"\\ud800"'): "id: should be a text of printable characters",
    batch(decodes="5"): "decodes: should be a list, not 5",
    batch(prefills='{"0": 5}'): 'prefills: should be a list, not {"0": 5}',
    batch(prefills="[5]"): "prefills[0]: should be [context_before, new_tokens], not 5",
    batch(prefills="[[0, 5], [0, 5, 1]]"): "prefills[1]: should be [context_before, new_tokens], not [0, 5, 1]",
    batch(prefills="[[0, 0]]"): "prefills[0][1]: should be a whole number from 1 to 100000000",
    batch(prefills="[[-1, 5]]"): "prefills[0][0]: should be a whole number from 0 to 100000000",
    batch(decodes="[3, 0]"): "decodes[1]: should be a whole number from 1 to 100000000"
    " (a decode attends to its own new token), not 0; the nearest is 1",
    batch(decodes="[2.6]"): "not 2.6; the nearest is 3",
    batch(decodes="[2.0]"): "not 2.0; the nearest is 2",
    batch(decodes="[1e400]"): "not Infinity; the nearest is 100000000",
    batch(decodes="[NaN]"): "decodes[0]: should be a whole number",
    batch(decodes="[100000001]"): "the nearest is 100000000",
    batch(decodes=f"[1{'0' * 5000}]"): "not readable as JSON",
    batch(decodes="[true]"): "decodes[0]: should be a number of tokens, not true",
    batch(decodes='["12"]'): 'decodes[0]: should be a number of tokens, not "12"',
    batch(decodes="[null]"): "decodes[0]: should be a number of tokens, not null",
    "[" * 100_000: "not readable as JSON",
}


@pytest.mark.parametrize(("text", "expected"), MISTAKES.items(), ids=range(len(MISTAKES)))
def test_mistakes(tmp_path: Path, text: str, expected: str) -> None:
    """Each names the file and the line, here the second, and what would be right; in one line."""
    path = write(tmp_path, GOOD, text)
    with pytest.raises(InputError) as caught:
        read_batches(path)
    message = str(caught.value)
    assert message.startswith(f"{path}, line 2")
    assert expected in message
    assert "\n" not in message
    assert len(message) < len(str(path)) + 300


def test_a_doubled_id_names_the_first(tmp_path: Path) -> None:
    """Rows of the result are found by it."""
    with pytest.raises(InputError, match=r'line 3, id: "b1" is the id of line 1 already'):
        read_batches(write(tmp_path, GOOD, "", GOOD))


def test_files_without_batches(tmp_path: Path) -> None:
    """Empty, missing, a folder, not text."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path, expected in (
        (write(tmp_path, ""), "no batches; a line is"),
        (tmp_path / "none.jsonl", "No such file"),
        (tmp_path, "directory"),
        (tmp_path / "binary", "line 1: not a text file"),
    ):
        with pytest.raises(InputError, match=expected):
            read_batches(path)


def test_the_longest_line(tmp_path: Path) -> None:
    """So many bytes with the line's end are read; one more is refused by its number, whatever the line holds."""
    spaces = " " * (MOST_BYTES - 1 - len(GOOD))
    fits = write(tmp_path, GOOD.replace("b1", "b2"), GOOD + spaces)
    assert [batch.id for batch in read_batches(fits).batches] == ["b2", "b1"]
    with pytest.raises(InputError, match=f"line 2: longer than {MOST_BYTES} bytes"):
        read_batches(write(tmp_path, GOOD.replace("b1", "b2"), GOOD + spaces + " "))


def test_a_line_that_is_too_long_is_not_read_to_its_end(tmp_path: Path) -> None:
    """A file of 64 MB without a line's end costs no more memory than the longest line."""
    path = tmp_path / "batches.jsonl"
    with path.open("wb") as file:
        file.truncate(64 * 2**20)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="line 1: longer than"):
            read_batches(path)
        assert tracemalloc.get_traced_memory()[1] < 8 * MOST_BYTES
    finally:
        tracemalloc.stop()


def test_the_hash_is_that_of_the_file(tmp_path: Path) -> None:
    """Byte for byte, marks, blank lines and a last line without an end included: --resume goes by it."""
    path = tmp_path / "batches.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode() + b"\r\n\n" + GOOD.replace("b1", "b\u00e92").encode())
    assert read_batches(path).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
