"""The page of `fheat evaluate --html`: all numbers, worst cases first, pictures where scans are given."""

import re

import numpy as np
import pytest

from fheat.cli.main import main
from fheat.data.phantom import phantom
from fheat.io import Volume, write_nifti
from fheat.metrics.evaluate import evaluate_labels
from fheat.metrics.files import evaluate_files
from fheat.metrics.table import ScoreRow, Table
from fheat.report.evaluation import evaluation_page, scans_of, worst_first


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    """Three scans as people name them; the masks are off by 1, 5 and 2 voxels, and a reference has no mask."""
    root = tmp_path_factory.mktemp("cohort")
    for seed, shift in enumerate((1, 5, 2, None)):
        made = phantom(seed, (34, 34, 34))
        write_nifti(made.image, root / "images" / f"pat{seed}_LGE.nii.gz")
        write_nifti(made.label, root / "labels" / f"pat{seed}_LGE_seg.nii.gz")
        if shift is not None:
            write_nifti(
                Volume(np.roll(made.label.data, shift, 0), made.label.affine), root / "masks" / f"pat{seed}.nii.gz"
            )
    return root


PATTERNS = ("{id}.nii.gz", "{id}_LGE_seg.nii.gz", "{id}_LGE.nii.gz")


def test_the_verb_writes_a_page_with_pictures(cohort, tmp_path, capsys):
    words = ["evaluate", str(cohort / "masks"), str(cohort / "labels"), "--pattern", *PATTERNS, "--only-predicted"]
    words += ["--images", str(cohort / "images"), "--workers", "1"]
    pages = [tmp_path / name for name in ("page.html", "again.html")]
    for file in pages:
        assert main([*words, "--html", str(file)]) == 0
    text = pages[0].read_text()
    assert text == pages[1].read_text()
    assert not re.search(r'(src|href)="(?!data:|#)', text)  # it needs no other file
    table = evaluate_files(cohort / "masks", cohort / "labels", patterns=PATTERNS[:2], only_predicted=True, workers=1)
    assert worst_first(table) == ["pat1", "pat2", "pat0"]
    section = text.split("Cases, worst first")[1].split("</section>")[0]
    assert list(dict.fromkeys(re.findall(r"<td[^>]*>(pat\d)</td>", section))) == ["pat1", "pat2", "pat0"]
    assert f"{table.rows[1].scores.hd95:.4f}" in section
    shown = re.findall(r"<figcaption>(pat\d)\. Dice", text)
    assert shown == ["pat1", "pat2", "pat0"]
    assert text.count("data:image/png;base64,") == 9
    for metric in ("dice", "jaccard", "hd95", "hd95-max", "asd", "assd", "surface-dice"):
        assert f'<svg id="spread-{metric}"' in text
    median = np.median([row.scores.dice for row in table.rows])
    assert f"median {median:.4f}" in text
    assert "1 references without a prediction are left out" in text
    assert "The worst case is pat1." in text


def test_without_scans_there_are_no_pictures_and_refusals_are_listed(cohort, tmp_path, capsys):
    words = ["evaluate", str(cohort / "masks"), str(cohort / "labels"), "--pattern", *PATTERNS[:2], "--workers", "1"]
    assert main([*words, "--html", str(tmp_path / "page.html")]) == 3  # a reference has no mask
    text = (tmp_path / "page.html").read_text()
    assert "data:image" not in text
    assert "has no prediction for &#x27;pat3&#x27;" in text
    assert "1 case could not be scored" in text


def test_undefined_distances_and_strange_names_are_shown():
    empty, full = np.zeros((6, 6, 6), np.uint8), np.ones((6, 6, 6), np.uint8)
    rows = [
        ScoreRow(f"<b>{index}", name, scores)
        for index, mask in enumerate((empty, full))
        for name, scores in evaluate_labels(mask, full, {"$a_b": (1,), "c & d": (1,)}).items()
    ]
    text = evaluation_page(Table(tuple(rows), "voxels"))
    assert "&lt;b&gt;0" in text
    assert "<b>0" not in text
    assert "c &amp; d" in text
    assert text.count("missed") > 2
    assert "n = 1" in text
    nothing = evaluation_page(Table((), "mm", refused={"a": "is damaged"}))
    assert "No case could be scored." in nothing
    assert "is damaged" in nothing


def test_a_scan_of_another_grid_has_the_reason_in_the_place_of_its_picture(cohort, tmp_path):
    from fheat.metrics.pairs import match_files
    from fheat.report.evaluation import CaseFiles

    write_nifti(Volume(np.zeros((4, 4, 4), np.float32), np.eye(4)), tmp_path / "pat0.nii.gz")
    pairs = match_files(cohort / "masks", cohort / "labels", only_predicted=True, patterns=PATTERNS[:2])[0]
    table = evaluate_files(cohort / "masks", cohort / "labels", patterns=PATTERNS[:2], only_predicted=True, workers=1)
    images = scans_of(table.cases, tmp_path)
    assert list(images) == ["pat0"]
    text = evaluation_page(table, CaseFiles({pair.case: pair for pair in pairs}, images))
    assert "pat0: no picture, because" in text
    assert "field shape is (34, 34, 34), that of the scan (4, 4, 4)" in text


@pytest.mark.parametrize(
    ("more", "code", "line"),
    [
        (["--images", "x"], 2, "--images is for the page of --html"),
        (["--html", "page.txt"], 2, "page.txt is not a .html file"),
        (["--pattern", "{id}.nii.gz"], 2, "--pattern takes the names of predictions and references"),
        (["--pattern", "{id}.nii.gz", "x"], 2, "has no {id}"),
        (
            ["--pattern", "{id}.nii.gz", "{id}_T1.nii.gz"],
            3,
            "has no file that fits '{id}_T1.nii.gz'; it holds pat0_LGE_seg",
        ),
    ],
)
def test_what_cannot_be_meant_is_said_in_one_line(cohort, capsys, more, code, line):
    assert main(["evaluate", str(cohort / "masks"), str(cohort / "labels"), *more]) == code
    told = capsys.readouterr().err
    assert line in told
    assert told.count("\n") == 1


@pytest.mark.slow
def test_scans_are_found_by_a_pattern(cohort, tmp_path, capsys):
    import json

    import torch

    from fheat import Card, create_model, save
    from fheat.models.card import Window

    torch.manual_seed(0)
    card = Card(classes=("background", "chamber"), window=Window(size=(16, 16, 16), stride=(16, 16, 16)))
    model = str(save(create_model("miniature", patch_size=(16, 16, 16)), tmp_path / "model", card))
    words = [
        "predict",
        model,
        str(cohort / "images"),
        str(tmp_path / "out"),
        "--no-preview",
        "--device",
        "cpu",
        "--json",
    ]
    assert main([*words, "--pattern", PATTERNS[2]]) == 0
    assert [case["id"] for case in json.loads(capsys.readouterr().out)["cases"]] == ["pat0", "pat1", "pat2", "pat3"]
    assert main([*words, "--pattern", "{id}_T1.nii.gz"]) == 3
    assert "has no file that fits '{id}_T1.nii.gz'" in capsys.readouterr().err
    assert main([*words, "--pattern", "T1.nii.gz"]) == 2
