"""`python -m profiler.check_steps FILE...`: whether step logs are whole and make sense, and what is in them."""

import csv
import gzip
import statistics
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

from profiler.step_log import COLUMNS
from simulator.errors import InputError

CLOCKS = COLUMNS[1:5]
COUNTS = COLUMNS[5:10]


def rows_of(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, row) of a log; a last batch that a killed server left cut off ends it with a message."""
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise InputError(f"not a step log: its columns must be {', '.join(COLUMNS)}", path=path, line=1)
            for row in reader:
                yield reader.line_num, row
    except EOFError:
        print(f"{path}: the last batch is cut off; the rows before it are whole", file=sys.stderr)
    except (OSError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", path=path) from None


def check_row(row: dict[str, str], previous: dict[str, str] | None) -> None:
    """ValueError with the reason where a row cannot be."""
    times = [float(row[name]) for name in CLOCKS]
    if times != sorted(times):
        raise ValueError(f"times must not decrease from {CLOCKS[0]} to {CLOCKS[-1]}")
    decodes, total, longest = (int(row[name]) for name in COUNTS[2:])
    if any(int(row[name]) < 0 for name in COUNTS) or not longest <= total <= decodes * longest:
        raise ValueError(f"{decodes} decodes with contexts up to {longest} cannot have {total} in sum")
    for chunk in row["prefills"].split():
        _, _, tokens = (int(number) for number in chunk.split(":"))
        if tokens < 1:
            raise ValueError(f"prefill {chunk} has no tokens")
    if previous is not None:
        if int(row["step"]) <= int(previous["step"]):
            raise ValueError(f"step {row['step']} follows step {previous['step']}")
        for name in CLOCKS:
            if float(row[name]) < float(previous[name]):
                raise ValueError(f"{name} is before that of step {previous['step']}")


def summary(path: Path) -> str:
    """One line about a log; InputError with file and line for a row that cannot be."""
    kinds = {"decode only": 0, "with prefills": 0, "empty": 0}
    requests: set[str] = set()
    steps_ms: list[float] = []
    preemptions, previous = 0, None
    for line, row in rows_of(path):
        try:
            check_row(row, previous)
        except (TypeError, ValueError) as error:
            raise InputError(str(error), path=path, line=line) from None
        kinds["with prefills" if row["prefills"] else "decode only" if row["num_decodes"] != "0" else "empty"] += 1
        requests.update(chunk.partition(":")[0] for chunk in row["prefills"].split())
        preemptions += len(row["preempted"].split())
        if previous is not None and not row["prefills"] and row["num_decodes"] != "0":
            steps_ms.append(1e3 * (float(row["output_ready_s"]) - float(previous["output_ready_s"])))
        previous = row
    counted = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    text = f"{path}: {sum(kinds.values())} steps ({counted}), {len(requests)} requests, {preemptions} preemptions"
    if not steps_ms:
        return text
    return f"{text}; {statistics.median(steps_ms):.3f} ms from output to output of decode-only steps (median)"


def main(arguments: list[str]) -> int:
    """Print a line a file; 2 for one that is no step log."""
    if not arguments or arguments[0].startswith("-"):
        print("usage: python -m profiler.check_steps FILE...", file=sys.stderr)
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    try:
        for argument in arguments:
            print(summary(Path(argument)))
    except InputError as error:
        print(f"check_steps: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
