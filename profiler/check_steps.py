"""`python -m profiler.check_steps FILE...`: whether step logs are whole and make sense, and what is in them."""

import statistics
import sys
from functools import partial
from pathlib import Path

from simulator.errors import InputError
from simulator.step_log_rows import checked_rows


def summary(path: Path) -> str:
    """One line about a log; InputError with file and line for a row that cannot be."""
    kinds = {"decode only": 0, "with prefills": 0, "empty": 0}
    requests: set[str] = set()
    steps_ms: list[float] = []
    preemptions, previous = 0, None
    for _, row in checked_rows(path, partial(print, file=sys.stderr)):
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
