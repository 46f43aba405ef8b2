"""What a run folder means, in every place that takes a model: its best network, else its final one."""

import shutil

import pytest

from fheat import load
from fheat.models.start import start_folder
from fheat.models.zoo import find_folder
from fheat.training.runs import open_saved


@pytest.mark.parametrize(("missing", "part"), [(None, "best"), ("final", "best"), ("best", "final")])
def test_a_run_folder_means_the_same_network_everywhere(finished, tmp_path, missing, part):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    if missing is not None:
        shutil.rmtree(run / missing)
    assert find_folder(run) == start_folder(str(run)) == run / part
    saved = open_saved(str(run))
    assert saved.part == part
    iteration = load(run / part).card.training["iteration"]
    assert saved.card.training["iteration"] == load(run).card.training["iteration"] == iteration
