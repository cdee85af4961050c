"""`make gpu`: the order of installation that flash-attn needs, run for real up to the CUDA kernels."""

import subprocess
from importlib.metadata import version

import pytest

from tests.house.paths import ROOT, outside

pytestmark = [pytest.mark.network, pytest.mark.torch, pytest.mark.slow]


def test_make_gpu_installs_torch_and_then_flash_attn(tmp_path):
    """flash-attn's setup imports the torch that was installed before it; its kernels are left out (no GPU, no hour)."""
    torch = version("torch").partition("+")[0]
    without_kernels = {"FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE", "FLASH_ATTENTION_FORCE_BUILD": "TRUE"}
    command = ["make", "gpu", "UV=", f"VENV={tmp_path / 'venv'}", f"TORCH=torch=={torch}"]
    env = outside(**without_kernels, PIP_NO_CACHE_DIR="1")  # a wheel without kernels must not stay in pip's cache
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"PyTorch {torch}" in done.stdout
    shown = [tmp_path / "venv/bin/python", "-m", "pip", "show", "flash-attn", "chunkwise"]
    names = subprocess.run(shown, env=outside(), capture_output=True, text=True, check=True).stdout
    assert "Name: flash_attn" in names.replace("flash-attn", "flash_attn")
    assert "Name: chunkwise" in names
