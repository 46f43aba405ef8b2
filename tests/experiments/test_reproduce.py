"""Every item of the paper on tiny phantoms: it runs, it is shown beside the published numbers, and it is done once.

The large networks run on one dataset only; that they fit the others is tested by building them. Networks have one block
per stage here; their true sizes are tested with the networks.
"""

import csv
import json
import re

import pytest
import torch

from fheat.data.recipes import RECIPES
from fheat.experiments import reproduce as module
from fheat.experiments.engine import Failure, RunsWatcher
from fheat.experiments.items.cost import _count
from fheat.experiments.overview import footnotes, overview, overview_sheet
from fheat.experiments.phantoms import regions_of
from fheat.experiments.plan import Plan, make_plan
from fheat.experiments.planned import perform
from fheat.experiments.records import ITEMS, datasets, item
from fheat.experiments.reproduce import as_json, chosen_items, reproduce, to_do
from fheat.experiments.row_plan import missing_parts, plan_row
from fheat.gates.cost import cost
from fheat.networks.registry import create_model
from fheat.training.trainer import Observer, Stopped
from tests.networks.test_contract import NARROWER_CONSTANTS, with_constants
from tests.refusals import refused

pytestmark = pytest.mark.slow

SMALL = ("la-all/fheat-seg", "la-all/light-unetr", "la-all/nnunet", "la-all/segresnet", "la-all/fheat-seg-l")


def small_items():
    """Return all items; of Tables IV and V the rows that take little time, and of the methods one beside CSE."""
    others = [name for name in ITEMS if name not in ("table4", "table5", "methods")]
    (five,) = chosen_items(["table5"], ["fheat-seg"])
    some = [*chosen_items(["table4"], SMALL), *chosen_items(["methods"], ["la-4/fheat-seg", "la-4/fheat-seg-by-bcp"])]
    return [*chosen_items(others), *some, five.model_copy(update={"costs": five.costs[-2:]})]


@pytest.fixture(scope="module", autouse=True)
def _one_block_per_stage():
    one = dict.fromkeys(("fheat_seg.DEPTHS", "light_unetr.DEPTHS"), (1, 1, 1, 1))
    one |= dict.fromkeys(("fheat_seg_l.DEPTH", "light_unetr_l.DEPTH", "large_u.DEPTH"), 1)
    _count.cache_clear()  # of networks of their true sizes
    with with_constants(one | {"large_u.WIDTHS": NARROWER_CONSTANTS["large_u.WIDTHS"]}):
        yield
    _count.cache_clear()


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return make_plan(["phantoms"], tmp_path_factory.mktemp("out"), scale="tiny", device="cpu")


@pytest.fixture(scope="module")
def shown(plan):
    heard, wanted = Heard(), to_do(small_items(), plan)
    found = {one.item.name: one for one in reproduce(small_items(), plan=plan, watcher=heard)}
    assert heard.begun == list(heard.ended) == [run.name for run in wanted]
    assert to_do(small_items(), plan) == []
    return found


class Heard(RunsWatcher):
    """Remembers the runs that began, and how those that ended did."""

    def __init__(self):
        self.begun, self.ended = [], {}

    def begins(self, name):
        self.begun.append(name)

    def ends(self, name, end):
        self.ended[name] = end


def numbers(shown, name):
    return {(number.row, number.quantity): number for number in shown[name].presented.numbers}


def test_every_item_is_shown_and_written(shown, plan):
    assert shown.keys() == set(ITEMS)
    for name, one in shown.items():
        assert not one.failures
        assert not any(note.startswith("not shown") for note in one.presented.notes), name
        assert {plan.out / f"{name}.md", plan.out / f"{name}.csv"} <= set(one.files)
        assert all(file.stat().st_size for file in one.files)
        assert one.presented.pictures, name
        assert all(result.state == "done" for result in one.results if result.plan.runs)
        assert str(one).startswith(one.item.title)
        text = (plan.out / f"{name}.md").read_text()
        assert text.startswith(f"# {one.item.title}\n")
        assert "mean nothing" in text
        for picture in one.presented.pictures:
            assert picture.file.startswith(name)
            assert f"]({picture.file})" in text


