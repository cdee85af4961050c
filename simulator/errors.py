"""The user's mistakes: one clear sentence with file, line, key and the nearest valid value, exit status 2."""

import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn


class InputError(Exception):
    """Input that cannot be read or does not make sense; commands print it without a traceback and exit with 2.

    `path`, `line` (1-based) and `key` say where; they are put in front of the message.
    """

    def __init__(
        self, message: str, *, path: str | Path | None = None, line: int | None = None, key: str | None = None
    ):
        place = "" if path is None else str(path)
        if line is not None:
            place += f", line {line}" if place else f"line {line}"
        if key is not None:
            place += f", {key}" if place else key
        super().__init__(f"{place}: {message}" if place else message)


class PolicyError(Exception):
    """A policy broke its contract: the message names the policy, the request and the numbers."""


def nearest(name: str, valid: Iterable[str], noun: str = "known") -> str:
    """'did you mean "x"? known: ...' for a name that is not in `valid`."""
    names = sorted(valid)
    listed = f"{noun}: {', '.join(names)}" if names else f"{noun}: none"
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    if not close:  # typing slips in case are as common as in letters
        close = [known for known in names if known.lower() == name.lower()]
    return f'did you mean "{close[0]}"? {listed}' if close else listed


def run_command(command: Callable[..., object], name: str) -> NoReturn:
    """Run a click command as a console script: one line on standard error instead of a traceback.

    Exit status 2 for InputError (and click's own usage errors), 1 for a policy's mistake, a full disk or Ctrl-C (which
    click turns into "Aborted!").
    """
    try:
        command(prog_name=name)
    except InputError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)
    except (PolicyError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)
