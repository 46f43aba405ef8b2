"""From rows to runs: the settings of the protocol, shared runs, other lengths, and what rows need."""

from dataclasses import replace
from pathlib import Path

import pytest

from fheat.data.phantom import write_phantoms
from fheat.experiments.phantoms import paper_phantoms, regions_of, with_values
from fheat.experiments.plan import FULL, Plan, Tiny, locate, remedy
from fheat.experiments.records import datasets, item, items
from fheat.experiments.row_plan import missing_parts, options_for, plan_row, scored_cases
from fheat.experiments.row_result import RowResult
from fheat.networks.registry import _NETWORKS, create_model, register_model
from fheat.training.checkpoints import flattened
from tests.refusals import refused


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory):
    return paper_phantoms(tmp_path_factory.mktemp("phantoms"))


@pytest.fixture(scope="module")
def plan(phantoms):
    return Plan(phantoms, Path("nowhere"))


def test_runs_have_the_windows_and_lengths_of_the_protocol(plan):
    (run, *more) = plan_row(item("table2").row("la-4/fheat-seg"), plan).runs
    settings = flattened(run.settings)
    assert settings["data.labelled"] == 4
    assert settings["data.patch_size"] == [112, 112, 80]
    assert (settings["schedule.iterations"], settings["schedule.warm_up"], settings["validation.every"]) == (
        16_000,
        500,
        1000,
    )
    assert (run.scoring.stride, run.scoring.largest_component, run.scoring.voxels) == ((18, 18, 4), True, True)
    assert [one.settings.schedule.seed for one in (run, *more)] == [0, 1, 2]
    (brats,) = plan_row(item("table4").row("brats-all/fheat-seg"), plan).runs
    assert (brats.settings.data.patch_size, brats.scoring.stride) == ((96, 96, 96), (64, 64, 64))
    assert brats.settings.method.name == "supervised"
    assert brats.settings.data.labelled is None
    (pancreas, *_) = plan_row(item("table2").row("pancreas-6/light-unetr"), plan).runs
    assert pancreas.scoring.stride == (16, 16, 4)
    assert pancreas.settings.preprocessing.intensity == "none"
    assert pancreas.settings.optimiser.precision == "bf16"


def test_rivals_turn_and_mirror_crops_where_their_protocols_do(plan):
    def augmentation(table, row):
        return plan_row(item(table).row(row), plan).runs[0].settings.data.augment

    assert augmentation("table2", "la-4/bcp") == augmentation("methods", "brats-25/fheat-seg-by-bcp") == "rotate"
    assert augmentation("methods", "la-4/fheat-seg-by-supervised") == "rotate"
    assert augmentation("table2", "pancreas-6/bcp") == "none"
    assert augmentation("table2", "la-4/light-unetr") == augmentation("table4", "la-all/fheat-seg") == "none"


def test_a_method_trains_for_its_own_number_of_iterations(plan):
    def lengths(name, plan):
        planned = plan_row(item("methods").row(name), plan)
        return planned.iterations, *(run.settings.schedule.iterations for run in planned.runs)

    assert lengths("la-4/fheat-seg-by-ua-mt", plan) == (6000, 6000)
    assert lengths("la-4/fheat-seg-by-bcp", plan) == (16_000, 16_000)
    assert lengths("la-4/fheat-seg-by-caml", replace(plan, iterations=1600)) == (1500, 1500)
    assert lengths("la-4/fheat-seg-by-ua-mt", replace(plan, iterations=2)) == (2, 2)

    def words(name, plan):
        return RowResult(plan_row(item("methods").row(name), plan), {}, {}).iterations

    assert words("la-4/fheat-seg-by-ua-mt", plan) == "6,000"
    assert words("la-4/fheat-seg-by-ua-mt", replace(plan, iterations=4000)) == "1,500 of 6,000"


def test_every_row_that_exists_has_settings_that_fit_together(plan):
    names: dict[str, dict] = {}
    for one in items().values():
        for row in one.rows:
            made = plan_row(row, plan)
            assert bool(made.runs) == (not made.needs and not row.outside)
            for run in made.runs:
                assert names.setdefault(run.name, flattened(run.settings)) == flattened(run.settings)
    assert len(names) >= 120  # more with every network and method that is added
    lengths = [flattened(run.settings) for run in plan_row(item("fig5").row("la-4/noise"), plan).runs]
    assert lengths[0]["research.noise_at"] == 8000