def test_scores_are_those_of_the_runs(shown, plan):
    result = next(result for result in shown["table2"].results if result.name == "la-4/fheat-seg")
    stored = json.loads((plan.runs / result.plan.runs[0].folder(plan.runs).name / "scores.json").read_text())
    dice = [row["dice"] for row in stored["rows"]]
    number = numbers(shown, "table2")["la-4/fheat-seg", "dice"]
    assert len(dice) == 2
    assert number.ours.mean == pytest.approx(100 * sum(dice) / 2)
    assert number.published.mean == 90.47
    assert (number.iterations, number.scans) == ("2 of 16,000", "2 test")
    lines = list(csv.DictReader((plan.out / "table2.csv").read_text().splitlines()))
    assert len(lines) == 14 * 4
    mine = next(line for line in lines if line["row"] == "la-4/fheat-seg" and line["quantity"] == "dice")
    assert float(mine["ours"]) == number.ours.mean
    tests = shown["table2"].presented.sheets[1]
    assert ("la-4", "fheat-seg - light-unetr") in {row[:2] for row in tests.rows}


def test_figures_say_what_our_scores_are_of(shown):
    for name in ("table2", "fig1", "fig6", "fig8"):
        for picture in shown[name].presented.pictures:
            assert ", 2 test scans scored, 2 of 16,000 iterations" in picture.caption, picture.file
    for number in shown["fig5"].presented.numbers:
        assert (number.iterations, number.scans, number.state) == ("2 of 16,000", "2 test", "done")
    said = r"la-4: 2 scans and \d+ tests cannot give a p Holm below 1\."
    assert any(re.fullmatch(said, note) for note in shown["table2"].presented.notes)


def test_published_costs_have_the_digits_of_the_paper(shown):
    rows = {row[0]: row[1:] for row in shown["table4"].presented.sheets[-1].rows}
    assert rows["FHEAT-Seg"][1::2][:3] == ("0.9", "1.2", "0.975")
    assert rows["MedSAM2"][1::2][:3] == ("2,259.2", "-", "38.96")


def test_classes_have_columns_of_their_own(shown):
    found = numbers(shown, "table5")
    classes = [
        found["abdomenct1k-all/fheat-seg", f"dice.{name}"].ours.mean
        for name in ("liver", "kidney", "spleen", "pancreas")
    ]
    assert found["abdomenct1k-all/fheat-seg", "dice"].ours.mean == pytest.approx(sum(classes) / 4)
    assert found["msd-all/fheat-seg", "dice.enhancing_tumour"].published.mean == 78.54
    heads = [sheet.head for sheet in shown["table5"].presented.sheets]
    assert sum("liver, Dice, %" in head for head in heads) == 1


def test_costs_are_those_of_the_one_counter(shown):
    found = numbers(shown, "table4")
    counted = cost(create_model("fheat_seg"))
    for quantity, value in (("macs", counted.rest / 1e9), ("macs_open", counted.macs / 1e9)):
        assert found["cost/fheat-seg", quantity].ours.mean == value
    assert found["cost/fheat-seg", "parameters"].ours.mean == counted.parameters / 1e6
    assert found["cost/light-unetr", "macs"].published.mean == 4.29
    assert found["cost/light-unetr", "macs"].ours.mean == cost(create_model("light_unetr")).macs / 1e9


def test_table_one_lists_the_open_gates_of_every_run(shown):
    result = shown["table1"].results[0]
    (outcome,) = result.outcomes.values()
    cells = shown["table1"].presented.sheets[0].rows[0]
    assert cells[2].split(", ")[0] == max(outcome.survivors, key=lambda site: outcome.survivors[site].D)
    assert numbers(shown, "table1")["la-4/fheat-seg", "D of dec1"].ours.mean == outcome.gates["dec1"].D


def test_dynamics_attention_and_open_points_are_measured(shown, plan):
    fig5, fig6, last = (numbers(shown, name) for name in ("fig5", "fig6", "section5"))
    assert fig5["", "(h) closed gates that opened"].ours.mean == 0
    assert 0 < fig5["", "(f) gradient left at the survivor, first"].ours.mean < 1
    assert len(shown["fig5"].presented.pictures) == 8
    assert 0 < fig6["la-4/fheat-seg", "attention inside the target, %"].ours.mean < 100
    assert (plan.runs / shown["fig6"].results[0].plan.runs[0].folder(plan.runs).name / "analysis.json").is_file()
    starts = [last[f"la-4/{name}", "alpha of dec1, seed 0"].ours.mean for name in ("fheat-seg", "unbounded-alpha")]
    assert starts == pytest.approx([0.3715, 0.3715], abs=0.005)  # two iterations away from the same start
    assert ("la-4/all-closed", "alpha of dec1, seed 0") not in last
    assert len(list(plan.runs.glob("*/order-gradients.json"))) == 2
    assert numbers(shown, "fig3")["", "sum D^2 at one gate"].ours.mean == pytest.approx(6.35, abs=0.005)
    assert numbers(shown, "fig7")["", "T1gd, ratio"].ours.mean > 0


