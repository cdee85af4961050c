"""The built wheel: what is in it, and that it works alone in an empty virtual environment outside the checkout."""

import csv
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.house.paths import ROOT, outside

pytestmark = pytest.mark.network

UV = os.environ.get("UV", shutil.which("uv"))
LIMIT_BYTES = 400_000_000
USERS_POLICY = """
from dataclasses import dataclass
from policies.orca import Orca

@dataclass(frozen=True)
class Mine(Orca):
    max_batch_size: int = 3
"""


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(command, cwd=cwd, env=outside(**env), capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with the sdist and the wheel built from it."""
    folder = tmp_path_factory.mktemp("dist")
    installer = ["--installer", "uv"] if UV else []
    run(sys.executable, "-m", "build", *installer, "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def inside(built):
    """Names of the files in the wheel."""
    return set(ZipFile(next(built.glob("*.whl"))).namelist())


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The `bin` folder of an empty virtual environment in which the wheel was installed."""
    venv, wheel = tmp_path_factory.mktemp("elsewhere") / "venv", next(built.glob("*.whl"))
    if UV:
        run(UV, "venv", "--quiet", "--python", sys.executable, venv, cwd=venv.parent)
        run(UV, "pip", "install", "--quiet", "--python", venv / "bin/python", wheel, cwd=venv.parent)
    else:
        run(sys.executable, "-m", "venv", venv, cwd=venv.parent)
        run(venv / "bin/python", "-m", "pip", "install", "--quiet", wheel, cwd=venv.parent)
    return venv / "bin"


@pytest.mark.parametrize(
    "pattern",
    [
        "simulator/tables/*/*.csv",
        "simulator/tables/*/*.yaml",
        "simulator/report/*.j2",
        "policies/*.yaml",
        "profiler/models/*.yaml",
        "profiler/gpus/*.yaml",
        "profiler/imports/*.yaml",
    ],
)
def test_data_beside_the_code_is_in_the_wheel(inside, pattern):
    """Every such file of the checkout, and there is at least one."""
    names = {str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)}
    assert names
    assert names <= inside


def test_the_bundled_trace_is_in_the_wheel_once(inside):
    """`traces/` lies outside the packages, so it is force-included."""
    assert [name for name in inside if name.endswith("conversation.csv")] == [
        "simulator/bundled/traces/conversation.csv"
    ]


def test_the_wheel_holds_the_packages_and_nothing_else(inside):
    """No tests, benchmarks or results; the licence is there."""
    tops = {name.split("/")[0] for name in inside}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"profiler", "simulator", "policies"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in inside)


def test_the_sdist_can_be_tested(built):
    """It holds the tests, the trace and the Makefile, no results and no hidden folder."""
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"Makefile", "LICENSE", "README.md", "CHANGELOG.md", "traces/conversation.csv", "tests/conftest.py"} <= names
    assert not [name for name in names if name.startswith(("results/", ".ci", ".venv"))]


def test_a_base_install_is_under_400_mb_without_torch(installed):
    """All files of the virtual environment count, pip and compiled Python included."""
    files = [path for path in installed.parent.rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(path.stat().st_size for path in files) < LIMIT_BYTES
    assert not list(installed.parent.glob("lib/*/site-packages/torch*"))


def test_the_installed_command_runs_a_users_policy(installed, tmp_path):
    """Bundled trace, bundled table, a policy of the user's in the current folder, plots and page."""
    (tmp_path / "my_policies.py").write_text(USERS_POLICY, encoding="utf-8")
    options = ["--limit", "50", "--policy", "vllm", "--policy", "my_policies:Mine", "--out", "out"]
    run(installed / "simulate-trace", *options, cwd=tmp_path)
    with (tmp_path / "out/summary.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["label"], row["num_finished"]) for row in rows] == [("vllm", "50"), ("Mine", "50")]
    assert (tmp_path / "out/report.html").stat().st_size > 10_000
    assert list((tmp_path / "out").glob("*.png"))


def test_the_installed_experiment_runs(installed, tmp_path):
    """The one that compares all policies, from any folder."""
    run(installed / "simulate-trace", "policies/all.yaml", "--limit", "5", "--out", "out", "--no-plots", cwd=tmp_path)
    with (tmp_path / "out/summary.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) >= 9


def test_the_installed_package_is_not_the_checkout(installed, tmp_path):
    """Otherwise the tests above would prove nothing."""
    where = run(installed / "python", "-c", "import simulator; print(simulator.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)


def test_profile_gpu_without_torch_says_what_to_install(installed, tmp_path):
    """Exit status 2, one line, no traceback."""
    command = [installed / "profile-gpu", "--model", "llama-3.1-8b"]
    done = subprocess.run(command, cwd=tmp_path, env=outside(), capture_output=True, text=True)
    assert done.returncode == 2
    assert "PyTorch" in done.stderr
    assert "Traceback" not in done.stderr
