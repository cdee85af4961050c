"""The check of step logs: what is whole passes with a summary, what cannot be is named with its line."""

import gzip

import pytest

from profiler.check_steps import main
from simulator.step_log_rows import COLUMNS

HEADER = ",".join(COLUMNS)
GOOD = [
    "0,0,1,2,3,1,0,0,0,0,0:0:8 1:0:2,",
    "1,4,5,6,7,0,2,2,15,9,,",
    "2,5,6,9,10,0,2,1,10,10,,1",
    "3,8,9,11,12,0,0,0,0,0,,",
]


@pytest.fixture
def checked(tmp_path, capsys):
    """(exit status, standard output, standard error) for a log of these lines, cut to a part of its bytes."""

    def run(lines, header=HEADER, cut=0):
        batches = ([header], lines[:2], lines[2:])
        members = [gzip.compress("".join(f"{line}\n" for line in batch).encode()) for batch in batches]
        written = b"".join(members)
        (tmp_path / "steps.csv.gz").write_bytes(written[: len(written) - cut])
        status = main([str(tmp_path / "steps.csv.gz")])
        return status, *capsys.readouterr()

    return run


def test_a_whole_log_is_summed_up(checked):
    """Steps by kind, requests, preemptions, and the pace of decode-only steps: here 4 s and 3 s."""
    status, printed, _ = checked(GOOD)
    assert status == 0
    assert "4 steps (2 decode only, 1 with prefills, 1 empty), 2 requests, 1 preemptions; 3500.000 ms" in printed


def test_a_cut_off_end_is_said_and_the_rest_is_read(checked):
    """As a kill in the moment of a write leaves it."""
    for cut in range(1, 54):  # of the 55 bytes of the last batch; one byte alone is not known as a batch
        status, printed, said = checked(GOOD, cut=cut)
        assert status == 0
        assert any(f"{steps} steps" in printed for steps in (2, 3, 4))
        assert "the last batch is cut off" in said


@pytest.mark.parametrize(
    ("place", "line", "message"),
    [
        (0, "0,2,1,2,3,1,0,0,0,0,0:0:8,", "line 2: times must not decrease"),
        (1, "1,4,5,6,7,0,2,2,15,7,,", "line 3: 2 decodes with contexts up to 7 cannot have 15 in sum"),
        (1, "0,4,5,6,7,0,2,2,15,9,,", "line 3: step 0 follows step 0"),
        (2, "2,3,6,9,10,0,2,1,10,10,,1", "line 4: schedule_start_s is before that of step 1"),
        (2, "2,5,6,9,10,0,2,1,10,10,1:8:0,", "line 4: prefill 1:8:0 has no tokens"),
        (2, "2,5,6", "line 4: "),
        (2, "2,5,6,9,10,0,2,one,10,10,,1", "line 4: invalid literal"),
    ],
)
def test_what_cannot_be_is_named_with_its_line(checked, place, line, message):
    """Exit status 2, no traceback."""
    status, _, said = checked([*GOOD[:place], line, *GOOD[place + 1 :]])
    assert status == 2
    assert message in said


def test_another_file_is_no_step_log(checked, tmp_path, capsys):
    """By its columns, or as no gzip file."""
    assert checked(GOOD, header="a,b")[0] == 2
    (tmp_path / "plain.csv.gz").write_text("step\n", encoding="utf-8")
    assert main([str(tmp_path / "plain.csv.gz")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_log_of_no_decodes_has_no_pace(checked):
    """A server that was only started, or saw one prompt."""
    assert checked([])[1].endswith("0 requests, 0 preemptions\n")
    assert checked(GOOD[:1])[1].endswith("2 requests, 0 preemptions\n")