def test_what_is_done_is_not_done_again(shown, plan):
    written = {path: path.stat().st_mtime_ns for path in plan.runs.glob("*/outcome.json")}
    heard = Heard()
    again = reproduce(["table1", "table6", "fig3"], plan=plan, watcher=heard)
    assert not heard.begun
    assert {path: path.stat().st_mtime_ns for path in plan.runs.glob("*/outcome.json")} == written
    for one in again:
        assert one.presented.numbers == shown[one.item.name].presented.numbers


def test_an_edited_record_is_run_again(shown, plan):
    (one,) = chosen_items(["table6"], ["la-4/kan-rate-doubled"])
    edited = one.rows[0].model_copy(update={"options": {"optimiser.rational": 0.2}})
    heard = Heard()
    (found,) = reproduce([one.model_copy(update={"rows": (edited,)})], plan=plan, watcher=heard)
    assert heard.begun == ["la-2-cse-fheat_seg-rational-0.2-seed-0"]
    before = next(result for result in shown["table6"].results if result.name == "la-4/kan-rate-doubled")
    assert found.results[0].outcomes[0].key != before.outcomes[0].key


class StopAtOnce(Observer):
    def before(self, trainer):
        trainer.stop()


def test_an_interrupted_run_goes_on(plan):
    again = Plan(plan.data, plan.out, seeds=(7,), tiny=plan.tiny, device="cpu")
    (one,) = chosen_items(["table2"], ["la-4/fheat-seg"])
    (run,) = plan_row(one.rows[0], again).runs
    with pytest.raises(Stopped):
        perform(run, again.runs, device="cpu", observers=[StopAtOnce()])
    assert overview([one], again)[0].state == "not run yet"
    assert run.state(again.runs) == "interrupted"
    (found,) = reproduce([one], plan=again)
    assert found.results[0].state == "done"
    lines = (run.folder(again.runs) / "log.jsonl").read_text().splitlines()
    assert [line["iteration"] for line in map(json.loads, lines) if "total" in line] == [1, 2]


def test_workers_are_asked_where_runs_are_to_be_parallel(plan, tmp_path, monkeypatch):
    asked = []

    def run_all(runs, folder, engine, watcher):
        asked.append(([run.name for run in runs], folder, len(engine._free)))
        return [Failure(run.name, "no memory") for run in runs]

    monkeypatch.setattr(module, "run_all", run_all)
    there = Plan(plan.data, tmp_path, tiny=plan.tiny, device="cpu")
    (found,) = reproduce(chosen_items(["table2"], ["la-4/fheat-seg"]), plan=there, parallel=3)
    assert asked == [(["la-2-cse-fheat_seg-seed-0"], tmp_path / "runs", 3)]
    assert found.failures == {"la-4/fheat-seg, seed 0": "no memory"}


@pytest.mark.usefixtures("shown")  # which has done the other row
def test_a_run_that_fails_is_named_and_the_others_go_on(plan):
    (one,) = chosen_items(["table6"], ["la-4/dec1-only", "la-4/fheat-seg"])
    rows = [row.model_copy(update={"options": {"network.gates": "enc9"}}) if row.options else row for row in one.rows]
    heard = Heard()
    (found,) = reproduce([one.model_copy(update={"rows": tuple(rows)})], plan=plan, watcher=heard)
    assert [type(end) for end in heard.ended.values()] == [Failure]
    states = {result.plan.row.system: result.state for result in found.results}
    assert states["fheat-seg"] == "done"
    assert states["dec1-only"].startswith("not run yet; seed 0 failed: network: gates names unknown sites enc9")
    assert list(found.failures) == ["la-4/dec1-only, seed 0"]
    assert json.loads(as_json([found]))[0]["numbers"][0]["state"] == "done"


