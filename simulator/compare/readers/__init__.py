"""Results of many origins become one `Run`; what a path holds is recognised by content.

A format is one module of this package (a name without a leading underscore) that offers the names of `Reader`; adding
one is adding that file.
"""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol, cast

from simulator.compare.readers._given import Given, open_given
from simulator.compare.run import Run
from simulator.errors import InputError

__all__ = ["Reader", "read_run", "readers"]


class Reader(Protocol):
    """What a module of this package offers to be a format.

    `recognises` says whether the path is of this format; at most one does. `read` raises InputError for everything that
    is wrong with it.
    """

    NAME: str
    DESCRIPTION: str

    def recognises(self, given: Given) -> bool: ...

    def read(self, given: Given) -> Run: ...


@cache
def readers() -> Sequence[Reader]:
    """All formats, by name."""
    names = sorted(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))
    return [cast(Reader, import_module(f"{__name__}.{name}")) for name in names]


def read_run(argument: str, label: str | None = None, index: int | None = None) -> Run:
    """The run at a path, which may end in `/LABEL` (of a folder of simulate-trace) or `#N` (the N-th run of a file).

    `label` and `index` choose where the path does not and there are several. Raises InputError.
    """
    given = open_given(argument, label, index)
    for reader in readers():
        if reader.recognises(given):
            return reader.read(given)
    raise InputError(f"no results that are known here; {_held(given)}\n{_known()}", path=given.path)


def _held(given: Given) -> str:
    if given.is_folder:
        names = sorted(path.name for path in given.path.iterdir())
        return "the folder holds " + (", ".join(names[:8]) + (", ..." if len(names) > 8 else "") or "nothing")
    if given.documents:
        return "the JSON has the keys " + ", ".join(list(given.documents[-1].content)[:8])
    return "the file is neither JSON nor a step log"


def _known() -> str:
    return "known are:\n" + "\n".join(f"  {reader.NAME}: {reader.DESCRIPTION}" for reader in readers())
