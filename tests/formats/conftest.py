"""Fixtures for the trace readers: a file from its text, and the error that a text earns."""

from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.formats import read_trace
from simulator.trace import Trace

Read = Callable[..., Trace]
Refused = Callable[..., str]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Reads a trace file with the given content."""

    def read_content(content: str | bytes, *, repair: bool = False, name: str = "trace.csv") -> Trace:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_trace(path, repair=repair)

    return read_content


@pytest.fixture
def refused(read: Read, tmp_path: Path) -> Refused:
    """The message with which such a file is refused, without the folder."""

    def message(content: str | bytes, *, repair: bool = False) -> str:
        with pytest.raises(InputError) as caught:
            read(content, repair=repair)
        assert str(caught.value).startswith(f"{tmp_path}/trace.csv")
        return str(caught.value).removeprefix(f"{tmp_path}/")

    return message
