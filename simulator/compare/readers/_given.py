"""What the user named: a folder, a file of JSON objects, or another file; and which of several runs of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from simulator.compare.readers._json import Document, read_documents
from simulator.errors import InputError, nearest
from simulator.files import similar_file
from simulator.step_log_rows import is_step_log


@dataclass(frozen=True)
class Given:
    """A path that exists, and the label or the number (from 1) that chooses among several runs."""

    path: Path
    label: str | None = None
    index: int | None = None

    @property
    def name(self) -> str:
        """What the run is called: the last part of the path."""
        return self.path.resolve().name

    @cached_property
    def is_folder(self) -> bool:
        """Whether the path is a folder."""
        return self.path.is_dir()

    @cached_property
    def is_step_log(self) -> bool:
        """Whether the path is a step log."""
        return not self.is_folder and is_step_log(self.path)

    @cached_property
    def documents(self) -> Sequence[Document]:
        """The JSON objects of a file; none of a folder, a step log, and a file that does not begin like JSON."""
        if self.is_folder or self.is_step_log or not self._like_json():
            return ()
        return read_documents(self.path)

    def last_has(self, *keys: str) -> bool:
        """Whether the file's last object has all these keys."""
        return bool(self.documents) and all(key in self.documents[-1].content for key in keys)

    def holds(self, *names: str) -> bool:
        """Whether the path is a folder with all these files."""
        return self.is_folder and all((self.path / name).is_file() for name in names)

    def chosen(self, number: int, what: str) -> tuple[int, str | None]:
        """(place from 0, note) of the run to take among `number`: the one that was asked for, else the last."""
        if self.index is not None:
            if not 1 <= self.index <= number:
                problem = f"there is no {what} {self.index}; there are 1 to {number}"
                raise InputError(problem, path=self.path, key="--index")
            return self.index - 1, None
        if number == 1:
            return 0, None
        return number - 1, f"the last of {number} {what}s in the file (--index chooses another)"

    def _like_json(self) -> bool:
        try:
            with open(self.path, "rb") as file:
                head = file.read(4096)
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", path=self.path) from None
        return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[") or head[:2] == b"\x1f\x8b"


def open_given(argument: str, label: str | None, index: int | None) -> Given:
    """What `PATH`, `FOLDER/LABEL` or `PATH#N` names. InputError with a similar name where there is nothing."""
    path = Path(argument)
    if path.exists():
        return Given(path, label, index)
    stem, mark, number = argument.rpartition("#")
    if mark and number.isdigit() and len(number) < 10 and Path(stem).exists():
        return Given(Path(stem), label, int(number))
    if (path.parent / "summary.csv").is_file():  # a label that was not simulated: the folder says which were
        return Given(path.parent, path.name, index)
    raise InputError(f'"{argument}" not found{similar_file(argument, None)}')


def choice(name: str, known: Sequence[str], path: Path, key: str) -> str:
    """`name` if it is known; InputError with the nearest."""
    if name not in known:
        raise InputError(f'no "{name}"; {nearest(name, known)}', path=path, key=key)
    return name
