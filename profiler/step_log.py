"""A step log on disk: `steps.csv.gz`, written in batches by a thread of its own so that a serving loop does not wait.

Rows are kept in memory for at most `PERIOD_S` and then appended as one gzip member. A file of whole members is a gzip
file (RFC 1952, section 2.2), so what is on disk can be read at any time and also after the process was killed, which
loses the rows of the last period. Only the standard library is imported: this runs inside a serving engine.
"""

import gzip
import logging
import os
import threading
from collections import deque
from multiprocessing.util import Finalize
from pathlib import Path

from simulator.errors import InputError
from simulator.step_log_rows import COLUMNS

PATH_VARIABLE = "CHUNKWISE_STEP_LOG"
LIMIT_VARIABLE = "CHUNKWISE_STEP_LOG_MAX_MB"
DEFAULT_LIMIT_MB = 1000.0
PERIOD_S = 1.0

logger = logging.getLogger("vllm.chunkwise.step_log")  # below vLLM's own logger, whose handler prints it


def path_from_environment(rank: int | None = None) -> Path:
    """The file that CHUNKWISE_STEP_LOG names, `.dp<rank>` in its name with a data-parallel rank; InputError for a path
    that cannot be a new log."""
    given = os.environ.get(PATH_VARIABLE, "")
    if not given:
        raise InputError("not set; it names the file to write, such as steps.csv.gz", key=PATH_VARIABLE)
    if not given.endswith(".csv.gz"):
        raise InputError(f"{given}: the name must end in .csv.gz", key=PATH_VARIABLE)
    path = Path(given if rank is None else f"{given.removesuffix('.csv.gz')}.dp{rank}.csv.gz").absolute()
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}", key=PATH_VARIABLE)
    if path.exists():
        raise InputError(f"{path}: exists already; move it away or name another file", key=PATH_VARIABLE)
    return path


def limit_from_environment() -> int:
    """How many bytes the file may have; InputError where CHUNKWISE_STEP_LOG_MAX_MB is not a positive number."""
    given = os.environ.get(LIMIT_VARIABLE, str(DEFAULT_LIMIT_MB))
    try:
        limit = float(given)
    except ValueError:
        limit = 0.0
    if not 0 < limit < float("inf"):
        raise InputError(f"{given!r} is not a positive number of megabytes", key=LIMIT_VARIABLE)
    return round(limit * 1e6)


class StepLog:
    """An open step log. `add` costs an append to a queue; everything else happens in the log's thread.

    A log that reached its limit, or could not be written, says so once and drops further rows: a server is worth more
    than its log.
    """

    def __init__(self, path: Path, limit_bytes: int, period_s: float = PERIOD_S) -> None:
        self.path = path
        self.open = True
        self._limit_bytes = limit_bytes
        self._period_s = period_s
        self._rows: deque[str] = deque([",".join(COLUMNS)])
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}", key=PATH_VARIABLE) from None
        self._written = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chunkwise-step-log", daemon=True)
        self._thread.start()
        # Unlike atexit, this also runs at the end of a forked child process, which is what an engine core may be.
        self._finalizer = Finalize(None, self.close, exitpriority=10)

    def add(self, row: str) -> None:
        """Queue one row, without a line end."""
        if self.open:
            self._rows.append(row)

    def close(self) -> None:
        """Write what is queued and end the log; a second call does nothing."""
        self.open = False
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        """The thread: a batch every period, and a last one."""
        try:
            stopping = False
            while not stopping:
                stopping = self._stopping.is_set()  # asked before the batch, so that the last batch holds every row
                if not self._write():
                    return
                self._stopping.wait(0 if stopping else self._period_s)
        except OSError as error:
            logger.error("step log %s ends here: %s", self.path, error.strerror)
        finally:
            self.open = False
            self._rows.clear()
            os.close(self._file)

    def _write(self) -> bool:
        """Append the queued rows as one gzip member; whether the log goes on."""
        rows = [self._rows.popleft() for _ in range(len(self._rows))]
        if not rows:
            return True
        member = memoryview(gzip.compress("".join(f"{row}\n" for row in rows).encode(), compresslevel=6))
        if self._written + len(member) > self._limit_bytes:
            logger.warning(
                "step log %s ends here: with the next rows it would be larger than %s MB (%s)",
                self.path,
                self._limit_bytes / 1e6,
                LIMIT_VARIABLE,
            )
            return False
        self._written += len(member)
        while member:
            member = member[os.write(self._file, member) :]
        return True
