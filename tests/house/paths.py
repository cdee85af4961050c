"""Where the checkout lies, and a child process's environment without it."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = {"build", "dist", "results", "shared", "__pycache__"}


def outside(**more: str) -> dict[str, str]:
    """The environment less what would let a program find the checkout or its virtual environment."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    return {key: value for key, value in os.environ.items() if key not in hidden} | more


def source_files() -> list[Path]:
    """The files of the checkout that people wrote; hidden folders other than `.ci` and what is generated left out."""
    found = []
    for folder, names, files in os.walk(ROOT):
        names[:] = [n for n in names if n not in GENERATED and (not n.startswith(".") or n == ".ci")]
        found += [Path(folder, file) for file in files if not file.endswith(".pyc")]
    return sorted(found)
