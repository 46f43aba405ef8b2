"""Sweep files: which runs a file plans, what they are called, and what is refused in one line."""

import math
import re
from itertools import product

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fheat.experiments.sweep import labels, read_sweep, shown_value, word
from fheat.training.checkpoints import flattened
from tests.refusals import refused

VALUES = {
    "seed": st.integers(0, 99),
    "labelled": st.integers(1, 9),
    "optimiser.clip": st.one_of(st.just("none"), st.floats(0.5, 4.0)),
    "optimiser.learning_rate": st.floats(1e-4, 0.1),
    "network": st.sampled_from(["fheat_seg", "light_unetr", "fheat_seg_l"]),
    "data.patch_size": st.sampled_from([[32, 32, 32], [48, 32, 32], [112, 112, 80]]),
    "tensorboard": st.booleans(),
}
DOTTED = {
    "seed": "schedule.seed",
    "labelled": "data.labelled",
    "network": "network.name",
    "tensorboard": "output.tensorboard",
}


@st.composite
def grids(draw):
    names = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4, unique=True))
    return {name: draw(st.lists(VALUES[name], min_size=1, max_size=3, unique_by=str)) for name in names}


@pytest.fixture
def sweep_of(tmp_path, scans):
    """A function that writes a sweep file and reads it; [settings] names the scans."""

    def read(content):
        common = {"data": str(scans), "method": "supervised", **content.get("settings", {})}
        (tmp_path / "sweep.toml").write_text(tomli_w.dumps({**content, "settings": common}))
        return read_sweep(tmp_path / "sweep.toml")

    return read


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(grid=grids())
def test_a_grid_gives_every_combination_once_under_a_name_of_its_own(sweep_of, grid):
    runs = sweep_of({"grid": grid}).runs
    assert len(runs) == math.prod(map(len, grid.values()))
    assert len({run.name.lower() for run in runs}) == len(runs)
    for run, point in zip(runs, product(*grid.values()), strict=True):
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", run.name)
        values = flattened(run.settings)
        for name, value in zip(grid, point, strict=True):
            assert values[DOTTED.get(name, name)] == (None if value == "none" else value)
        assert (values["data.folder"], values["method.name"]) == (run.settings.data.folder, "supervised")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(grid=grids())
def test_the_columns_of_the_table_tell_all_runs_apart(sweep_of, grid):
    sweep = sweep_of({"grid": grid})
    rows = {tuple(word(values.get(run.name, "-")) for values in sweep.varied.values()) for run in sweep.runs}
    assert len(rows) == len(sweep.runs)
    assert len(sweep.varied) == sum(len(values) > 1 for values in grid.values())


def test_names_say_what_differs(sweep_of):
    runs = sweep_of({"grid": {"clip": [1.0, "none"], "labelled": [2], "seed": [0, 1]}}).runs
    assert [run.name for run in runs] == ["clip-1.0-seed-0", "clip-1.0-seed-1", "clip-none-seed-0", "clip-none-seed-1"]
    assert {run.settings.data.labelled for run in runs} == {2}
    assert [run.name for run in sweep_of({"grid": {"seed": [3]}}).runs] == ["run"]


def test_dotted_names_may_be_written_as_tables(sweep_of):
    nested = sweep_of({"grid": {"optimiser": {"clip": [1.0, 2.0]}}, "settings": {"schedule": {"iterations": 9}}})
    quoted = sweep_of({"grid": {"optimiser.clip": [1.0, 2.0]}, "settings": {"schedule.iterations": 9}})
    assert nested == quoted
    assert [run.name for run in nested.runs] == ["clip-1.0", "clip-2.0"]
    assert nested.runs[0].settings.schedule.iterations == 9


