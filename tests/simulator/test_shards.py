"""Tensor parallelism: which cost table the degree chooses, how much memory a rank has, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulator import named_tables
from simulator.cost_table import read_metadata
from simulator.errors import InputError
from simulator.experiment import Experiment, as_yaml_keys
from simulator.experiment_keys import resolve_experiment
from simulator.named_tables import find_table, split_degree, table_names
from simulator.table_costs import TableCosts
from tests.simulator.conftest import LINEAR, Simulate
from tests.simulator.tables import GPU, SHAPE, write_small_table

SHIPPED = {"small": 1, "small@tp2": 2, "small@fa3": 1, "small@fa3@tp4": 4, "lone@tp2": 2}


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that ship, by name, with their degrees."""
    folder = tmp_path / "gpu"
    folder.mkdir()
    paths = [write_small_table(folder, f"{name}.csv", tensor_parallel=degree) for name, degree in SHIPPED.items()]
    found: Callable[..., list[Path]] = named_tables.bundled_files
    ours = lambda package, folder, pattern: paths if folder == "tables" else found(package, folder, pattern)  # noqa: E731
    monkeypatch.setattr(named_tables, "bundled_files", ours)


def refused(name: str, tensor: int | None) -> str:
    with pytest.raises(InputError) as caught:
        find_table(name, None, tensor)
    return str(caught.value)


@pytest.mark.usefixtures("named")
class TestNames:
    def test_names(self) -> None:
        """Each file is a name; one without a kernel is also found under the kernel of its sidecar."""
        assert set(table_names()) == {
            *(f"gpu/{name}" for name in SHIPPED), "gpu/small@fa2", "gpu/small@fa2@tp2", "gpu/lone@fa2@tp2",
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("name", "tensor", "found"),
        [
            ("gpu/small", None, "gpu/small"),
            ("gpu/small", 1, "gpu/small"),
            ("gpu/small", 2, "gpu/small@tp2"),
            ("gpu/small@tp2", None, "gpu/small@tp2"),
            ("gpu/small@tp2", 2, "gpu/small@tp2"),
            ("gpu/small@tp1", 1, "gpu/small"),
            ("gpu/small@fa2", 2, "gpu/small@fa2@tp2"),
            ("gpu/small@fa3", 4, "gpu/small@fa3@tp4"),
        ],
    )
    def test_the_degree_chooses(self, name: str, tensor: int | None, found: str) -> None:
        """A name means the table of the degree and the kernel asked for; without a degree, of one GPU."""
        table = find_table(name, None, tensor)
        assert (table.name, table.metadata.tensor_parallel) == (found, split_degree(found)[1] or 1)

    def test_a_degree_that_was_not_measured(self) -> None:
        """The message names those that were."""
        message = refused("gpu/small", 4)
        assert message.startswith(
            "costs: no cost table gpu/small of a tensor-parallel degree of 4; there is one of 1, 2"
        )
        assert "profile-gpu --tp 4" in message
        assert "there is one of 2," in refused("gpu/lone", None)

    def test_a_name_of_another_degree(self) -> None:
        """A table that is named with its degree is not replaced by another."""
        message = refused("gpu/small@tp2", 1)
        assert message == (
            "costs: cost table gpu/small@tp2 was measured for a tensor-parallel degree of 2, parallel.tensor is 1"
        )

    def test_an_unknown_name_is_unknown_at_any_degree(self) -> None:
        """The nearest is suggested."""
        assert 'no cost table "gpu/smal"; did you mean "gpu/small' in refused("gpu/smal", 2)


class TestPaths:
    def test_a_path_has_to_fit(self, tmp_path: Path) -> None:
        """A CSV of another degree is refused, whatever its name; without an experiment it is read."""
        path = str(write_small_table(tmp_path, "mine.csv", tensor_parallel=2))
        assert find_table(path).metadata.tensor_parallel == find_table(path, None, 2).metadata.tensor_parallel == 2
        assert refused(path, 1).endswith("a tensor-parallel degree of 2, parallel.tensor is 1")
        assert refused(path, 4).endswith("a tensor-parallel degree of 2, parallel.tensor is 4")


def test_shipped_tables_are_named_after_their_degree() -> None:
    """And after their kernel, where the name has one."""
    for name, path in table_names().items():
        made = read_metadata(path.with_suffix(".yaml"))
        stem, degree = split_degree(name)
        assert made.tensor_parallel == (degree or 1), name
        kernel = stem.partition("@")[2]
        assert kernel in ("", named_tables.SHORT_BACKENDS[made.attention.backend]), name


@pytest.mark.usefixtures("here")
class TestExperiments:
    def resolve(self, **keys: Any) -> Experiment:
        return resolve_experiment({"trace": "tiny.csv", "policies": ["orca"], **keys})

    @pytest.mark.usefixtures("named")
    def test_the_table_of_the_degree(self) -> None:
        """Chosen by name, written out in full, and found again from what is written."""
        made = self.resolve(costs="gpu/small", parallel={"tensor": 2})
        assert made.costs == "gpu/small@tp2"
        assert isinstance(made.make_costs(), TableCosts)
        again = resolve_experiment(as_yaml_keys(made))
        assert (again.costs, again.num_blocks) == (made.costs, made.num_blocks)

    @pytest.mark.usefixtures("named")
    def test_what_is_missing_is_said(self) -> None:
        """The all-reduces are not in the prices."""
        words = "without the all-reduces between the 2 GPUs"
        assert any(words in note for note in self.resolve(costs="gpu/small", parallel={"tensor": 2}).notes)
        assert not any("all-reduce" in note for note in self.resolve(costs="gpu/small").notes)

    def test_each_rank_holds_half_of_weights_and_entries(self, here: Path) -> None:
        """So the blocks more than double: a rank's memory, less its weights, by its part of each entry."""
        write_small_table(here, tensor_parallel=2)
        made = self.resolve(costs="small.csv", parallel={"tensor": 2})
        rank = SHAPE.shard(2)
        usable = int(0.92 * GPU.memory_bytes) - rank.weight_bytes
        assert made.num_blocks == usable // (16 * rank.kv_bytes_per_token)
        assert rank.kv_bytes_per_token * 2 == SHAPE.kv_bytes_per_token
        assert made.model == SHAPE

    def test_a_model_that_does_not_divide(self) -> None:
        """At formula costs too, since memory is a rank's."""
        with pytest.raises(InputError, match=r"^parallel.tensor: llama-3.1-8b does not divide over 3 ranks"):
            self.resolve(costs=LINEAR, parallel={"tensor": 3})

    def test_tensor_on_the_command_line(self, simulate: Simulate, here: Path) -> None:
        """--tensor overrides the YAML and leaves its other keys; a path of another degree is refused."""
        write_small_table(here, tensor_parallel=2)
        answer = simulate("tiny.csv", "--costs", "small.csv", "--tensor", 2, "--policy", "orca", "--out", "out")
        assert answer.code == 0, answer
        assert "note: steps are priced without the all-reduces" in answer.out
        assert (
            "degree of 2, parallel.tensor is 4"
            in simulate("tiny.csv", "--costs", "small.csv", "--tensor", 4, "--out", "more").complaint
        )
        again = simulate("out/experiment.yaml", "--out", "again")
        assert again.code == 0, again
        assert (here / "again/summary.csv").read_bytes() == (here / "out/summary.csv").read_bytes()
