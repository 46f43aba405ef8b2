"""Analyses of a trained network: against windows taken by hand, and from the command line to figures and back."""

import errno
import json
import re
import shutil
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fheat import Predictor, create_model, save
from fheat.cli.main import main
from fheat.data.layouts import open_dataset
from fheat.data.read import read_image, read_label
from fheat.inference.windows import Windows
from fheat.io.volume import Volume
from fheat.models.card import Card
from fheat.studies.inside.attention import attention_map, concentration, target_mask
from fheat.studies.inside.figures import pictures
from fheat.studies.inside.measure import AnalysisOptions, analyse
from fheat.studies.inside.record import planes_bytes, read_analysis, read_planes
from fheat.studies.inside.residual import residual_spectrum
from fheat.training.runs import open_saved
from tests.refusals import refused


@pytest.fixture(scope="module")
def finished(finished_fheat_seg):
    """Attention and residuals are those of a real network."""
    return finished_fheat_seg


@pytest.fixture(scope="module")
def cases(finished):
    return open_dataset(finished.parent / "scans").split("validation")


@pytest.fixture(scope="module")
def figures(finished, tmp_path_factory):
    out = tmp_path_factory.mktemp("figures")
    assert (
        main(["allocation", str(finished), "--residual", "--attention", "--figures", str(out), "--device", "cpu"]) == 0
    )
    return out


