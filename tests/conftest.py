"""Which tests this machine can run: what is skipped for want of torch, a GPU or time is counted aloud at the end."""

import os
from importlib.util import find_spec

import pytest
from hypothesis import settings

NO_TORCH, NO_GPU, NOT_FULL = "torch is not installed", "no GPU that torch sees", "slow; --full runs it"
NO_SILICON = "aiconfigurator-core is not installed"
NO_RECORDINGS = "RECORDED_DECISIONS names no folder with this file"

settings.register_profile("here", deadline=None)  # a loaded machine is slow, not wrong
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=1250)  # --hypothesis-profile=thorough, by hand
settings.load_profile("ci" if os.environ.get("CI") else "here")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--full`, for CI."""
    parser.addoption("--full", action="store_true", help="Also run slow tests, and fail if torch is not installed.")


def pytest_configure(config: pytest.Config) -> None:
    """With --full nothing may be skipped that installing torch would run."""
    if config.getoption("--full") and find_spec("torch") is None:
        raise pytest.UsageError("--full runs the tests that need torch, which is not installed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what is marked `torch`, `gpu`, `silicon` or `slow` where it cannot or should not run."""
    reasons = {
        "torch": None if find_spec("torch") else NO_TORCH,
        "gpu": None if _has_gpu(items) else NO_GPU,
        "silicon": None if find_spec("aiconfigurator_core") else NO_SILICON,
        "slow": None if config.getoption("--full") else NOT_FULL,
    }
    for item in items:
        for mark, reason in reasons.items():
            if reason and item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))


def _has_gpu(items: list[pytest.Item]) -> bool:
    """Whether torch sees a GPU; torch is imported only if a test asks for one."""
    if find_spec("torch") is None or not any(item.get_closest_marker("gpu") for item in items):
        return False
    import torch

    return torch.cuda.is_available()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A line for each reason why tests did not run here."""
    said = {
        NO_TORCH: "skipped for want of torch, which is not installed (a CPU build is enough)",
        NO_GPU: "skipped for want of an NVIDIA GPU",
        NO_SILICON: "skipped for want of aiconfigurator-core, measurements that import-costs can read",
        NOT_FULL: "skipped for taking minutes (--full runs them)",
        NO_RECORDINGS: "skipped for want of engines' recordings (RECORDED_DECISIONS=FOLDER names them)",
    }
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    for reason, meaning in said.items():
        count = sum(reason in why for why in skipped)
        if count:
            terminalreporter.write_line(f"{count} {'test' if count == 1 else 'tests'} {meaning}")
