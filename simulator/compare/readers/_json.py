"""JSON files with one object or with several: a line each, or written one behind the other."""

import gzip
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.errors import InputError

BLANK = " \t\r\n"


@dataclass(frozen=True)
class Document:
    """A JSON object, and the line where it begins, 1-based."""

    line: int
    content: dict[str, Any]


def read_text(path: Path) -> str:
    """A text in UTF-8, gzip or not."""
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("not a text file in UTF-8", path=path) from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", path=path) from None


def read_documents(path: Path) -> list[Document]:
    """The objects of a file, in order. InputError with the line where one is broken or none; no text at all too."""
    text = read_text(path)
    decoder = json.JSONDecoder()
    documents: list[Document] = []
    place, line = 0, 1
    while True:
        begin = place
        while place < len(text) and text[place] in BLANK:
            place += 1
        line += text.count("\n", begin, place)
        if place == len(text):
            break
        content, end = _decoded(decoder, text, place, path)
        if not isinstance(content, dict):
            raise InputError(f"should be a JSON object, not {type(content).__name__}", path=path, line=line)
        documents.append(Document(line, content))
        line += text.count("\n", place, end)
        place = end
    if not documents:
        raise InputError("the file is empty", path=path)
    return documents


def _decoded(decoder: json.JSONDecoder, text: str, place: int, path: Path) -> tuple[Any, int]:
    try:
        return decoder.raw_decode(text, place)
    except json.JSONDecodeError as error:
        cut = " (is the file cut off?)" if error.pos >= len(text.rstrip()) - 1 else ""
        message = f"not JSON at column {error.colno}: {error.msg}{cut}"
        raise InputError(message, path=path, line=error.lineno) from None
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits; brackets in brackets
        raise InputError(f"not readable as JSON: {' '.join(str(error).split())}", path=path) from None
