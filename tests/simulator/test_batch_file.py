"""Files of batches: what is read, and every mistake as one message with file, line and key."""

from pathlib import Path

import pytest

from simulator.batch_file import LONGEST_LINE, ListedBatch, read_batches
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


def test_a_line_of_megabytes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """A character more than the longest line, which is read: it could take gigabytes as objects."""
    assert len(read_batches(write(tmp_path, GOOD.ljust(LONGEST_LINE))).batches) == 1
    with pytest.raises(
        InputError, match=r"line 2: a line of 1,000,001 characters is no batch .* at most 1,000,000 are"
    ):
        read_batches(write(tmp_path, GOOD, "[" * (LONGEST_LINE + 1)))


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
        (tmp_path / "binary", "not a text file"),
    ):
        with pytest.raises(InputError, match=expected):
            read_batches(path)
