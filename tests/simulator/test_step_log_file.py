"""A step log becomes arrays; what cannot be is named with its line."""

import gzip

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.step_log_file import read_step_log
from simulator.step_log_rows import COLUMNS, is_step_log

HEADER = ",".join(COLUMNS)
ROWS = [
    "7,0,1,2,3,1,0,0,0,0,0:0:8 1:4:2,",
    "8,4,5,6,7,0,2,2,15,9,2:8:5,3 1",
    "10,6.5,7,9,10,0,2,1,10,10,,",
]


@pytest.fixture
def log(tmp_path):
    """The path of a log of these lines, in gzip members of two rows unless plain."""

    def write(rows, header=HEADER, plain=False, cut=0):
        path = tmp_path / ("steps.csv" if plain else "steps.csv.gz")
        batches = ["".join(f"{line}\n" for line in part) for part in ([header, *rows[:2]], rows[2:])]
        members = "".join(batches).encode() if plain else b"".join(gzip.compress(part.encode()) for part in batches)
        path.write_bytes(members[: len(members) - cut])
        return path

    return write


@pytest.mark.parametrize("plain", [False, True])
def test_a_log_becomes_a_column_a_quantity(log, plain):
    """Gzip or plain, chunks and preempted requests as tuples, and lines to name rows by."""
    steps = read_step_log(log(ROWS, plain=plain))
    assert steps.line.tolist() == [2, 3, 4]
    assert steps.step.tolist() == [7, 8, 10]
    assert (steps.output_ready_s - steps.schedule_end_s).tolist() == [1, 1, 2]
    assert (steps.decodes.tolist(), steps.decode_context.tolist(), steps.longest.tolist()) == (
        [0, 2, 1],
        [0, 15, 10],
        [0, 9, 10],
    )
    assert steps.chunks == (((0, 0, 8), (1, 4, 2)), ((2, 8, 5),), ())
    assert steps.preempted == ((), (3, 1), ())
    assert (steps.num_chunks.tolist(), steps.prefill_tokens.tolist()) == ([2, 1, 0], [10, 5, 0])
    assert steps.tokens.tolist() == [10, 7, 1]
    assert steps.notes == ()


def test_a_step_that_is_scheduled_before_the_last_is_done_is_pipelined(log):
    """Step 10 starts at 6.5 s, step 8 is applied at 7 s."""
    assert np.array_equal(read_step_log(log(ROWS)).pipelined, [False, False, True])


def test_a_cut_off_end_is_a_note(log):
    """What is before it is read."""
    steps = read_step_log(log(ROWS, cut=9))
    assert len(steps) in (2, 3)
    assert "cut off" in steps.notes[0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("11,nan,7,9,10,0,2,1,10,10,,", "line 5: times must not decrease"),
        ("11,7,7,inf,inf,0,2,1,10,10,,", "line 5: times must not decrease"),
        ("11,7,7,9,10,0,2,1,10,10,1:8,", "line 5: prefill 1:8 should be request:context_before:tokens"),
        ("11,7,7,9,10,0,2,1,10,10,1:-8:2,", "line 5: prefill 1:-8:2 -8 should be from 0"),
        ("11,7,7,9,10,0,2,1,10,10,,x", "line 5: invalid literal"),
        ("11,7,7,9,10,0,2,1,10,10,,,surplus", "line 5: not 12 columns"),
        (f"11,7,7,9,10,{2**63},2,1,10,10,,", "line 5: num_waiting"),
        ("11,7,7", "line 5: not 12 columns"),
    ],
)
def test_a_row_that_cannot_be_is_named(log, row, message):
    """File, line and reason."""
    path = log([*ROWS, row])
    with pytest.raises(InputError) as raised:
        read_step_log(path)
    assert str(raised.value).startswith(f"{path}, {message}")


def test_no_steps_and_other_files_are_refused(log, tmp_path):
    """A header alone, other columns, a folder, and a file that only looks like gzip."""
    with pytest.raises(InputError, match="no steps"):
        read_step_log(log([]))
    with pytest.raises(InputError, match="line 1: not a step log"):
        read_step_log(log(ROWS, header="a,b"))
    (tmp_path / "noise.csv.gz").write_bytes(b"\x1f\x8bnoise")
    for path in (tmp_path, tmp_path / "noise.csv.gz"):
        with pytest.raises(InputError, match="cannot be read"):
            read_step_log(path)


def test_a_log_is_recognised_by_its_header(log, tmp_path):
    """Under any name."""
    assert is_step_log(log(ROWS))
    assert is_step_log(log(ROWS, plain=True))
    assert not is_step_log(log(ROWS, header="a,b"))
    assert not is_step_log(tmp_path)