def test_named_runs_each_meet_every_point_of_the_grid(sweep_of):
    tables = [{"name": "plain"}, {"name": "slow", "learning_rate": 0.001, "optimiser": {"clip": "none"}}]
    sweep = sweep_of({"run": tables, "grid": {"seed": [0, 1]}, "settings": {"learning_rate": 0.02}})
    assert [run.name for run in sweep.runs] == ["plain-seed-0", "plain-seed-1", "slow-seed-0", "slow-seed-1"]
    rates = [run.settings.optimiser.learning_rate for run in sweep.runs]
    assert rates == [0.02, 0.02, 0.001, 0.001]
    assert sweep.varied["clip"]["slow-seed-1"] is None
    assert [run.name for run in sweep_of({"run": tables}).runs] == ["plain", "slow"]


def test_short_names_are_those_of_the_method_of_the_run(sweep_of):
    runs = sweep_of({"run": [{"name": "a", "method": "ua_mt", "passes": 4}], "grid": {"seed": [0, 1]}}).runs
    assert {run.settings.method.passes for run in runs} == {4}
    both = sweep_of({"grid": {"method": ["supervised", "cse"]}})
    assert [run.name for run in both.runs] == ["method-supervised", "method-cse"]
    assert both.varied["method"] == {"method-supervised": "supervised", "method-cse": "cse"}


@pytest.mark.parametrize(
    ("runs", "columns"),
    [
        ([{"method": "supervised"}, {"method": "cse"}, {"method": "ua_mt"}, {"method": "sassnet"}], ["method"]),
        ([{"method": "supervised"}, {"method": "ua_mt", "ramp": 9}, {"method": "cps", "ramp": 9}], ["method"]),
        ([{"method": "mean_teacher", "ramp": 8}, {"method": "cps", "ramp": 9}], ["method", "ramp"]),
        ([{"method": "ua_mt"}, {"method": "ua_mt", "passes": 4}], ["passes"]),
        ([{"method": "supervised"}, {"method": "ua_mt", "passes": 4}], ["method"]),
        ([{"network": "light_unetr"}, {"network": "fheat_seg"}], ["network"]),
        ([{}, {"network.kan_ratio": 2}], ["kan_ratio"]),
        ([{"seed": 1, "clip": 2.0, "method": "cse"}, {}], ["method", "clip", "seed"]),
        ([{"seed": 1, "network": "light_unetr"}, {"labelled": 3}], ["network", "labelled", "seed"]),
    ],
)
def test_a_column_is_what_was_given_different_values(sweep_of, runs, columns):
    named = [{"name": f"r{number}", **values} for number, values in enumerate(runs)]
    assert list(sweep_of({"run": named}).varied) == columns


def test_a_run_without_the_setting_is_left_out_of_its_column(sweep_of):
    runs = [{"name": "a", "method": "cps", "ramp": 9}, {"name": "b"}, {"name": "c", "method": "cse"}]
    assert sweep_of({"run": runs}).varied["ramp"] == {"a": 9, "c": 0}


def test_labels_are_short_where_they_stay_different():
    names = ["network.name", "method.name", "optimiser.clip", "validation.stride", "other.stride"]
    assert list(labels(names).values()) == ["network", "method", "clip", "validation.stride", "other.stride"]


