"""A file of batches to be priced or measured: one JSON object a line.

    {"id": "b17", "prefills": [[context_before, new_tokens], ...], "decodes": [context_length_after, ...]}

A decode of 121 attends to 121 KV entries, its own new token's included. Blank lines are skipped.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.errors import InputError, nearest

KEYS = ("id", "prefills", "decodes")
MOST_TOKENS = 10**8
"""Of one number in the file; more is a slip of the pen."""
LONGEST_LINE = 10**6
"""Characters: room for 80,000 sequences and more, where engines run some thousand. In memory up to 300 MB."""


@dataclass(frozen=True, slots=True)
class ListedBatch:
    """One batch of the file: `prefills` as (context before, new tokens), `decodes` as context lengths after the step.

    `line`: where it stands, from 1.
    """

    id: str
    prefills: tuple[tuple[int, int], ...]
    decodes: tuple[int, ...]
    line: int = 0

    @property
    def tokens(self) -> int:
        """New tokens of the step."""
        return len(self.decodes) + sum(new for _, new in self.prefills)

    @property
    def sequences(self) -> int:
        """Rows of the LM head."""
        return len(self.decodes) + len(self.prefills)

    @property
    def decode_context(self) -> int:
        """Sum of the decodes' context lengths after the step."""
        return sum(self.decodes)


@dataclass(frozen=True, slots=True)
class BatchFile:
    """The batches in the file's order, and the SHA-256 of its content."""

    path: Path
    batches: tuple[ListedBatch, ...]
    sha256: str


def read_batches(path: Path) -> BatchFile:
    """Read a file of batches. Raises InputError naming file, line and key for the first mistake."""
    try:
        content = path.read_bytes()
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise InputError(str(error.strerror), path=path) from None
    except UnicodeDecodeError:
        raise InputError("not a text file in UTF-8", path=path) from None
    batches = tuple(_batches(text.split("\n"), path))
    if not batches:
        raise InputError('no batches; a line is {"id": ..., "prefills": [...], "decodes": [...]}', path=path)
    return BatchFile(path, batches, hashlib.sha256(content).hexdigest())


def _batches(lines: Iterable[str], path: Path) -> Iterator[ListedBatch]:
    seen: dict[str, int] = {}
    for line, text in enumerate(lines, 1):
        if not text.strip():
            continue
        if len(text) > LONGEST_LINE:
            raise InputError(
                f"a line of {len(text):,} characters is no batch that a GPU runs as one step; at most {LONGEST_LINE:,}"
                " are read",
                path=path,
                line=line,
            )
        batch = _batch(_object(text, path, line), path, line)
        if batch.id in seen:
            raise InputError(f'"{batch.id}" is the id of line {seen[batch.id]} already', path=path, line=line, key="id")
        seen[batch.id] = line
        yield batch


def _object(text: str, path: Path, line: int) -> dict[str, Any]:
    """The JSON object in a line, with every key of a batch once and no other."""
    try:
        raw = json.loads(text, object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON at character {error.pos + 1}: {error.msg}", path=path, line=line) from None
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits; brackets in brackets
        raise InputError(f"not readable as JSON: {' '.join(str(error).split())}", path=path, line=line) from None
    if not isinstance(raw, _Pairs):
        raise InputError(f"should be an object with {', '.join(KEYS)}, not {_shown(raw)}", path=path, line=line)
    keys = [key for key, _ in raw]
    for key in keys:
        if key not in KEYS:
            raise InputError(f"unknown key; {nearest(key, KEYS, 'keys')}", path=path, line=line, key=_shown(key))
        if keys.count(key) > 1:
            raise InputError("the key is there twice; remove one", path=path, line=line, key=key)
    for key in KEYS:
        if key not in keys:
            raise InputError("missing", path=path, line=line, key=key)
    return dict(raw)


class _Pairs(list[tuple[str, Any]]):
    """An object's keys and values as they stand, so that a key given twice can be told."""


def _batch(raw: dict[str, Any], path: Path, line: int) -> ListedBatch:
    name = raw["id"]
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise InputError(
            f"should be a text of printable characters, not {_shown(name)}", path=path, line=line, key="id"
        )
    for key in ("prefills", "decodes"):
        if not isinstance(raw[key], list) or isinstance(raw[key], _Pairs):
            raise InputError(f"should be a list, not {_shown(raw[key])}", path=path, line=line, key=key)
    if not raw["prefills"] and not raw["decodes"]:
        raise InputError("an empty batch: neither prefills nor decodes", path=path, line=line)
    prefills = tuple(_prefill(pair, place, path, line) for place, pair in enumerate(raw["prefills"]))
    decodes = tuple(
        _tokens(value, 1, f"decodes[{place}]", "a decode attends to its own new token", path, line)
        for place, value in enumerate(raw["decodes"])
    )
    return ListedBatch(name, prefills, decodes, line)


def _prefill(pair: Any, place: int, path: Path, line: int) -> tuple[int, int]:
    key = f"prefills[{place}]"
    if not isinstance(pair, list) or isinstance(pair, _Pairs) or len(pair) != 2:
        raise InputError(f"should be [context_before, new_tokens], not {_shown(pair)}", path=path, line=line, key=key)
    context = _tokens(pair[0], 0, f"{key}[0]", "tokens cached before the chunk", path, line)
    return context, _tokens(pair[1], 1, f"{key}[1]", "a chunk has new tokens", path, line)


def _tokens(value: Any, least: int, key: str, meaning: str, path: Path, line: int) -> int:
    """`value` if it is a whole number from `least` to MOST_TOKENS; else InputError with the nearest that is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"should be a number of tokens, not {_shown(value)}", path=path, line=line, key=key)
    if isinstance(value, int) and least <= value <= MOST_TOKENS:
        return value
    hint = "" if value != value else f"; the nearest is {round(min(max(value, least), MOST_TOKENS))}"
    raise InputError(
        f"should be a whole number from {least} to {MOST_TOKENS} ({meaning}), not {_shown(value)}{hint}",
        path=path, line=line, key=key,
    )  # fmt: skip


def _shown(value: Any) -> str:
    """The value as JSON in a few characters."""
    plain = dict(value) if isinstance(value, _Pairs) else value
    try:
        text = json.dumps(plain)
    except RecursionError:
        text = "something nested very deeply"
    return text if len(text) <= 60 else f"{text[:57]}..."
