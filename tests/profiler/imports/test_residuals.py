"""The model against published times: no worse than the documentation says, and the documentation is what it prints."""

import re
from itertools import pairwise
from statistics import mean

import pytest

from profiler.grid import Point
from profiler.imports import calibrate
from profiler.imports.datasheet import load_constants, load_hardware
from profiler.imports.published import published
from profiler.imports.residuals import report
from tests.house.paths import ROOT

LINEAR = [one for one in published() if one.points[0][0].operator == "linear"]
PAGE = (ROOT / "docs/import-costs.md").read_text(encoding="utf-8")
FEW = 8  # tokens


def lasting_steps(series):
    """The pairs of neighbours at which the published time steps up by 20 % over a few tokens, and stays up a few more.

    A library that picks another kernel at one token count alone makes a bump, which is no cliff of tiles.
    """
    for (low, before), (high, _) in pairwise(series.points):
        if low.tokens > 64 and high.tokens - low.tokens <= FEW:
            after = [time for point, time in series.points if 0 <= point.tokens - high.tokens <= FEW]
            if min(after) > 1.2 * before:
                yield low, high


CLIFFY = [one for one in LINEAR if one.role == "held out" and any(lasting_steps(one))]


@pytest.mark.parametrize("series", LINEAR, ids=lambda one: one.name)
def test_matrix_products_are_near_what_was_published(series):
    """Within a tenth in the mean, whether the fit saw them or not."""
    assert mean(abs(error) for error in series.errors(load_hardware(series.gpu))) < 0.10


@pytest.mark.parametrize("series", CLIFFY, ids=lambda one: one.name)
def test_published_cliffs_are_cliffs_of_the_model(series):
    """Where the published time steps up by 20 % over at most 8 tokens and stays, the model's does by 5 %, mostly."""
    hardware = load_hardware(series.gpu)
    steps = [series.model_us(high, hardware) / series.model_us(low, hardware) for low, high in lasting_steps(series)]
    assert sum(step > 1.05 for step in steps) >= 0.7 * len(steps)


def test_a_bump_of_one_token_is_no_cliff():
    """101 tokens cost more than 100 and than 102; 201 cost more than 200, and so do 202."""
    times = {100: 10.0, 101: 13.0, 102: 10.0, 200: 10.0, 201: 13.0, 202: 13.0}
    points = tuple((Point("linear", tokens=tokens), time) for tokens, time in times.items())
    found = lasting_steps(calibrate.replace(LINEAR[0], points=points))
    assert [(low.tokens, high.tokens) for low, high in found] == [(200, 201)]


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
