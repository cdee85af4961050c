"""A fixture that runs `import-costs`."""

import pytest
from click.testing import CliRunner

from profiler.imports.cli import main
from simulator.cost_table import read_table
from tests.profiler.imports.sources import write_model


@pytest.fixture
def fitted():
    """Lets `import-costs` fit attention's schedule."""


@pytest.fixture
def import_costs(tmp_path, monkeypatch, request):
    """Runs `import-costs` on a model of two layers; the table goes to tmp_path/table.csv. Returns click's result.

    Attention's schedule is fitted, which takes seconds, only in tests that use `fitted`.
    """
    model = write_model(tmp_path)
    if "fitted" not in request.fixturenames:
        monkeypatch.setattr("profiler.imports.table.with_attention_model", lambda _rows, metadata, _quiet: metadata)

    def run(*options, model=model, out=tmp_path / "table.csv"):
        where = [] if out is None else ["--out", str(out)]
        return CliRunner().invoke(main, [*map(str, options), "--model", str(model), *where])

    return run


@pytest.fixture
def imported(import_costs, tmp_path):
    """The table that `import-costs` writes with these options."""

    def run(*options, **model):
        result = import_costs(*options, **model)
        assert result.exit_code == 0, result.output
        return read_table(tmp_path / "table.csv")

    return run


@pytest.fixture
def refused(import_costs, tmp_path):
    """What `import-costs` says when it exits with 2 and writes nothing: one line."""

    def run(*options, **model):
        result = import_costs(*options, **model)
        assert result.exit_code == 2, result.output
        assert result.output.count("\n") == 1
        assert not (tmp_path / "table.csv").exists()
        return result.output

    return run