def test_rows_that_train_alike_share_their_runs(plan):
    names = [
        {run.name for run in plan_row(item(name).row(row), plan).runs}
        for name, row in (("table1", "la-4/fheat-seg"), ("table2", "la-4/fheat-seg"), ("table6", "la-4/fheat-seg"))
    ]
    assert names[0] == names[1] == names[2]
    assert plan_row(item("fig5").row("la-4/ffn"), plan).runs[0].name in {
        run.name for run in plan_row(item("table6").row("la-4/ffn"), plan).runs
    }


def test_a_shorter_run_is_another_run_in_proportion(phantoms, plan):
    row = item("fig5").row("la-4/noise")
    short = Plan(phantoms, Path("nowhere"), iterations=4000)
    (long_run,), (run,) = plan_row(row, plan).runs, plan_row(row, short).runs
    assert run.settings.research.noise_at == 2000
    assert run.settings.schedule.warm_up == 500
    assert run.key != long_run.key
    assert run.folder(Path()) != long_run.folder(Path())
    assert options_for({"research.probe_at": [0, 100, 8000, 16_000]}, 1600) == {"research.probe_at": [0, 10, 800, 1600]}
    assert options_for({"research.spike_at": 8000}, 2) == {"research.spike_at": 1}
    assert options_for({"network.gates": "dec1"}, 2) == {"network.gates": "dec1"}
    assert options_for({"research.spike_at": 8000}, FULL) == {"research.spike_at": 8000}


def test_an_edited_record_is_another_run(plan):
    row = item("table6").row("la-4/kan-rate-doubled")
    edited = row.model_copy(update={"options": {"optimiser.rational": 0.2}})
    fewer = row.model_copy(update={"labels": 3})
    other_words = row.model_copy(update={"title": "another title", "published": {}})
    (run, *_), (changed, *_), (less, *_), (same, *_) = (
        plan_row(each, plan).runs for each in (row, edited, fewer, other_words)
    )
    assert len({run.key, changed.key, less.key}) == 3
    assert same.key == run.key
    assert same.folder(Path()) == run.folder(Path())


def test_a_probed_run_is_another_run_than_one_that_is_not(plan):
    (probed,), (bare, *_) = (
        plan_row(item(name).row(row), plan).runs
        for name, row in (("fig5", "la-4/probed"), ("table2", "la-4/fheat-seg"))
    )
    assert probed.settings.research.probe_at[-1] == 16_000
    assert probed.key != bare.key


def test_a_row_needs_its_network_its_method_and_its_data(phantoms):
    plan = Plan({"brats": phantoms["brats"]}, Path("nowhere"))
    row = item("table3").row("brats-25/fheat-seg")
    for part in ("network", "method"):
        absent = plan_row(row.model_copy(update={part: "not_there"}), plan)
        assert absent.problem == f"not available yet (needs {part} not_there)"
        assert absent.runs == ()
    assert missing_parts("one", "other") == "network one and method other"
    without = plan_row(item("table2").row("la-4/fheat-seg"), plan)
    assert without.runs == ()
    for words in ("fheat data prepare la DOWNLOAD la --benchmark-crop", "--data la=FOLDER", "licence", "ship"):
        assert words in without.problem
    assert "unpack Task01_BrainTumour" in remedy("msd-original")
    assert plan_row(row, plan).problem == ""


def test_a_program_of_somebody_else_is_not_trained(plan):
    rows = [row for row in item("table4").rows if row.outside]
    assert {row.system for row in rows} == {"medsam2", "efficient-medsam2", "med-fastsam"}
    for row in rows:
        made = plan_row(row, plan)
        assert made.problem == "a program of your own: fheat prompt, docs/how-to/prompt.md"
        assert made.runs == ()
        assert made.needs == ""


def test_a_row_runs_once_its_network_is_registered(plan):
    row = item("table5").row("hnc-all/fheat-seg").model_copy(update={"network": "not_there"})
    assert plan_row(row, plan).needs == "network not_there"

    def build(in_channels, out_channels, patch_size):
        return create_model("fheat_seg", in_channels, out_channels, patch_size)

    register_model("not_there", build)
    try:
        assert [run.settings.network.name for run in plan_row(row, plan).runs] == ["not_there"]
    finally:
        del _NETWORKS["not_there"]


def test_seeds_are_those_of_the_record_or_those_asked_for(phantoms):
    row = item("table2").row("la-4/fheat-seg")
    assert plan_row(row, Plan(phantoms, Path("nowhere"))).seeds == (0, 1, 2)
    assert plan_row(row, Plan(phantoms, Path("nowhere"), seeds=(5,))).seeds == (5,)
    assert plan_row(row, Plan(phantoms, Path("nowhere"), tiny=Tiny())).seeds == (0,)


