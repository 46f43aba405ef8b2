"""Every layout, built by hand: the cases it lists, what it declares, and what it refuses."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from fheat import BadInput
from fheat.cli.main import main
from fheat.data import layouts
from fheat.data.case import Case
from fheat.data.layouts import LAYOUTS, open_dataset
from fheat.data.read import grid_difference, integers, read_image, read_label
from fheat.io import Volume, write_nifti
from tests.refusals import refused

NNUNET = {"channel_names": {"0": "T1"}, "labels": {"background": 0, "organ": 1}, "file_ending": ".nii.gz"}


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def note(root, name, content):
    (root / name).write_text(json.dumps(content))


def listed(dataset):
    """(id, split, label file, declared unlabelled) of each case."""
    return [(case.id, case.split, case.label and case.label.name, case.unlabelled) for case in dataset.cases]


def refusal(place):
    return str(refused(open_dataset, place))


def test_nnunet(tmp_path):
    labels = {"background": 0, "whole": [1, 2], "core": 2, "ignore": 3}
    note(tmp_path, "dataset.json", NNUNET | {"channel_names": {"1": "FLAIR", "0": "T1"}, "labels": labels})
    for case in ("b", "a", "case_0001"):
        touch(tmp_path, *(f"imagesTr/{case}_000{channel}.nii.gz" for channel in (1, 0)), f"labelsTr/{case}.nii.gz")
    touch(
        tmp_path, "imagesTr/._a_0000.nii.gz", "imagesTr/notes.txt", "imagesTs/t_0000.nii.gz", "imagesUn/u_0000.nii.gz"
    )
    note(tmp_path, "splits.json", {"order": ["b", "a"], "validation": ["b"]})
    note(tmp_path, "splits_final.json", [{"train": ["a"], "val": ["b"]}])
    dataset = open_dataset(tmp_path)
    assert dataset.layout == "nnU-Net raw"
    assert dataset.labels == {"background": (0,), "whole": (1, 2), "core": (2,), "ignore": (3,)}
    assert dataset.channels == ("T1", "FLAIR")
    assert listed(dataset) == [
        ("b", "validation", "b.nii.gz", False),
        ("a", "train", "a.nii.gz", False),
        ("case_0001", "train", "case_0001.nii.gz", False),
        ("u", "train", None, True),
        ("t", "test", None, True),
    ]
    assert [path.name for path in dataset.cases[1].images] == ["a_0000.nii.gz", "a_0001.nii.gz"]
    assert dataset.problems == ()
    assert [case.id for case in dataset.split("validation")] == ["b"]
    assert open_dataset(tmp_path / "dataset.json") == dataset


def test_nnunet_declared_unlabelled_and_partly_labelled_test(tmp_path):
    note(tmp_path, "dataset.json", NNUNET | {"unlabelled": ["b"], "name": "N"})
    touch(tmp_path, *(f"imagesTr/{case}_0000.nii.gz" for case in "abc"), "labelsTr/a.nii.gz", "labelsTr/b.nii.gz")
    touch(tmp_path, "imagesTs/s_0000.nii.gz", "imagesTs/t_0000.nii.gz", "labelsTs/s.nii.gz")
    dataset = open_dataset(tmp_path)
    assert dataset.name == "N"
    assert listed(dataset) == [
        ("a", "train", "a.nii.gz", False),
        ("b", "train", None, True),
        ("c", "train", None, False),
        ("s", "test", "s.nii.gz", False),
        ("t", "test", None, False),
    ]
    assert dataset.problems == ()


def test_nnunet_notices_what_does_not_fit(tmp_path):
    note(tmp_path, "dataset.json", NNUNET | {"numTraining": 3, "unlabelled": ["ghost"]})
    touch(tmp_path, "imagesTr/a_0000.nii.gz", "labelsTr/a.nii.gz", "labelsTr/b.nii.gz")
    touch(tmp_path, "imagesTs/t_0000.nii.gz", "labelsTs/t.nii.gz", "labelsTs/x.nii.gz")
    note(tmp_path, "splits.json", {"validation": ["spirit"]})
    found = [
        (problem.case, problem.field, problem.severity, problem.reason) for problem in open_dataset(tmp_path).problems
    ]
    assert found == [
        ("", "numTraining", "warning", "says 3 and there are 1"),
        ("b", "image", "error", "is a label without an image"),
        ("x", "image", "error", "is a label without an image"),
        ("spirit", "validation", "error", "names 'spirit', which has no image"),
        ("ghost", "unlabelled", "error", "names 'ghost', which has no image"),
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"file_ending": None}, "field file_ending: "),
        ({"file_ending": ".png"}, "field file_ending is '.png'; use one of .nii.gz, .nii"),
        ({"labels": {"0": "background"}}, "field labels.0."),
        ({"labels": [1]}, "field labels: "),
        ({"channel_names": {"first": "T1"}}, "field channel_names.first."),
        ({"numTraining": "many"}, "field numTraining: "),
        ({"unlabelled": "a"}, "field unlabelled: "),
    ],
)
def test_malformed_fields_are_named(tmp_path, change, says):
    note(tmp_path, "dataset.json", NNUNET | change)
    assert f"dataset.json: {says}" in refusal(tmp_path)


def test_msd(tmp_path):
    note(
        tmp_path,
        "dataset.json",
        {
            "name": "BRATS",
            "modality": {"0": "FLAIR", "1": "T1w"},
            "labels": {"0": "background", "1": "edema"},
            "numTraining": 2,
            "numTest": 2,
            "training": [
                {"image": "./imagesTr/2.nii.gz", "label": "./labelsTr/2.nii.gz"},
                {"image": "./imagesTr/1.nii.gz", "label": "./labelsTr/1.nii.gz"},
            ],
            "test": ["./imagesTs/3.nii.gz"],
        },
    )
    dataset = open_dataset(tmp_path)
    assert (dataset.layout, dataset.name, dataset.channels) == ("MSD", "BRATS", ("FLAIR", "T1w"))
    assert dataset.labels == {"background": (0,), "edema": (1,)}
    assert listed(dataset) == [
        ("2", "train", "2.nii.gz", False),
        ("1", "train", "1.nii.gz", False),
        ("3", "test", None, True),
    ]
    assert dataset.cases[0].images == (tmp_path / "imagesTr" / "2.nii.gz",)
    assert [(p.field, p.severity) for p in dataset.problems] == [("numTest", "warning")]


def test_monai(tmp_path):
    content = {
        "training": [
            {"image": ["a/t1.nii.gz", "a/t2.nii.gz"], "label": "a/seg.nii.gz", "fold": 0},
            {"image": ["b/t1.nii.gz", "b/t2.nii.gz"], "unlabelled": True},
            {"image": ["c/t1.nii.gz", "c/t2.nii.gz"]},
        ],
        "unlabeled": [{"image": "d/t1.nii.gz"}, "e/t1.nii.gz"],
        "validation": [{"image": "f/t1.nii.gz", "label": str(tmp_path / "elsewhere" / "f.nii.gz")}],
        "testing": [{"image": "g/t1.nii.gz"}, {"image": "h/t1.nii.gz", "label": "h/seg.nii.gz"}],
    }
    note(tmp_path, "folds.json", content)
    note(tmp_path, "other.json", {"training": ["a", "b"], "validation": ["c"]})
    dataset = open_dataset(tmp_path)
    assert listed(dataset) == [
        ("a_t1", "train", "seg.nii.gz", False),
        ("b_t1", "train", None, True),
        ("c_t1", "train", None, False),
        ("d_t1", "train", None, True),
        ("e_t1", "train", None, True),
        ("f_t1", "validation", "f.nii.gz", False),
        ("g_t1", "test", None, True),
        ("h_t1", "test", "seg.nii.gz", False),
    ]
    assert dataset.cases[0].images == (tmp_path / "a" / "t1.nii.gz", tmp_path / "a" / "t2.nii.gz")
    assert open_dataset(tmp_path / "folds.json") == dataset
    note(tmp_path, "second.json", content)
    assert "MONAI datalist" in refusal(tmp_path)
    assert len(open_dataset(tmp_path / "second.json").cases) == 8


def test_monai_names_cases_by_file_where_that_is_enough(tmp_path):
    twice = {"image": "a/one.nii.gz", "label": "l.nii.gz"}
    note(tmp_path, "list.json", {"training": [twice, {"image": "b/two.nii.gz", "label": "l.nii.gz"}], "test": [twice]})
    assert [case.id for case in open_dataset(tmp_path).cases] == ["one", "two", "one"]


@pytest.mark.parametrize(
    ("layout", "entry", "says"),
    [
        ("MSD", {"image": "../x.nii.gz"}, "field training.0.image is '../x.nii.gz', which leaves the dataset"),
        ("MSD", {"image": "a/../../x.nii.gz"}, "field training.0.image is 'a/../../x.nii.gz', which leaves"),
        ("MSD", {"image": "x.nii.gz", "label": ".."}, "field training.0.label is '..', which leaves"),
        ("MSD", {"image": "/x.nii.gz"}, "field training.0.image is the absolute path '/x.nii.gz'"),
        ("MSD", {"label": "x.nii.gz"}, "field training.0.image: "),
        ("MSD", {"image": 7}, "field training.0.image."),
        ("MSD", {"image": []}, "field training.0.image"),
        ("MONAI", {"image": "../x.nii.gz"}, "field training.0.image is '../x.nii.gz', which leaves the dataset"),
        ("MONAI", {"image": "x.nii.gz", "label": 3}, "field training.0.label: "),
    ],
)
def test_entries_that_do_not_fit(tmp_path, layout, entry, says):
    note(tmp_path, "dataset.json" if layout == "MSD" else "list.json", {"training": [entry]})
    assert says in refusal(tmp_path)


def test_plain(tmp_path):
    touch(
        tmp_path, "images/b.nii.gz", "images/a.nii", "images/c/1.dcm", "labels/a.nii.gz", "labels/b.nii", "labels/z.nii"
    )
    touch(tmp_path, "unlabelled/u.nii.gz")
    dataset = open_dataset(tmp_path)
    assert listed(dataset) == [
        ("a", "train", "a.nii.gz", False),
        ("b", "train", "b.nii", False),
        ("c", "train", None, False),
        ("u", "train", None, True),
    ]
    assert [(problem.case, problem.reason) for problem in dataset.problems] == [("z", "is a label without an image")]
    touch(tmp_path, "images/a.nii.gz")
    assert "a.nii.gz: and a.nii are two files of the case 'a'" in refusal(tmp_path)


def test_plain_channels_and_numbers(tmp_path):
    """Numbers in file names are channels only where no label bears them."""
    touch(tmp_path / "one", *(f"imagesTr/x_000{index}.nii.gz" for index in range(2)), "labelsTr/x.nii.gz")
    dataset = open_dataset(tmp_path / "one")
    assert listed(dataset) == [("x", "train", "x.nii.gz", False)]
    assert len(dataset.cases[0].images) == 2
    touch(tmp_path / "two", *(f"{kind}/x_000{index}.nii.gz" for index in range(2) for kind in ("images", "labels")))
    assert [case.id for case in open_dataset(tmp_path / "two").cases] == ["x_0000", "x_0001"]
    touch(tmp_path / "three", *(f"images/x_000{index}.nii.gz" for index in range(1, 3)))
    assert [case.id for case in open_dataset(tmp_path / "three").cases] == ["x_0001", "x_0002"]


def test_images_alone(tmp_path):
    touch(tmp_path, "b.nii.gz", "a.nii.gz", "read me.txt")
    assert listed(open_dataset(tmp_path)) == [("a", "train", None, False), ("b", "train", None, False)]


@pytest.mark.parametrize(
    ("pattern", "ending", "name", "spacing", "structure"),
    [
        ("2018LA_Seg_Training Set/{}/mri_norm2.h5", "list", "LA", 0.625, "left atrium"),
        ("{}/mri_norm2.h5", "list", "LA", 0.625, "left atrium"),
        ("Pancreas_h5/{}_norm.h5", "list", "Pancreas-CT", 1.0, "pancreas"),
        ("data/{}.h5", "txt", "BraTS 2019", 1.0, "whole tumour"),
        ("{}.h5", "txt", "h5", 1.0, None),
    ],
)
def test_h5_lists(tmp_path, pattern, ending, name, spacing, structure):
    touch(tmp_path, *(pattern.format(case) for case in ("q", "p", "v", "t")))
    (tmp_path / f"train.{ending}").write_bytes(b"q\r\np,12\n\nmissing.h5\n")
    (tmp_path / f"val.{ending}").write_text("v\n")
    (tmp_path / f"test.{ending}").write_text("t")
    dataset = open_dataset(tmp_path)
    assert (dataset.layout, dataset.name) == ("h5 lists", name)
    assert dataset.labels == ({} if structure is None else {"background": (0,), structure: (1,)})
    assert [(case.id, case.split) for case in dataset.cases] == [
        ("q", "train"),
        ("p", "train"),
        ("missing", "train"),
        ("v", "validation"),
        ("t", "test"),
    ]
    for case in dataset.cases:
        assert case.images == (case.label,) == (tmp_path / pattern.format(case.id),)
        assert case.spacing == (spacing,) * 3


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"../../secret", "train.list: field line 2 is '../../secret', which leaves the dataset"),
        (b"/secret", "train.list: field line 2 is the absolute path '/secret'"),
        (b"\xff\xfe", "train.list: is not text"),
    ],
)
def test_h5_lists_refuse(tmp_path, line, says):
    touch(tmp_path, "data/a.h5")
    (tmp_path / "train.list").write_bytes(b"a\n" + line)
    assert says in refusal(tmp_path)


def test_what_no_layout_knows(tmp_path):
    touch(tmp_path, "notes/readme.txt")
    message = refusal(tmp_path)
    known = ", ".join(layout.NAME for layout in LAYOUTS)
    assert f"has no known layout ({known}); see docs/reference/data.md" in message
    assert "does not exist" in refusal(tmp_path / "nowhere")
    for text in ("[1, 2]", "{", "\udcff", "[" * 100_000, "7"):
        (tmp_path / "dataset.json").write_bytes(text.encode(errors="surrogateescape"))
        assert ("has no known layout" if text in ("[1, 2]", "7") else "is not JSON") in refusal(tmp_path)
    touch(tmp_path, "scan.txt")
    assert "has no known layout" in refusal(tmp_path / "scan.txt")


def test_an_empty_folder_is_said_to_be_empty(tmp_path):
    remedy = "give a folder of scans or a dataset, see docs/reference/data.md"
    says = f"{tmp_path}: holds no scan: the folder is empty; {remedy}"
    assert refusal(tmp_path) == says
    (tmp_path / "a" / "b").mkdir(parents=True)
    touch(tmp_path, "a/.DS_Store")
    assert refusal(tmp_path) == says
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert "has no known layout" in refusal(tmp_path)


def scan(seed=0, shape=(6, 5, 4)):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


NEW_LAYOUT = '''"""One folder per patient, with scan.nii.gz and mask.nii.gz."""

from pathlib import Path

from fheat.data.case import Case, Dataset

NAME = "patients"


def recognises(path: Path) -> bool:
    """Return whether there are folders of patients."""
    return any(path.glob("*/scan.nii.gz"))


def read(path: Path) -> Dataset:
    """Return one case per patient."""
    scans = sorted(path.glob("*/scan.nii.gz"))
    cases = tuple(Case(scan.parent.name, (scan,), scan.with_name("mask.nii.gz")) for scan in scans)
    return Dataset(name=path.name, root=path, layout=NAME, cases=cases)
'''


def test_a_new_layout_is_one_file_and_one_line(tmp_path, monkeypatch, capsys):
    """The file is loaded as if it lay in the folder of layouts; the line is an entry of `LAYOUTS`."""
    (tmp_path / "patients.py").write_text(NEW_LAYOUT)
    spec = importlib.util.spec_from_file_location("fheat.data.layouts.patients", tmp_path / "patients.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    data = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    for name in ("p2", "p1"):
        write_nifti(Volume(data + len(name), np.eye(4)), tmp_path / "study" / name / "scan.nii.gz")
        write_nifti(Volume((data > 30).astype(np.uint8), np.eye(4)), tmp_path / "study" / name / "mask.nii.gz")
    assert "no known layout" in refusal(tmp_path / "study")
    monkeypatch.setattr(layouts, "LAYOUTS", (module, *LAYOUTS))
    assert listed(open_dataset(tmp_path / "study")) == [
        ("p1", "train", "mask.nii.gz", False),
        ("p2", "train", "mask.nii.gz", False),
    ]
    assert main(["data", "check", str(tmp_path / "study"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["layout"] == "patients"
    assert [row["labels"] for row in report["cases"]] == [{"0": 31, "1": 29}] * 2
    touch(tmp_path, "other/notes.txt")
    assert "(patients, nnU-Net raw," in refusal(tmp_path / "other")


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.NAME)
def test_every_layout_has_the_three_names(layout, tmp_path):
    assert Path(layout.__file__).parent == Path(layouts.__file__).parent
    assert layout.NAME
    assert callable(layout.read)
    assert not layout.recognises(tmp_path)
    assert not layout.recognises(tmp_path / "nowhere")


def test_channels_are_stacked_in_order(tmp_path):
    affine = np.diag([0.5, 0.5, 2, 1])
    for channel in range(3):
        write_nifti(Volume(scan(channel), affine), tmp_path / f"{channel}.nii.gz")
    paths = tuple(tmp_path / f"{channel}.nii.gz" for channel in range(3))
    image = read_image(Case("a", paths))
    assert image.data.shape == (6, 5, 4, 3)
    assert all(np.array_equal(image.data[..., channel], scan(channel)) for channel in range(3))
    assert image.spacing == (0.5, 0.5, 2)
    single = read_image(Case("a", paths[:1]))
    assert np.array_equal(single.data, scan(0))
    write_nifti(Volume(scan(2), np.diag([0.5, 0.5, 2.02, 1])), paths[2])
    with pytest.raises(BadInput, match=r"2.nii.gz: field spacing is \(0.5, 0.5, 2.02\), that of the first.*0.5, 2\)"):
        read_image(Case("a", paths))
    write_nifti(Volume(scan(2, (6, 5, 4, 2)), affine), paths[2])
    with pytest.raises(BadInput, match=r"has shape \(6, 5, 4, 2\): a channel is"):
        read_image(Case("a", paths))


def test_labels_are_integers_on_the_images_grid(tmp_path):
    image, label = tmp_path / "image.nii.gz", tmp_path / "label.nii.gz"
    case = Case("a", (image,), label)
    mask = (scan(1) > 0).astype(np.float64) * 3
    write_nifti(Volume(scan(), np.eye(4)), image)
    write_nifti(Volume(mask, np.eye(4)), label)
    read = read_label(case)
    assert read.data.dtype == np.uint8
    assert np.array_equal(read.data, mask)
    assert read_label(Case("a", (image,), unlabelled=True)) is None
    mask[0, 0, 0] = 0.5
    write_nifti(Volume(mask, np.eye(4)), label)
    with pytest.raises(BadInput, match=r"label.nii.gz: holds 1 values that are no label numbers, such as 0\.5"):
        read_label(case)
    write_nifti(Volume(mask[1:], np.eye(4)), label)
    with pytest.raises(BadInput, match=r"field shape of the label is \(5, 5, 4\), that of the image \(6, 5, 4\)"):
        read_label(case, read_image(case))
    (tmp_path / "image.png").touch()
    with pytest.raises(BadInput, match=r"image\.png"):
        read_image(Case("a", (tmp_path / "image.png",)))


@pytest.mark.parametrize(
    ("values", "kind"),
    [([0, 1, 255], np.uint8), ([0, 256], np.int32), ([-1, 0], np.int32), ([0, 0.5], None), ([0, 3e9], None)],
)
def test_whole_numbers(values, kind):
    data = integers(np.array(values, np.float64))
    assert (data is None) == (kind is None)
    assert data is None or (data.dtype == kind and data.tolist() == values)


def test_grids_differ_from_rounding_on(tmp_path):
    """Rounding of headers is no difference; whatever moves a voxel is, and the field is named."""
    affine = np.diag([0.5, 0.75, 2, 1.0])
    base = Volume(scan(), affine)

    def field(change, shape=(6, 5, 4)):
        changed = affine.copy()
        change(changed)
        difference = grid_difference(base, Volume(scan(shape=shape), changed))
        return difference and difference.field

    angle = np.radians(0.5)
    turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    assert field(lambda a: None) is None
    assert field(lambda a: a.__imul__(1 + 1e-6 * (np.arange(4) < 3))) is None
    assert field(lambda a: a.__setitem__((0, 3), 1e-3)) is None
    assert field(lambda a: None, (6, 5, 3)) == "shape"
    assert field(lambda a: None, (6, 5, 4, 1)) == "shape"
    assert field(lambda a: a.__setitem__((2, 2), 2.02)) == "spacing"
    assert field(lambda a: a.__setitem__((1, 3), 1.0)) == "origin"
    assert field(lambda a: a.__setitem__((0, 0), -0.5)) == "orientation"
    assert field(lambda a: a.__setitem__((slice(3), slice(3)), turn @ a[:3, :3])) == "orientation"


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 20_000])
def test_a_damaged_dataset_json_is_refused_not_passed_over(tmp_path, content):
    """Without it the folder would be read as plain images and labels, and what it declares unlabelled would be lost."""
    for folder in ("imagesTr", "labelsTr"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.nii").touch()
    (tmp_path / "dataset.json").write_bytes(content)
    assert "is not JSON" in refused(open_dataset, tmp_path).reason


def test_a_damaged_datalist_that_is_given_itself_is_refused_for_what_it_is(tmp_path):
    (tmp_path / "list.json").write_text('{"training": [')
    (tmp_path / "beside.nii.gz").touch()
    assert "is not JSON" in refused(open_dataset, tmp_path / "list.json").reason
    assert open_dataset(tmp_path).layout == "plain folders"


def test_an_empty_name_in_a_list_is_refused(tmp_path):
    (tmp_path / "dataset.json").write_text('{"training": [{"image": "a.nii"}], "test": [""]}')
    assert "test.0 is empty" in refused(open_dataset, tmp_path).reason
