"""What a variation changes."""

from pathlib import Path

import pytest
import yaml

from simulator.errors import InputError
from simulator.reproduce.published import SARATHI, TP_ONLY, TP_PP
from simulator.reproduce.variations import Variation, read_variations, systems
from simulator.table_costs import TableCosts
from tests.house.paths import ROOT

FOLDER = ROOT / "results/sarathi-pipeline"


def under(**changes):
    """The three experiments under a variation, by label."""
    return {system.label: system.experiment for system in systems(FOLDER, Variation("one", "about", **changes))}


def test_the_plain_experiment_is_the_papers():
    """64 GPUs each way, 27 requests a micro-batch or 11 a replica, chunks of 256."""
    plain = under()
    for label, pipeline, replicas in ((TP_PP, 8, 1), (SARATHI, 8, 1), (TP_ONLY, 1, 8)):
        parallel = plain[label].parallel
        assert (parallel.tensor, parallel.pipeline, parallel.replicas) == (8, pipeline, replicas)
        assert plain[label].table.name == "paper/gpt3-175b-a100@tp8"
    options = {label: experiment.policies[0].options for label, experiment in plain.items()}
    assert (options[TP_PP]["max_batch_size"], options[TP_PP]["max_prefills_per_batch"]) == (27, 1)
    assert (options[TP_ONLY]["max_batch_size"], options[TP_ONLY]["max_prefills_per_batch"]) == (11, 1)
    assert (options[SARATHI]["max_num_seqs"], options[SARATHI]["chunk_size"]) == (27, 256)
    assert (plain[TP_PP].network.name, plain[TP_PP].pipeline_network.name) == ("nvlink3", "infiniband-hdr")


def test_settings_reach_the_policy_of_their_label_alone():
    """Both pipelines are in one file, and the replicas run Orca, too."""
    varied = under(set=("tp-pp.max_batch_size=3",))
    assert varied[TP_PP].policies[0].options["max_batch_size"] == 3
    assert varied[TP_ONLY].policies[0].options["max_batch_size"] == 11


def test_changes_replace_keys_of_all_files():
    """Another network, looked for beside the files."""
    varied = under(changes={"network": "networks/none.yaml", "pipeline_network": "networks/none.yaml"})
    assert {experiment.network.name for experiment in varied.values()} == {"none"}
    assert varied[TP_PP].pipeline_network.all_reduce_us(10**6, 8) < 0.01


def test_slower_layers_add_as_much_to_every_layer():
    """100 us in each of 96 layers, for a prompt and for decodes."""
    plain, varied = (TableCosts(under(**change)[TP_ONLY].table) for change in ({}, {"layer_us": 100}))
    for step in ((0, 0, 0, [(0, 512)]), (8, 8000, 1000, [])):
        assert varied.step_ns(*step) - plain.step_ns(*step) == pytest.approx(96 * 100_000, abs=2)


def test_systems_that_are_alike_are_simulated_once():
    """A setting of SARATHI leaves the other two as they were."""
    plain, varied = ({system.label: system.key for system in systems(FOLDER, Variation("x", "about", set=settings))}
                     for settings in ((), ("sarathi.tile_size=0",)))  # fmt: skip
    assert plain[TP_PP] == varied[TP_PP]
    assert plain[TP_ONLY] == varied[TP_ONLY]
    assert plain[SARATHI] != varied[SARATHI]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ([], "each variation needs a name of its own, not none"),
        ([{"name": "a", "about": ""}, {"name": "a", "about": ""}], 'not "a" twice'),
        ([{"name": "a", "about": "", "layers_us": 3}], "layer_us"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, raw, message):
    """With what is wrong."""
    path = tmp_path / "variations.yaml"
    path.write_text(yaml.safe_dump({"variations": raw}), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_variations(path)
