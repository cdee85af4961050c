"""The model against published times: no worse than the documentation says, and the documentation is what it prints."""

import re
from statistics import mean

import pytest

from profiler.imports import calibrate
from profiler.imports.datasheet import load_constants, load_hardware
from profiler.imports.published import published
from profiler.imports.residuals import report
from tests.house.paths import ROOT

LINEAR = [one for one in published() if one.points[0][0].operator == "linear"]
PAGE = (ROOT / "docs/import-costs.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("series", LINEAR, ids=lambda one: one.name)
def test_matrix_products_are_near_what_was_published(series):
    """Within a tenth in the mean, whether the fit saw them or not."""
    assert mean(abs(error) for error in series.errors(load_hardware(series.gpu))) < 0.10


@pytest.mark.parametrize("series", [one for one in LINEAR if one.role == "held out"], ids=lambda one: one.name)
def test_published_cliffs_are_cliffs_of_the_model(series):
    """Where the published time steps up by 20 % over at most 8 tokens, the model's does by 5 % or more, mostly."""
    hardware, steps = load_hardware(series.gpu), []
    for (low, before), (high, after) in zip(series.points, series.points[1:], strict=False):
        if high.tokens - low.tokens <= 8 and low.tokens > 64 and after / before > 1.2:
            steps.append(series.model_us(high, hardware) / series.model_us(low, hardware))
    assert sum(step > 1.05 for step in steps) >= 0.7 * len(steps)


def test_both_roles_are_there_and_named():
    """What was fitted is told from what was not."""
    assert {one.role for one in published()} == {"fitted", "held out"}
    assert all(one.source for one in published())


def test_the_page_shows_what_the_command_prints():
    """Every table of `python -m profiler.imports.residuals`, digit for digit."""
    missing = [line for line in report().splitlines() if line and line not in PAGE]
    assert not missing


def test_the_page_shows_the_constants_basis():
    """Nothing borrowed goes unmentioned."""
    assert re.search(r"L40S.*not fitted|not fitted.*L40S", PAGE, re.DOTALL)


def test_fitting_finds_constants_that_made_the_times():
    """From times that the model itself made, with other constants, the fit comes near those."""
    series = [one for one in LINEAR if one.name == "A100, Llama-2-7B"]
    hardware = load_hardware("a100-80")
    true = calibrate.GemmConstants(30.0, 0.7, 4.0, 4.0)

    def with_gemm(gemm):
        return calibrate.replace(hardware, constants=calibrate.replace(hardware.constants, gemm=gemm))

    goal = {point: series[0].model_us(point, with_gemm(true)) for point, _ in series[0].points}
    made = calibrate.replace(series[0], points=tuple(goal.items()))
    found = calibrate.fit(
        calibrate.FIRST_GEMM,
        ["half_intensity", "memory_share", "launch_us", "overlap"],
        lambda gemm: calibrate.mean_error([made], {"a100-80": with_gemm(gemm)}),
    )
    assert calibrate.mean_error([made], {"a100-80": with_gemm(found)}) < 0.01


@pytest.mark.slow
def test_the_constants_are_those_that_calibrate_finds():
    """The file is what the script writes, not something tuned by hand."""
    assert calibrate.calibrate() == load_constants()
