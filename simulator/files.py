"""Files that the user names: safe YAML, and what a missing file may have been meant to be."""

from pathlib import Path
from typing import Any

import yaml

from simulator.bundled import bundled_roots
from simulator.errors import InputError, nearest


def load_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, loaded safely. Raises InputError with the line of a syntax error."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise InputError("not a text file", path=path) from None
    except OSError as error:
        raise InputError(str(error.strerror), path=path) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise InputError(f"not valid YAML: {problem}", path=path, line=mark.line + 1 if mark else None) from None
    if not isinstance(raw, dict):
        raise InputError(f"should be a mapping of keys, not {type(raw).__name__}", path=path)
    return raw


def similar_file(name: str, beside: Path | None) -> str:
    wanted = Path(name)
    folders = [folder / wanted.parent for folder in (beside, Path.cwd(), *bundled_roots()) if folder]
    names = {entry.name for folder in folders if folder.is_dir() for entry in folder.iterdir() if entry.is_file()}
    if not names:
        return ""
    hint = nearest(wanted.name, names)
    return f"; {hint.split('?')[0]}?" if hint.startswith("did") else ""
