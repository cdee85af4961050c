"""A trace file's bytes, checked to be UTF-8 text, and its first line."""

import gzip
import hashlib
import re
import zlib
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from simulator.errors import InputError

_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Source:
    """A trace file: valid UTF-8 without a byte order mark or NUL, uncompressed.

    `head` is the first line that is not blank and `head_line` its number; `body` is all that follows it.
    `sha256` is of the file as it lies on the disk.
    """

    path: Path
    sha256: str
    head: str
    head_line: int
    body: bytes

    @property
    def name(self) -> str:
        """The file's name without its suffix, nor .gz behind it."""
        return Path(self.path.name.removesuffix(".gz")).stem


def open_source(path: Path) -> Source:
    """The file at `path`; InputError if it is missing, empty or not UTF-8 text."""
    stored = _bytes_of(path)
    content = _unpacked(path, stored).removeprefix(_BOM)
    _check_text(path, content)
    first = re.search(rb"\S", content)
    if first is None:
        raise InputError("the file is empty; a trace has a header and a row for each request", path=path)
    start = max(content.rfind(b"\n", 0, first.start()), content.rfind(b"\r", 0, first.start())) + 1
    line_end = re.compile(rb"\r\n|\r|\n").search(content, first.start())
    end, body_start = line_end.span() if line_end else (len(content), len(content))
    return Source(
        path=path,
        sha256=hashlib.sha256(stored).hexdigest(),
        head=content[start:end].decode(),
        head_line=_lines(content[:start]) + 1,
        body=content[body_start:],
    )


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise InputError(f"no such file{_similar(path)}", path=path) from error
    except IsADirectoryError as error:
        raise InputError("is a folder; name the trace file in it", path=path) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", path=path) from error


def _similar(path: Path) -> str:
    try:
        beside = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return ""
    close = get_close_matches(path.name, beside, n=1)
    return f'; did you mean "{path.parent / close[0]}"?' if close else ""


def _unpacked(path: Path, stored: bytes) -> bytes:
    if not stored.startswith(_GZIP):
        return stored
    try:
        return gzip.decompress(stored)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"the gzip file is damaged ({error}); fetch it again", path=path) from error


def _check_text(path: Path, content: bytes) -> None:
    if content.startswith(_UTF16):
        raise InputError("the file is UTF-16; save it as UTF-8", path=path)
    if b"\0" in content:
        raise InputError("the file is binary, not text; a trace is CSV in UTF-8", path=path)
    if content.isascii():
        return
    try:
        content.decode()
    except UnicodeDecodeError as error:
        line = _lines(content[: error.start]) + 1
        message = f"byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise InputError(message, path=path, line=line) from error


def _lines(content: bytes) -> int:
    """Line ends in `content`, of whichever kind."""
    return content.count(b"\n") + content.count(b"\r") - content.count(b"\r\n")
