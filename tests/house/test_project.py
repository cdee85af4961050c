"""What pyproject.toml promises, and what no file may hold."""

import tomllib

import pytest

from tests.house.paths import ROOT, source_files

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# In pieces, so that this file does not hold them.
UNWANTED = ["/wo" + "rk/", "pypi" + ".org", "python" + "hosted.org", "pytorch" + ".org/whl", "npm" + "js.org"]


def test_licence():
    """Apache-2.0, text included."""
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_name_and_python():
    """The distribution is chunkwise, for Python 3.11 and newer."""
    assert (PROJECT["name"], PROJECT["requires-python"]) == ("chunkwise", ">=3.11")


def test_torch_is_an_extra():
    """`gpu` has torch and flash-attn; the base install has neither."""
    extras = PROJECT["optional-dependencies"]
    assert {requirement.partition(">")[0] for requirement in extras["gpu"]} == {"torch", "flash-attn"}
    assert "dev" in extras
    assert not [requirement for requirement in PROJECT["dependencies"] if "torch" in requirement]


def test_commands():
    """The console scripts of the profiler and the simulator."""
    profiler = {"import-costs", "measure-batches", "profile-gpu", "profile-network"}
    assert profiler | {"price-batches", "simulate-trace"} <= set(PROJECT["scripts"])


@pytest.mark.parametrize("unwanted", UNWANTED)
def test_no_file_names_a_machine_or_a_package_index(unwanted):
    """Paths of one machine and hosts of one index would be wrong on every other."""
    found = [path for path in source_files() if unwanted in path.read_text(encoding="utf-8", errors="replace")]
    assert not found