def windows_by_hand(predictor, image):
    """Every window of a scan, with its corner: half the patch apart, the last moved back to the border."""
    scan = predictor.scan(image)
    x = scan.planes(0, 0, scan.shape[0])
    padding = [max(32 - length, 0) for length in scan.shape]
    assert not any(padding)
    for corner in np.ndindex(*(-(-max(length - 32, 0) // 16) + 1 for length in scan.shape)):
        begin = [min(16 * index, length - 32) for index, length in zip(corner, scan.shape, strict=True)]
        box = tuple(slice(first, first + 32) for first in begin)
        yield box, x[:, *box][None]


def test_both_measures_are_those_of_the_windows_taken_by_hand(finished, cases):
    found = analyse(open_saved(str(finished)), cases, AnalysisOptions(), device="cpu")
    predictor = Predictor(str(finished / "best"), windows=Windows((32, 32, 32), (16, 16, 16)), device="cpu")
    network, image = predictor.network, read_image(cases[0])
    shape = predictor.scan(image).shape
    total, count, residuals = torch.zeros(shape), torch.zeros(shape), []
    for index in range(2):
        network.enc4.blocks[index].register_forward_hook(lambda _, given, out: residuals.append(out[0] - given[0]))
    boxes = list(windows_by_hand(predictor, image))
    with torch.no_grad():
        for box, x in boxes:
            attention = network.forward_features(x).attention
            assert attention.shape[2:] == (8, 8, 8)
            total[box] += F.interpolate(attention, (32, 32, 32), mode="trilinear", align_corners=False)[0, 0]
            count[box] += 1
    inside = concentration(total / count, target_mask(predictor, read_label(cases[0], image)))
    assert found.attention.cases[0].share == pytest.approx(inside.share, rel=1e-5)
    assert found.attention.cases[0].chance == inside.chance
    assert found.attention.cases[0].over_chance == pytest.approx(inside.share / inside.chance, rel=1e-5)
    spectrum = residual_spectrum(torch.cat(residuals))
    case = found.residual.cases[0]
    assert case.windows == len(boxes) > 1
    assert case.share_above == pytest.approx(spectrum.share_above, rel=1e-4)
    assert case.share_constant == pytest.approx(spectrum.constant / spectrum.total, rel=1e-4)
    assert case.energy == pytest.approx([energy / spectrum.total for energy in spectrum.energy], rel=1e-4, abs=1e-9)
    assert sum(case.energy) == pytest.approx(1)
    assert found.residual.blocks == ("enc4.blocks.0", "enc4.blocks.1")


@pytest.mark.parametrize("name", ["light_unetr", "segresnet"])
def test_other_networks_have_attention_too(name, cases, tmp_path):
    card = Card(classes=("background", "left_atrium"))
    save(create_model(name, patch_size=(32, 32, 32)), tmp_path / "model", card)
    saved = open_saved(str(tmp_path / "model"))
    options = AnalysisOptions(residual=name == "light_unetr")
    found = analyse(saved, cases, options, device="cpu")
    assert 0 < found.attention.cases[0].share < 1
    assert (found.residual is None) == (name == "segresnet")
    if name == "segresnet":
        with pytest.raises(ValueError, match="name the blocks"):
            analyse(saved, cases, AnalysisOptions(), device="cpu")
        block = "body.down_layers.3.1"
        named = analyse(saved, cases, AnalysisOptions(attention=False, blocks=(block,)), device="cpu")
        assert named.residual.by_block.keys() == {block}


def test_nearest_attention_is_that_of_its_cell(finished, cases):
    predictor = Predictor(str(finished / "final"), windows=Windows((32, 32, 32), (32, 32, 32)), device="cpu")
    volume = Volume(read_image(cases[0]).data[:32, :32, :32], np.diag([*predictor.preprocessing.spacing, 1]))
    found = attention_map(predictor, predictor.scan(volume), "nearest")
    cells = found.reshape(8, 4, 8, 4, 8, 4)
    assert torch.equal(cells, cells[:, :1, :, :1, :, :1].expand_as(cells))


def test_targets_are_on_the_networks_grid(finished):
    predictor = Predictor(str(finished / "final"), device="cpu")
    mask = np.zeros((10, 12, 14), np.uint8)
    mask[2:6, 4:8, 4:12] = 1
    same = target_mask(predictor, Volume(mask, np.diag([*predictor.preprocessing.spacing, 1])))
    assert np.array_equal(same.numpy(), mask > 0)
    coarse = target_mask(predictor, Volume(mask, np.diag([*(2 * step for step in predictor.preprocessing.spacing), 1])))
    assert coarse.shape == (20, 24, 28)
    assert int(coarse.sum()) == 8 * int(mask.sum()) - 8  # the outermost voxel of a corner is 27/64 inside


@pytest.mark.slow
def test_figures_and_numbers_from_a_run(finished, figures, cases):
    analysis = read_analysis(figures / "analysis.json")
    assert {path.name for path in figures.iterdir()} == {
        "analysis.json", "attention-maps.npz", "attention-maps-1.png", "attention.svg", "residual.svg",
    }  # fmt: skip
    (model,) = analysis.models
    assert (model.part, model.network, analysis.dataset) == ("best", "fheat_seg", "phantom")
    assert (model.windows["size"], model.windows["stride"]) == ((32, 32, 32), (16, 16, 16))
    assert [case.case for case in model.attention.cases] == [case.id for case in cases]
    for name in ("attention", "residual"):
        root = ET.fromstring((figures / f"{name}.svg").read_text())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
    drawn = {picture.file: picture for picture in pictures(analysis)}
    assert model.residual.modes_above == 0
    assert "a grid of one voxel has no frequency but the constant" in drawn["residual.svg"].caption
    inside = model.attention.cases[0]
    caption = drawn["attention.svg"].caption
    assert (
        f"{inside.share:.1%} (1 scan) in {inside.chance:.1%} of the voxels, {inside.over_chance:.2f} times" in caption
    )
    assert drawn["residual.svg"].html.startswith("<figure>")
    summary = json.loads((figures / "analysis.json").read_text())["summary"][0]
    assert summary["attention_share"] == {"mean": inside.share, "sd": None, "n": 1}
    (planes,) = read_planes(figures / "attention-maps.npz", 1).values()
    assert planes[0].target.any()


def test_everything_redraws_from_what_is_stored(figures, tmp_path, capsys):
    assert main(["allocation", "--from", str(figures / "analysis.json"), "--figures", str(tmp_path / "again")]) == 0
    assert "a grid of one voxel has no frequency but the constant" in capsys.readouterr().out
    for path in figures.iterdir():
        if path.suffix != ".npz":  # holds the time it was written at
            assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()
    assert main(["allocation", "--from", str(figures / "analysis.json"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["analysis"]
    assert shown == json.loads((figures / "analysis.json").read_text())


def test_a_result_may_hold_the_analysis(figures, tmp_path):
    analysis = json.loads((figures / "analysis.json").read_text())
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"command": "x", "machine": {}, "results": {"analysis": analysis}}))
    assert read_analysis(path) == read_analysis(figures / "analysis.json")
    path.write_text(json.dumps({"results": {"analysis": 3}}))
    assert "field" in str(refused(read_analysis, path))


def test_the_summary_is_that_of_the_tables_of_metrics(figures):
    analysis = read_analysis(figures / "analysis.json")
    case = analysis.models[0].attention.cases[0]
    scans = tuple(case.model_copy(update={"share": share}) for share in (0.1, 0.2, 0.6))
    attention = analysis.models[0].attention.model_copy(update={"cases": scans})
    model = analysis.models[0].model_copy(update={"attention": attention})
    (row,) = analysis.model_copy(update={"models": (model,)}).summary()
    assert row["attention_share"] == pytest.approx({"mean": 0.3, "sd": 0.07**0.5, "n": 3})


def test_two_models_stand_in_one_figure(finished, figures, tmp_path, capsys):
    models = [str(finished), str(finished / "best")]
    assert main(["allocation", *models, "--attention", "--json", "--cases", "1"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [row["part"] for row in shown["models"]] == ["best", None]
    assert [row["name"] for row in shown["analysis"]["models"]] == models
    assert shown["analysis"]["models"][0]["residual"] is None
    (tmp_path / "analysis.json").write_text(json.dumps(shown["analysis"]))
    (picture,) = pictures(read_analysis(tmp_path / "analysis.json"))
    assert all(name in picture.caption for name in models)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text.replace('"share_above"', '"share"'), "field models.0.residual.cases.0.share_above"),
        (lambda text: text.replace('"cut": 0.6', '"cut": NaN'), "field models.0.residual.cut"),
        (lambda text: re.sub(r'"modes": \[\s+1,', '"modes": [', text), "one value per bin"),
        (lambda text: text[:-20], "is not a stored analysis"),
        (lambda text: "[]", "is not a stored analysis"),
    ],
)
def test_a_damaged_file_is_refused(figures, tmp_path, change, says):
    path = tmp_path / "analysis.json"
    path.write_text(change((figures / "analysis.json").read_text()))
    assert says in str(refused(read_analysis, path))


def test_damaged_maps_are_refused(figures, tmp_path, capsys):
    shutil.copytree(figures, tmp_path / "copy")
    whole = (figures / "attention-maps.npz").read_bytes()
    other = planes_bytes({1: read_planes(figures / "attention-maps.npz", 1)[0]})  # of a network that is not there
    for content in (b"no archive", b"", whole[:-400], whole[:200] + bytes(50) + whole[250:], other):
        (tmp_path / "copy" / "attention-maps.npz").write_bytes(content)
        assert main(["allocation", "--from", str(tmp_path / "copy" / "analysis.json")]) == 3
        error = capsys.readouterr().err
        assert "attention-maps.npz: is not a stored set of attention maps (damaged); remove it, or run" in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["la-4", "--residual"], 2, "--data is missing"),
        (["la-4", "--blocks", "enc4"], 2, "--blocks is for --residual"),
        (["la-4", "--attention", "--blocks", "enc4"], 2, "--blocks is for --residual"),
        (["la-4", "--figures", "there"], 2, "--figures is for --residual and --attention"),
        (["RUN", "--residual", "--blocks", "enc9"], 2, "no block 'enc9'"),
        (["RUN", "--residual", "--blocks", ""], 2, "--blocks holds an empty path"),
        (["RUN", "--residual", "--figures", "FILE"], 3, "is a file; give a folder to write to"),
        (["RUN", "--residual", "--cases", "0"], 2, "--cases is 0"),
        (["RUN", "--residual", "--split", "moon"], 3, "has no scans in 'moon'; choose another --split: train"),
        (["RUN", "--attention", "--data", "nowhere"], 3, "nowhere: does not exist"),
        (["RUN", "--attention", "--device", "toaster"], 2, "device 'toaster' is unknown"),
        (["la-4", "--from", "analysis.json"], 2, "--from draws what is stored"),
        (["--from", "nowhere.json"], 3, "cannot be read"),
        (["--from", "x.json", "--split", "test", "--cases", "2"], 2, "leave out --split, --cases"),
        (["la-4", "la-4", "--patch-size", "64", "64", "64"], 2, "--patch-size is for the cost of one model"),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_line(arguments, code, says, finished, capsys):
    stands_for = {"RUN": str(finished), "FILE": str(finished / "config.toml")}
    assert main(["allocation", *(stands_for.get(word, word) for word in arguments)]) == code
    found = capsys.readouterr()
    assert says in found.err
    assert found.err.count("\n") == 1
    assert found.out == ""


def test_what_is_asked_is_checked_before_a_scan_is_read(finished, monkeypatch, capsys):
    monkeypatch.setattr("fheat.cli.allocation.analyse", lambda *_, **__: pytest.fail("a scan was read"))
    test_what_cannot_be_asked_is_said_in_one_line(["RUN", "--residual", "--blocks", "enc9"], 2, "", finished, capsys)
    test_what_cannot_be_asked_is_said_in_one_line(["RUN", "--residual", "--figures", "FILE"], 3, "", finished, capsys)


def test_files_are_written_before_anything_is_printed(finished, tmp_path, monkeypatch):
    def full(*words, **_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("builtins.print", full)
    assert main(["allocation", str(finished), "--residual", "--figures", str(tmp_path), "--device", "cpu"]) == 4
    assert {path.name for path in tmp_path.iterdir()} == {"analysis.json", "residual.svg"}
