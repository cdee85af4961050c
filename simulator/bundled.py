"""Where the files that ship with the project lie: beside the packages in a checkout, inside them in a wheel."""

from importlib.util import find_spec
from pathlib import Path

_SIMULATOR = Path(__file__).resolve().parent


def bundled_files(package: str, folder: str, pattern: str) -> list[Path]:
    """Files of `package/folder` matching `pattern`, sorted; the package is located, not imported."""
    spec = find_spec(package)
    roots = spec.submodule_search_locations if spec and spec.submodule_search_locations else []
    return sorted(path for root in roots for path in (Path(root) / folder).glob(pattern))


def bundled_roots() -> list[Path]:
    """Folders against which bundled relative paths such as `traces/conversation.csv` resolve, first match wins."""
    return [_SIMULATOR / "bundled", _SIMULATOR.parent]


def resolve(path: str | Path, beside: Path | None = None) -> Path | None:
    """The existing file that a path in a YAML or on the command line means, or None.

    Looked up beside the YAML (`beside`, a folder), then in the current folder, then among the bundled data.
    """
    folders = [*([beside] if beside else []), Path.cwd(), *bundled_roots()]
    try:
        wanted = Path(path).expanduser()
        if wanted.is_absolute():
            return wanted if wanted.exists() else None
        return next((folder / wanted for folder in folders if (folder / wanted).is_file()), None)
    except (OSError, RuntimeError, ValueError):  # too long, no such user, a NUL
        return None