def test_scoring_is_read(sweep_of):
    (run,) = sweep_of({"grid": {"seed": [0]}, "scoring": {"split": "test", "network": "final", "voxels": False}}).runs
    assert (run.scoring.split, run.scoring.network, run.scoring.voxels) == ("test", "final", False)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"grid": {"sed": [1]}}, "field sed does not exist, perhaps schedule.seed is meant (run run)"),
        ({"grid": {"seed": [1, -1]}}, "field schedule.seed: Input should be greater than or equal to 0 (run seed--1)"),
        ({"grid": {"seed": 1}}, "field grid.seed: takes a list of values, not 1"),
        ({"grid": {"seed": []}}, "field grid.seed: takes a list of values, not []"),
        ({"grid": {}}, "field grid: is empty"),
        ({}, "plans no run"),
        ({"grids": {"seed": [1]}}, "field grids does not exist, perhaps grid is meant"),
        ({"grid": 3}, "field grid: is not a table"),
        ({"run": {"name": "a"}}, "field run: is not a list of tables"),
        ({"run": [{"seed": 1}]}, "field run 1: has no name"),
        ({"run": [{"name": "a", "seed": 1}, {"name": "A", "seed": 2}]}, "field run: two runs have the name A"),
        ({"run": [{"name": "a/b"}]}, "field run: name 'a/b'"),
        ({"run": [{"name": "a"}, {"name": "b"}]}, "field run: a and b have the same settings"),
        ({"grid": {"clip": [1, 1.0]}}, "field run: clip-1 and clip-1.0 have the same settings"),
        ({"run": [{"name": "a", "seed": 1}], "grid": {"schedule.seed": [1]}}, "schedule.seed: is given twice"),
        ({"run": [{"name": "a", "seed": 1, "schedule": {"seed": 2}}]}, "schedule.seed: is given twice"),
        ({"run": [{"name": "a" * 200}]}, "is too long"),
        ({"grid": {"method": ["nonsense"]}}, "'nonsense'"),
        ({"grid": {"seed": [1]}, "scoring": {"spilt": "test"}}, "field scoring.spilt does not exist, perhaps split"),
        ({"grid": {"seed": [1]}, "scoring": {"stride": [999, 1, 1]}}, "field run: scoring.stride (999, 1, 1) leaves"),
        ({"grid": {"seed": [1]}, "scoring": {"split": "train"}}, "field scoring.split: Input should be"),
        ({"grid": {"seed": [1]}, "settings": {"data": "nowhere"}}, "field data.folder: nowhere does not exist"),
        ({"grid": {"seed": [1]}, "settings": 4}, "field settings: is not a table"),
    ],
)
def test_files_that_plan_nothing_usable_are_refused_in_one_line(tmp_path, scans, content, says):
    if isinstance(content.get("settings", {}), dict):
        content = {**content, "settings": {"data": str(scans), "method": "supervised", **content.get("settings", {})}}
    path = tmp_path / "sweep.toml"
    path.write_text(tomli_w.dumps(content))
    error = refused(read_sweep, path)
    assert error.path == path
    assert says in error.reason


def test_a_file_without_data_or_that_is_no_file_is_refused(tmp_path):
    (tmp_path / "sweep.toml").write_text("[grid]\nseed = [1]\n")
    assert "field data: is missing in [settings]" in str(refused(read_sweep, tmp_path / "sweep.toml"))
    (tmp_path / "sweep.toml").write_text("[grid\n")
    assert "is not TOML" in str(refused(read_sweep, tmp_path / "sweep.toml"))
    assert "cannot be read" in str(refused(read_sweep, tmp_path / "nothing.toml"))


def test_a_grid_of_astronomical_size_is_refused_before_it_is_listed(sweep_of):
    grid = {"seed": list(range(1000)), "iterations": list(range(1, 1001)), "labelled": list(range(1, 1001))}
    assert "plans 1,000,000,000 runs" in refused(sweep_of, {"grid": grid}).reason


def test_patterns_that_file_names_cannot_tell_apart_make_two_runs(sweep_of):
    """The table shows them as they were written."""
    grid = {"network.instrument": [["**.project"], ["*.project", "stem"], ["*.project"]], "seed": [0, 1]}
    runs = sweep_of({"settings": {"network": "miniature", "patch_size": [16, 16, 16]}, "grid": grid}).runs
    assert [run.name for run in runs[::2]] == [
        "instrument--.project-seed-0",
        "instrument--.projectxstem-seed-0",
        "instrument--.project-again-2-seed-0",
    ]
    assert runs[4].settings.network.instrument == ("*.project",)
    assert [shown_value(run.settings.network.instrument) for run in runs[::2]] == [
        "**.project",
        "*.project stem",
        "*.project",
    ]
    assert shown_value((32, 32, 32)) == word((32, 32, 32)) == "32x32x32"
