"""The GPUs' datasheets and the constants of their generations."""

import pytest

from profiler.imports.cli import HELP
from profiler.imports.datasheet import gpu_names, load_constants, load_hardware
from profiler.imports.published import published
from simulator.cost_table import load_gpu
from simulator.errors import InputError

NAMES = gpu_names()


def test_the_help_names_every_gpu():
    """It does not read the folder, so as to be there at once."""
    assert f"{', '.join(NAMES)}." in HELP


def test_the_gpus_of_the_papers_are_there():
    """And the current ones."""
    assert {"a100-40", "a100-80", "a6000", "a40", "l40s", "h100", "h200"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_datasheet_names_its_sources_and_has_constants(name):
    """Links, and a basis that says what was fitted."""
    hardware = load_hardware(name)
    assert all(source.startswith("https://") for source in hardware.sheet.sources)
    assert hardware.constants.basis
    assert hardware.gpu == load_gpu(name)


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_of_a_plausible_size(name):
    """TFLOP/s without sparsity, bytes a second, and more than 100 FLOP a byte on every one of them."""
    sheet = load_hardware(name).sheet
    assert 1e14 < sheet.peak_flops < 3e15
    assert 100 < sheet.peak_flops / sheet.memory_bandwidth < 450


def test_generations_without_published_times_say_so():
    """Their constants are those of another, and their basis names it."""
    constants = load_constants()
    for borrowed, lender in (("ada", "ga102"), ("blackwell", "hopper")):
        assert constants[borrowed].gemm == constants[lender].gemm
        assert "not fitted" in constants[borrowed].basis
    fitted = {load_hardware(one.gpu).sheet.constants for one in published() if one.role == "fitted"}
    assert fitted == {"ampere", "ga102", "hopper"}


def test_an_unknown_gpu_is_named_with_the_nearest():
    """A100 comes in two sizes."""
    with pytest.raises(InputError, match='unknown GPU "a100-8"; did you mean "a100-80"'):
        load_hardware("a100-8")
