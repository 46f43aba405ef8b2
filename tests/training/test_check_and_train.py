"""What `fheat data check` finds is what `fheat train` refuses, and where the check finds no error, training starts."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fheat.cli.main import main
from fheat.data.check import check
from fheat.data.layouts import open_dataset
from fheat.io import Volume, trusting, write_nifti
from tests.training.helpers import SMALL_WORDS

AFFINE = np.diag([0.8, 0.9, 1.2, 1.0])
SHAPE = (22, 20, 18)
WORDS = [word for word in SMALL_WORDS if word not in ("--labelled", "2")]


def scan(seed, shape=SHAPE, dtype=np.int16):
    return np.random.default_rng(seed).integers(0, 100, shape).astype(dtype)


def mask(value=1, shape=SHAPE):
    label = np.zeros(shape[:3], np.uint8)
    label[4:12, 4:12, 4:12] = value
    return label


def put(root, name, voxels, affine=AFFINE):
    write_nifti(Volume(voxels, np.asarray(affine, np.float64)), root / f"{name}.nii.gz")


class Set:
    """A dataset of three labelled scans, two without labels, one for validation and one for testing; nothing wrong."""

    def __init__(self, root):
        self.root = root
        self.content = {"labels": {"0": "background", "1": "organ"}}
        for seed, name in enumerate("abcuvxt"):
            put(root, name, scan(seed))
            put(root, f"{name}-label", mask())
        self.content["training"] = [self.entry(name) for name in "abc"]
        self.content["unlabelled"] = [{"image": f"{name}.nii.gz"} for name in "uv"]
        self.content["validation"] = [self.entry("x")]
        self.content["testing"] = [self.entry("t")]

    @staticmethod
    def entry(name):
        return {"image": f"{name}.nii.gz", "label": f"{name}-label.nii.gz"}

    def image(self, name, voxels, affine=AFFINE):
        put(self.root, name, voxels, affine)

    def label(self, name, voxels, affine=AFFINE):
        put(self.root, f"{name}-label", voxels, affine)

    def file(self, name, change):
        path = self.root / f"{name}.nii.gz"
        path.write_bytes(change(path.read_bytes()))

    def write(self):
        (self.root / "list.json").write_text(json.dumps(self.content))
        return self.root / "list.json"


def moved(x=0.0, scale=1.0, sign=1.0):
    affine = AFFINE.copy()
    affine[0, 3], affine[2, 2], affine[1, 1] = x, scale * affine[2, 2], sign * affine[1, 1]
    return affine


def with_nan():
    voxels = scan(1).astype(np.float32)
    voxels[3, 3, 3] = np.nan
    return voxels


def two_grids(s):
    for entry in [*s.content["training"], *s.content["unlabelled"], *s.content["validation"], *s.content["testing"]]:
        entry["image"] = [entry["image"], entry["image"].replace(".nii", "2.nii")]
        name = entry["image"][0][0]
        put(s.root, f"{name}2", scan(50 + ord(name)), moved(x=3.0) if name == "b" else AFFINE)


FAULTS = {
    "shape of a label": (lambda s: s.label("b", mask(shape=(22, 20, 17))), "shape"),
    "spacing of a label": (lambda s: s.label("b", mask(), moved(scale=1.05)), "spacing"),
    "origin of a label": (lambda s: s.label("b", mask(), moved(x=2.0)), "origin"),
    "orientation of a label": (lambda s: s.label("b", mask(), moved(sign=-1.0)), "orientation"),
    "label of a validation scan elsewhere": (lambda s: s.label("x", mask(), moved(x=2.0)), "origin"),
    "damaged image": (lambda s: s.file("b", lambda content: content[:-20]), "image"),
    "damaged label": (lambda s: s.file("b-label", lambda content: content[: len(content) // 2]), "label"),
    "damaged image without a label": (lambda s: s.file("u", lambda content: b"no scan"), "image"),
    "missing file": (lambda s: (s.root / "b.nii.gz").unlink(), "image"),
    "missing label file": (lambda s: (s.root / "b-label.nii.gz").unlink(), "label"),
    "NaN": (lambda s: s.image("b", with_nan()), "image"),
    "label that is not declared missing": (lambda s: s.content["training"][1].pop("label"), "label"),
    "undeclared value": (lambda s: s.label("b", mask(3)), "values"),
    "second class without declared classes": (
        lambda s: (s.content.pop("labels"), s.label("b", mask(2))),
        "values",
    ),
    "fractions": (lambda s: s.label("b", mask() * np.float32(0.5)), "values"),
    "constant image": (lambda s: s.image("b", np.full(SHAPE, 7, np.int16)), "values"),
    "another number of channels": (lambda s: s.image("b", scan(1, (*SHAPE, 2))), "channels"),
    "another number of channels, unlabelled": (lambda s: s.image("u", scan(1, (*SHAPE, 3))), "channels"),
    "channels on two grids": (two_grids, "image"),
    "metres for millimetres": (lambda s: s.image("u", scan(3), np.diag([800, 900, 950, 1])), "spacing"),
    "case twice": (lambda s: s.content["training"].append(s.entry("a")), "id"),
    "case in training and validation": (lambda s: s.content["validation"].append(s.entry("a")), "split"),
    "copy in validation": (lambda s: s.image("x", scan(1)), "content"),
    "copy in validation in another type": (lambda s: s.image("x", scan(1).astype(np.float32)), "content"),
    "copy of a scan without a label": (lambda s: s.image("x", scan(3)), "content"),
    "validation without a label": (lambda s: s.content["validation"][0].update(unlabelled=True), "split"),
    "no label to train with": (lambda s: [one.update(unlabelled=True) for one in s.content["training"]], "split"),
    "nothing to train with": (lambda s: (s.content.pop("training"), s.content.pop("unlabelled")), "split"),
    "no class": (lambda s: s.content.update(labels={"0": "background"}), "labels"),
    "class beyond 255": (lambda s: s.content.update(labels={"0": "background", "1": "organ", "300": "x"}), "labels"),
    "value that the datalist does not have": (
        lambda s: (s.content.update(values={"0": 0, "4": 1}), s.label("b", mask(4))),
        "label",
    ),
}


def found(path):
    with trusting():
        return check(open_dataset(path)).errors


def train(path, capsys, *words):
    code = main(["train", str(path), *WORDS, *words, "--trust", "--plan-only", "--out", str(path.parent / "run")])
    return code, capsys.readouterr()


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_reported_by_the_check_and_refused_by_training(tmp_path, capsys, fault):
    spoil, field = FAULTS[fault]
    dataset = Set(tmp_path)
    assert found(dataset.write()) == ()
    spoil(dataset)
    errors = found(dataset.write())
    assert field in {problem.field for problem in errors}, errors
    code, said = train(tmp_path / "list.json", capsys)
    assert (code, said.out, said.err.count("\n")) == (3, "", 1), said
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_copies_are_allowed_within_a_split_and_in_the_test(tmp_path, capsys):
    """Within training a copy is a warning; training does not read test scans, whose copies only the check sees."""
    dataset = Set(tmp_path)
    dataset.image("v", scan(3))
    assert found(dataset.write()) == ()
    assert train(tmp_path / "list.json", capsys)[0] == 0
    dataset.image("t", scan(1))
    assert [problem.field for problem in found(dataset.write())] == ["content"]
    assert train(tmp_path / "list.json", capsys)[0] == 0


@pytest.mark.slow
@settings(max_examples=8)
@given(
    seed=st.integers(0, 1000),
    channels=st.integers(1, 3),
    classes=st.integers(1, 4),
    dtype=st.sampled_from([np.uint8, np.int16, np.float32]),
    declared=st.booleans(),
)
def test_where_the_check_is_clean_training_starts(tmp_path_factory, seed, channels, classes, dtype, declared):
    """Scans of other sizes, spacings, orientations and types, each with its label: no error, and a plan."""
    root = tmp_path_factory.mktemp("clean")
    dataset, rng = Set(root), np.random.default_rng(seed)
    for index, name in enumerate("abcuvxt"):
        shape = tuple(int(length) for length in rng.integers(18, 26, 3))
        affine = np.diag([*(rng.uniform(0.7, 1.4, 3) * rng.choice([-1, 1], 3)), 1.0])
        affine = affine[:, [*rng.permutation(3), 3]]
        affine[:3, 3] = rng.uniform(-50, 50, 3)
        voxels = scan(100 * seed + index, shape if channels == 1 else (*shape, channels), dtype)
        dataset.image(name, voxels, affine)
        dataset.label(name, mask(1 + index % classes, shape), affine)
    names = {str(value): f"class {value}" for value in range(classes + 1)}
    dataset.content["labels"] = names
    if classes == 1 and not declared:
        del dataset.content["labels"]
    path = dataset.write()
    report = check(open_dataset(path))
    assert report.errors == ()
    assert report.counts == {
        "train": {"labelled": 3, "unlabelled": 2, "missing": 0},
        "validation": {"labelled": 1, "unlabelled": 0, "missing": 0},
        "test": {"labelled": 1, "unlabelled": 0, "missing": 0},
    }
    assert main(["train", str(path), *WORDS, "--trust", "--plan-only"]) == 0
    assert main(["train", str(path), *WORDS, "--trust", "--plan-only", "--method", "supervised"]) == 0


def test_counts_are_of_cases_as_they_are(tmp_path):
    """A case that is listed twice is one case, and a label that is not there is missing."""
    dataset = Set(tmp_path)
    dataset.content["training"] += [dataset.entry("a"), {"image": "m.nii.gz"}]
    put(tmp_path, "m", scan(77))
    report = check(open_dataset(dataset.write()))
    assert report.counts["train"] == {"labelled": 3, "unlabelled": 2, "missing": 1}
    assert json.loads(json.dumps(report.to_json()))["counts"]["test"] == {"labelled": 1, "unlabelled": 0, "missing": 0}


def test_an_error_of_the_dataset_is_counted_for_no_case(tmp_path, capsys):
    dataset = Set(tmp_path)
    dataset.content["labels"] = {"0": "background", "1": "organ", "300": "x"}
    assert main(["data", "check", str(dataset.write()), "--trust"]) == 3
    out, err = capsys.readouterr()
    assert "list.json: 1 errors; correct what is listed" in err
    assert "train: 3 labelled, 2 unlabelled\nvalidation: 1 labelled\ntest: 1 labelled\n" in out
    assert "grid of a run: RAS, 0.8x0.9x1.2 mm, median size 22x20x18; train with --patch-size 16 16 16\n" in out


def test_an_h5_file_without_its_label_is_not_trained_as_background(tmp_path, capsys):
    h5py = pytest.importorskip("h5py")
    (tmp_path / "data").mkdir()
    for seed, name in enumerate("abc"):
        with h5py.File(tmp_path / "data" / f"{name}.h5", "w") as file:
            file["image"] = scan(seed)
            if name != "b":
                file["label"] = mask()
    (tmp_path / "train.txt").write_text("a\nb\nc\n")
    assert [problem.field for problem in found(tmp_path)] == ["label"]
    code, said = train(tmp_path, capsys, "--method", "supervised")
    assert code == 3
    assert "b.h5: has no label and is not declared unlabelled" in said.err
