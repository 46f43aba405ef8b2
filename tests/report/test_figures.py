"""Every figure of the page as a file: complete by itself, with its caption, also from a log alone."""

import json
import re
import shutil
import xml.etree.ElementTree as ET

import pytest
from matplotlib import image

from fheat.cli.main import main
from fheat.figures.page import figure, planes
from fheat.figures.picture import png_picture, save_figures
from fheat.report.write import write_report
from tests.report.test_report import probe, read, write_lines

PLOTS = {"D.svg", "alpha.svg", "responses.svg", "losses.svg", "validation.svg"}


@pytest.fixture(scope="module")
def written(finished, tmp_path_factory):
    """A folder with the page and a folder of its figures."""
    root = tmp_path_factory.mktemp("written")
    write_report(finished, root / "page.html", figures=root / "a" / "figures")
    return root


def test_every_figure_with_its_caption(written):
    folder = written / "a" / "figures"
    slices = {f"slices-1-{plane}.png" for plane in (1, 2, 3)}
    assert {path.name for path in folder.iterdir()} == PLOTS | slices | {"captions.json"}
    captions = json.loads((folder / "captions.json").read_text())
    assert captions.keys() == PLOTS | slices
    page = read(written / "page.html")
    assert all(captions[name] in page.text for name in PLOTS)
    assert captions["slices-1-3.png"].endswith("the patient's left at its left edge and right at its right.")
    for name in slices:
        assert min(image.imread(folder / name).shape[:2]) > 100


def test_a_plot_needs_no_page(written):
    for name in PLOTS:
        text = (written / "a" / "figures" / name).read_text()
        root = ET.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert float(root.get("width").removesuffix("pt")) == pytest.approx(345.6)
        assert not re.search(r"currentColor|var\(|xlink|<script", text)
        assert set(re.findall(r'(?:href="|url\()#([\w.-]+)', text)) <= set(re.findall(r'id="([^"]+)"', text))


def test_from_settings_and_log_alone(run, tmp_path):
    for part in ("final", "best", "checkpoints"):
        shutil.rmtree(run / part)
    config = (run / "config.toml").read_text().partition("# sha256")[0]
    (run / "config.toml").write_text(re.sub(r'data = ".*"', 'data = "gone"', config) + "noise_at = 2\n")
    step = {"total": 1.0, "D.x": 1.0, "alpha.x": 0.5}
    write_lines(run, probe(), *(step | {"iteration": at} for at in range(1, 7)))
    reader = read(write_report(run, figures=tmp_path / "figures"))
    assert reader.text.count("Needs the network, which is not in the run folder.") == 2
    assert "Iteration 6 of 6, done; its final network is not in this folder." in reader.text
    assert "Perturbed after iteration 2: noise 0.3" in reader.text
    assert json.loads((tmp_path / "figures" / "captions.json").read_text()).keys() == {
        "D.svg", "alpha.svg", "responses.svg", "losses.svg", "pairing.svg", "attenuation.svg",
    }  # fmt: skip


def test_a_named_picture_keeps_its_name(tmp_path):
    slices = figure(planes([("axial", b"first"), ("coronal", b"second")]), "A scan.")
    maps = png_picture("attention-maps-1", b"third", "Where & what.").html
    save_figures("\n".join([slices, maps, slices]), tmp_path)
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    captions = json.loads(found.pop("captions.json"))
    assert found == {
        "slices-1-1.png": b"first", "slices-1-2.png": b"second", "attention-maps-1.png": b"third",
        "slices-2-1.png": b"first", "slices-2-2.png": b"second",
    }  # fmt: skip
    assert captions.keys() == found.keys()
    assert captions["attention-maps-1.png"] == "Where & what."
    assert captions["slices-2-2.png"] == "A scan. coronal."


def test_figures_of_another_run_do_not_stay(tmp_path):
    folder, outside = tmp_path / "figures", tmp_path / "outside.png"
    save_figures(figure(planes([("axial", b"old"), ("coronal", b"old")]), "Old."), folder)
    mine = folder / "mine.png"
    for path in (mine, outside):
        path.write_text("mine")
    listed = json.loads((folder / "captions.json").read_text()) | {"../outside.png": "", "captions.json": ""}
    (folder / "captions.json").write_text(json.dumps(listed))
    save_figures(figure(planes([("axial", b"new")]), "New."), folder)
    assert {path.name for path in folder.iterdir()} == {"slices-1-1.png", "mine.png", "captions.json"}
    assert (folder / "slices-1-1.png").read_bytes() == b"new"
    assert outside.read_text() == "mine"
    for content in ("{", "3", "[[]]", ""):
        (folder / "captions.json").write_text(content)
        save_figures("", folder)
    assert mine.exists()
    assert json.loads((folder / "captions.json").read_text()) == {}


def test_a_file_is_no_folder(run, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert main(["report", str(run), "--figures", str(tmp_path / "file")]) == 3
    assert "file: is a file; give a folder to write to" in capsys.readouterr().err
    assert not (run / "report.html").exists()
    assert main(["report", str(run), "--figures", str(tmp_path / "file" / "below")]) == 3
    assert "file: is a file" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_is_no_page(run, tmp_path, capsys):
    (tmp_path / "pages").mkdir()
    assert main(["report", str(run), "--out", str(tmp_path / "pages"), "--figures", str(tmp_path / "f")]) == 3
    assert capsys.readouterr().err == f"fheat: {tmp_path / 'pages'}: is a folder; give a file to write to\n"
    assert not (tmp_path / "f").exists()
    (run / "report.html").mkdir()
    assert main(["report", str(run)]) == 3
    assert "report.html: is a folder" in capsys.readouterr().err


def test_the_verb_names_the_folder(run, tmp_path, capsys):
    shutil.rmtree(run / "final")
    shutil.rmtree(run / "best")
    arguments = ["report", str(run), "--figures", str(tmp_path / "f")]
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"wrote {run / 'report.html'} and {tmp_path / 'f'}\n"
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(run / "report.html"), "figures": str(tmp_path / "f")}
    assert (tmp_path / "f" / "losses.svg").is_file()