def test_states_and_costs_of_all_items(shown, plan, tmp_path):
    states = {state.item.name: state for state in overview(small_items(), plan)}
    for name in ("table1", "table6", "fig2", "fig3", "fig5", "fig7", "section5"):
        assert states[name].state == "done", name
    assert states["table6"].runs == states["table6"].done == 9
    bare = {state.item.name: state for state in overview(chosen_items(), make_plan(out=tmp_path))}
    assert bare["table1"].state == "no data (LA, Pancreas-CT, BraTS 2019)"
    assert bare["fig3"].state == bare["fig2"].state == "not run yet"
    assert bare["fig7"].state == "no data (MSD Task01 as downloaded)"
    assert bare["table1"].minutes["cuda"] == pytest.approx(15 * 16_000 / 101.5 / 60, rel=0.15)
    words = "\n".join(footnotes(list(bare.values())))
    assert "NVIDIA H200" in words
    assert words.count("no data for") == 7
    assert "fheat data prepare brats2019 DOWNLOAD brats" in words
    assert len(overview_sheet(list(bare.values())).rows) == len(ITEMS)
    more = Plan(plan.data, plan.out, seeds=(0, 5), tiny=plan.tiny, device="cpu")
    (partly,) = overview(chosen_items(["table6"]), more)
    assert partly.state == "9 of 18 runs done"
    rows = tuple(row.model_copy(update={"network": "not_there"}) for row in item("table6").rows)
    (absent,) = overview([item("table6").model_copy(update={"rows": rows})], plan)
    assert absent.state == "not available yet (needs network not_there)"
    (mixed,) = overview([item("table6").model_copy(update={"rows": (*item("table6").rows, rows[0])})], plan)
    assert mixed.state == "done; 1 row not available yet (needs network not_there)"
    assert bare["table4"].state.endswith("; 9 rows each a program of your own: fheat prompt, docs/how-to/prompt.md")
    table4 = item("table4")
    times = [
        overview([table4.model_copy(update={"rows": tuple(map(table4.row, rows))})], plan)[0].minutes["cuda"]
        for rows in (["la-all/fheat-seg"], ["la-all/fheat-seg", "la-all/medsam2"])
    ]
    assert times[0] == times[1] > 0


def test_rows_are_chosen_by_name_setting_or_system():
    assert [row.name for row in chosen_items(["table2"], ["la-4/bcp"])[0].rows] == ["la-4/bcp"]
    assert len(chosen_items(["table2"], ["la-4"])[0].rows) == 7
    both = chosen_items(["table2", "table3", "fig3"], ["fheat-seg"])
    assert [one.name for one in both] == ["table2", "table3"]
    with pytest.raises(ValueError, match="no row 'la4', perhaps la-4 is meant"):
        chosen_items(["table2"], ["la4"])


def test_plans_that_cannot_be_are_refused(tmp_path):
    assert "belong together" in str(refused(make_plan, ["phantoms"], tmp_path))
    assert "belong together" in str(refused(make_plan, [], tmp_path, scale="tiny"))
    assert "2 or more" in str(refused(make_plan, [], tmp_path, iterations=1))
    (tmp_path / "file").write_text("")
    assert "is a file" in str(refused(make_plan, [], tmp_path / "file"))


def test_an_item_that_cannot_be_shown_says_why(plan, monkeypatch):
    def fails(*_):
        raise ValueError("the network diverged")

    monkeypatch.setattr(module, "present", fails)
    (found,) = reproduce(["fig3"], plan=plan)
    assert found.presented.notes == ("not shown: the network diverged",)


@pytest.mark.parametrize(
    "row", [row for row in item("table5").rows if not missing_parts(row.network)], ids=lambda row: row.name
)
def test_networks_fit_the_channels_and_classes_of_their_dataset(row, plan):
    recipe = RECIPES[datasets()[row.dataset].recipe]
    regions = regions_of(recipe)
    classes = len(regions) if any(len(values) > 1 for values in regions.values()) else len(regions) + 1
    options = {
        name.removeprefix("network."): value
        for name, value in {**row.options, **plan.tiny.options(row.network, row.method)}.items()
        if name.startswith("network.")
    }
    patch = plan.tiny.patch_size
    model = create_model(row.network, len(recipe.channels), classes, patch, **options).eval().to("meta")
    with torch.no_grad():
        assert model(torch.empty(1, len(recipe.channels), *patch, device="meta")).shape == (1, classes, *patch)