def test_scans_are_those_of_the_test_split_or_of_the_validation(phantoms, tmp_path):
    split, cases = scored_cases(phantoms["la"])
    assert (split, len(cases)) == ("test", 2)
    write_phantoms(tmp_path / "only-training", 10, test=0, shape=(32, 32, 32))
    plan = Plan({"la": tmp_path / "only-training"}, tmp_path)
    made = plan_row(item("table2").row("la-4/fheat-seg"), plan)
    assert (made.split, made.scans, made.runs[0].scoring.split) == ("validation", 1, "validation")


def test_datasets_are_found_by_name_or_in_a_folder(phantoms):
    root = phantoms["la"].parent
    assert locate([f"LA={root / 'la'}", f"BRATS2019={root / 'hnc'}"]) == {"la": root / "la", "brats": root / "hnc"}
    assert locate([str(root)]) == {name: root / name for name in ("abdomenct1k", "hnc", "la", "msd")}
    assert locate([]) == {}
    assert "perhaps brats is meant" in str(refused(locate, [f"brat={root / 'la'}"]))
    assert "does not exist" in str(refused(locate, ["la=nowhere"]))
    assert "is not a folder" in str(refused(locate, ["nowhere"]))
    assert "give each dataset once" in str(refused(locate, [f"la={root / 'la'}", f"LA={root / 'hnc'}"]))
    assert f"--data la={root / 'la'}" in refused(locate, [str(root / "la")]).remedy


def test_a_folder_with_two_forms_of_a_dataset_is_refused(phantoms, tmp_path):
    for name in ("pancreas-a", "pancreas-b"):
        (tmp_path / name).symlink_to(phantoms["la"])
    error = refused(locate, [str(tmp_path)])
    assert "holds pancreas-a and pancreas-b, which are one dataset of the paper" in error.reason
    assert locate([f"pancreas={tmp_path / 'pancreas-b'}"]) == {"pancreas": tmp_path / "pancreas-b"}


def test_a_folder_may_have_an_equals_sign_in_its_name(phantoms, tmp_path):
    (tmp_path / "version=2").symlink_to(phantoms["la"].parent)
    assert locate([str(tmp_path / "version=2")])["la"] == tmp_path / "version=2" / "la"


def test_rows_that_differ_in_any_option_have_runs_of_different_names(plan):
    row = item("table6").row("la-4/fheat-seg")
    options = [{}, {"research.probe_at": [0]}, {"research.probe_at": [0, 1]}, {"optimiser.clip": None}]
    runs = [plan_row(row.model_copy(update={"options": some}), plan).runs[0] for some in options]
    assert len({run.name for run in runs}) == len({run.key for run in runs}) == len(options)


def test_phantoms_have_the_channels_and_classes_of_the_paper(phantoms):
    from fheat.data.layouts import open_dataset
    from fheat.data.read import read_image, read_label
    from fheat.data.recipes import RECIPES

    assert phantoms.keys() == datasets().keys()
    for name, folder in phantoms.items():
        recipe = RECIPES[datasets()[name].recipe]
        dataset = open_dataset(folder)
        assert not dataset.problems
        assert {split: len(dataset.split(split)) for split in ("train", "validation", "test")} == {
            "train": 4, "validation": 1, "test": 2,
        }  # fmt: skip
        case = dataset.split("test")[0]
        image = read_image(case)
        assert image.data.shape == ((32, 32, 32) if len(recipe.channels) == 1 else (32, 32, 32, len(recipe.channels)))
        values = {value for region in regions_of(recipe).values() for value in region}
        assert set(read_label(case, image).data.ravel().tolist()) == {0, *values}
    again = {name: (folder / "dataset.json").stat().st_mtime_ns for name, folder in phantoms.items()}
    assert paper_phantoms(phantoms["la"].parent) == phantoms
    assert {name: (folder / "dataset.json").stat().st_mtime_ns for name, folder in phantoms.items()} == again


def test_values_fill_a_mask_evenly_and_nested_regions_from_the_outside():
    import numpy as np

    ball = np.linalg.norm(np.indices((16, 16, 16)) - 7.5, axis=0) < 6
    nested = with_values(ball, [(1, 2, 3), (2, 3), (3,)])
    assert (nested[~ball] == 0).all()
    counts = np.bincount(nested[ball])[1:]
    assert counts.sum() == ball.sum()
    assert counts.max() - counts.min() <= 1
    assert nested[7, 7, 7] == 3
    exclusive = with_values(ball, [(1,), (2,)])
    assert np.unique(exclusive[:6][ball[:6]]).tolist() == [1]
    assert not with_values(np.zeros((4, 4, 4), dtype=bool), [(1,)]).any()
