"""Programs that take boxes: a stand-in, exported here, segments scans through the adapter and the verb."""

import contextlib
import hashlib
import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fheat import BadInput
from fheat.cli.main import main
from fheat.inference.prompt_program import Adapter, PromptProgram
from fheat.inference.prompted import every_slice, segment_prompted
from fheat.inference.prompts import Box, boxes_of_mask, plane_axes, read_boxes, slicing_axis
from fheat.io import Volume, read_volume, trusting, write_nifti

SIZE = (24, 32)
AFFINE = np.diag([1.0, 1.0, 3.0, 1.0])


class BrightInBox(nn.Module):
    """Logits of the bright pixels inside the box, at half the size of the image, as many decoders give them.

    What counts as bright is a weight, of a number of values that exporters do not write among the operations.
    """

    def __init__(self):
        super().__init__()
        self.limit = nn.Parameter(torch.full(SIZE, 0.5))

    def forward(self, image, box):
        x0, y0, x1, y1 = box.reshape(4).unbind()
        rows = torch.arange(SIZE[0] // 2) * 2 + 1
        columns = torch.arange(SIZE[1] // 2) * 2 + 1
        inside = ((rows > y0) & (rows < y1))[:, None] & ((columns > x0) & (columns < x1))[None]
        bright = nn.functional.avg_pool2d(image - self.limit, 2).mean(dim=(0, 1)) > 0
        return torch.where(inside & bright, 5.0, -5.0)[None, None]


class Bright(nn.Module):
    """Finds the bright pixels by itself; the second of two results."""

    def forward(self, image):
        return image.mean(), 10 * image.mean(dim=1) - 5


class Stub:
    """A program that returns its box, filled, and remembers what it was given."""

    def __init__(self, **adapter):
        self.adapter, self.seen = Adapter(**adapter), []

    def logits(self, image, box):
        self.seen.append((image, box))
        x0, y0, x1, y1 = box
        rows, columns = (np.arange(length) + 0.5 for length in self.adapter.size)
        inside = ((rows > y0) & (rows < y1))[:, None] & ((columns > x0) & (columns < x1))[None]
        return np.where(inside, 1.0, -1.0)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The stand-in as a program of torch.export and its adapter."""
    folder = tmp_path_factory.mktemp("program")
    example = torch.zeros(1, 3, *SIZE), torch.zeros(1, 4)
    torch.export.save(torch.export.export(BrightInBox(), example), folder / "bright.pt2")
    torch.export.save(torch.export.export(Bright(), example[:1]), folder / "alone.pt2")
    (folder / "adapter.json").write_text(json.dumps({"size": SIZE, "window": [0, 1]}))
    return folder


DOCUMENTED = re.search(
    r"`(torch\.onnx\.export\(.*\))`", (Path(__file__).parents[2] / "docs/how-to/prompt.md").read_text()
)[1]
"""The call with which the documentation exports a model."""


def export_onnx(call, folder):
    """Export the stand-in by a call such as `DOCUMENTED` in a folder, and return the file."""
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    example = {"image": torch.zeros(1, 3, *SIZE), "box": torch.zeros(1, 4)}
    with warnings.catch_warnings(), contextlib.chdir(folder):
        warnings.simplefilter("ignore")  # the exporter calls functions of torch that torch deprecates
        eval(call, {"torch": torch, "module": BrightInBox().eval(), **example})
    return folder / "medsam.onnx"


@pytest.fixture(scope="module")
def onnx(tmp_path_factory):
    """The stand-in as an ONNX file."""
    return export_onnx(DOCUMENTED, tmp_path_factory.mktemp("onnx"))


@pytest.fixture
def scan(tmp_path):
    """A scan with two bright cuboids, of which one is labelled, and the label."""
    data = np.zeros((32, 24, 5), dtype=np.float32)
    data[8:20, 6:16, 1:4] = 1
    data[24:30, 18:22, 1:4] = 1
    label = np.zeros(data.shape, dtype=np.uint8)
    label[8:20, 6:16, 1:4] = 2
    for name, values in (("scan", data), ("label", label)):
        write_nifti(Volume(values, AFFINE), tmp_path / f"{name}.nii.gz")
    return tmp_path


def test_boxes_of_a_mask_are_the_smallest_ones():
    mask = np.zeros((6, 8, 3), dtype=np.uint8)
    mask[1:3, 2:7, 1] = 4
    mask[5, 0, 1] = 4
    mask[0, 7, 2] = 9
    assert boxes_of_mask(mask, 2) == [Box(4, 1, (1, 0), (6, 7)), Box(9, 2, (0, 7), (1, 8))]
    assert boxes_of_mask(mask, 2, margin=1) == [Box(4, 1, (0, 0), (6, 8)), Box(9, 2, (0, 6), (2, 8))]
    assert boxes_of_mask(mask, 0)[2:] == [Box(4, 5, (0, 1), (1, 2)), Box(9, 0, (7, 2), (8, 3))]
    assert boxes_of_mask(np.zeros((2, 2, 2)), 0) == []


def test_jitter_is_seeded_bounded_and_leaves_a_box():
    mask = np.zeros((20, 20, 50), dtype=np.uint8)
    mask[8:12, 9:11] = 1
    first, again, other = (boxes_of_mask(mask, 2, jitter=3, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    for box in first:
        assert all(low < high for low, high in zip(box.low, box.high, strict=True))
        assert abs(box.low[0] - 8) <= 3
        assert box.high[0] <= 15
    assert len({box.low for box in first}) > 5


def test_slices_are_cut_across_the_thickest():
    assert slicing_axis((1.0, 1.0, 3.0)) == 2
    assert slicing_axis((5.0, 1.0, 1.0)) == 0
    assert slicing_axis((1.0, 1.00001, 1.0)) == 2
    assert [plane_axes(axis) for axis in range(3)] == [(1, 2), (0, 2), (0, 1)]


def test_boxes_from_a_file(tmp_path):
    path = tmp_path / "boxes.json"
    path.write_text('[{"label": 3, "slice": 4, "box": [1, 2, 5, 6]}, {"box": [0, 1, 2, 3, 4, 5]}]')
    across = [Box(1, z, (0, 1), (3, 4)) for z in (2, 3, 4)]
    assert read_boxes(path, (8, 8, 8), 2) == [Box(3, 4, (1, 2), (5, 6)), *across]
    assert read_boxes(path, (8, 8, 8), 0)[1:] == [Box(1, x, (1, 2), (4, 5)) for x in (0, 1, 2)]
    for text, reason in (
        ("[]", "holds no box"),
        ("{", "field "),
        ('[{"box": [1, 2, 3, 4]}]', "box 0: has 4 numbers; give"),
        ('[{"slice": 1, "box": [1, 2, 3, 4, 5]}]', "has 5 numbers and a slice"),
        ('[{"slice": 8, "box": [1, 2, 3, 4]}]', "leaves the scan"),
        ('[{"slice": 1, "box": [3, 2, 3, 4]}]', "is empty or leaves"),
        ('[{"slice": 1, "box": [1, 2, 3, 4], "colour": 1}]', "0.colour does not exist"),
        ('[{"label": 0, "slice": 1, "box": [1, 2, 3, 4]}]', "0.label"),
    ):
        path.write_text(text)
        with pytest.raises(BadInput, match=reason):
            read_boxes(path, (8, 8, 8), 2)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("resize", ["stretch", "pad"])
def test_a_filled_box_comes_back_where_it_was(axis, resize):
    shape = (20, 10, 15)
    first, second = plane_axes(axis)
    boxes = [Box(1, 3, (2, 1), (7, 6)), Box(2, 4, (1, 4), (9, 9))]
    program = Stub(size=(60, 80), resize=resize)
    mask = segment_prompted(program, Volume(np.random.default_rng(0).random(shape), AFFINE), boxes, axis).data
    expected = np.zeros(shape, dtype=np.uint8)
    for box in boxes:
        place = [slice(None)] * 3
        place[axis] = box.slice
        place[first], place[second] = slice(box.low[0], box.high[0]), slice(box.low[1], box.high[1])
        expected[tuple(place)] = box.label
    assert np.array_equal(mask, expected)
    image, _ = program.seen[0]
    assert image.shape == (1, 3, 60, 80)
    if resize == "pad":
        filled = program.adapter.filled((shape[second], shape[first]))
        assert not image[..., filled[0] :, :].any()
        assert not image[..., filled[1] :].any()


def test_an_image_has_the_expected_intensities():
    data = np.zeros((4, 6, 2), dtype=np.int16)
    data[..., 1] = np.arange(24).reshape(4, 6) * 10
    adapter = Adapter(size=(6, 4), channels=2, scale=255, mean=(10.0, 20.0), std=(2.0, 4.0), window=(50, 150))
    expected = np.clip((data[..., 1].T - 50) / 100, 0, 1) * 255
    image = adapter.prepare(data[..., 1].T, adapter.limits(data))
    assert np.allclose(image, np.stack([(expected - 10) / 2, (expected - 20) / 4])[None], atol=1e-4)
    assert Adapter(percentiles=(0, 100)).limits(data) == (10, 230)
    assert Adapter().limits(np.zeros((2, 2, 2))) == (0, 0)


def test_the_higher_logit_has_the_voxel():
    class Two(Stub):
        def logits(self, image, box):
            return super().logits(image, box) * (len(self.seen) + 1)

    boxes = [Box(1, 0, (0, 0), (6, 6)), Box(2, 0, (3, 3), (8, 8))]
    for order, winner in ((boxes, 2), (boxes[::-1], 1)):
        mask = segment_prompted(Two(size=(8, 8)), Volume(np.zeros((8, 8, 1)), AFFINE), order, 2).data
        assert mask[4, 4, 0] == winner
        assert mask[0, 0, 0] == 1
        assert mask[7, 7, 0] == 2
    with pytest.raises(ValueError, match="give one channel"):
        segment_prompted(Stub(), Volume(np.zeros((8, 8, 1, 2)), AFFINE), boxes, 2)


def test_a_program_without_boxes_sees_every_slice(exported, scan):
    adapter = Adapter(box=None, size=SIZE, output="1", window=(0, 1))
    with trusting():
        program = PromptProgram(exported / "alone.pt2", adapter)
    image = read_volume(scan / "scan.nii.gz")
    mask = segment_prompted(program, image, every_slice(image, 2), 2)
    assert np.array_equal(mask.data, image.data > 0.5)


def prompt(*words):
    return main(["prompt", *map(str, words)])


def words_for(exported, scan):
    program, adapter = exported / "bright.pt2", exported / "adapter.json"
    return program, scan / "scan.nii.gz", scan / "mask.nii.gz", "--adapter", adapter


def test_the_verb_with_a_reference(exported, scan, capsys):
    words = words_for(exported, scan)
    assert prompt(*words, "--reference", scan / "label.nii.gz", "--trust") == 0
    assert "3 boxes from reference, label 2 1.08 ml" in capsys.readouterr().out
    mask, label = (read_volume(scan / f"{name}.nii.gz") for name in ("mask", "label"))
    assert np.array_equal(mask.data, label.data)
    assert np.array_equal(mask.affine, AFFINE)
    record = json.loads((scan / "mask.json").read_text())
    assert record["prompts"] == {
        "from": "reference",
        "file": str(scan / "label.nii.gz"),
        "margin": 0,
        "jitter": 0,
        "seed": 0,
        "boxes": 3,
        "slices": 3,
    }
    assert len(record["program"]["sha256"]) == 64
    assert prompt(*words, "--reference", scan / "label.nii.gz", "--trust") == 3
    assert "exists already" in capsys.readouterr().err


def test_the_verb_with_a_program_that_takes_no_boxes(exported, scan, capsys):
    adapter = {"box": None, "size": SIZE, "output": "1", "window": [0, 1]}
    (scan / "adapter.json").write_text(json.dumps(adapter))
    words = exported / "alone.pt2", scan / "scan.nii.gz", scan / "mask.nii.gz", "--trust"
    words = *words, "--adapter", scan / "adapter.json"
    assert prompt(*words, "--reference", scan / "label.nii.gz") == 2
    says = "--reference gives boxes, and the adapter says that the program takes none"
    assert says in capsys.readouterr().err
    assert prompt(*words) == 0
    assert "5 boxes from no prompt, label 1 1.296 ml" in capsys.readouterr().out
    mask, image = (read_volume(scan / f"{name}.nii.gz").data for name in ("mask", "scan"))
    assert np.array_equal(mask, image > 0.5)
    record = json.loads((scan / "mask.json").read_text())
    assert record["prompts"] == {"from": "no prompt", "boxes": 5, "slices": 5}
    assert record["adapter"]["box"] is None


def test_a_program_of_torch_export_needs_trust(exported, scan, capsys):
    assert prompt(exported / "bright.pt2", scan / "scan.nii.gz", scan / "mask.nii.gz", "--boxes", "boxes.json") == 3
    assert "may run code of its maker when it is opened; give --trust" in capsys.readouterr().err


@pytest.mark.slow
def test_the_verb_with_an_onnx_file_and_boxes(onnx, scan, capsys):
    """The file, exported as the documentation says, is all that is needed and all that the sha256 covers."""
    assert [file.name for file in onnx.parent.iterdir()] == ["medsam.onnx"]
    (scan / "boxes.json").write_text('[{"label": 7, "box": [6, 4, 1, 31, 24, 4]}]')
    words = (onnx, scan / "scan.nii.gz", scan / "mask.nii", "--boxes", scan / "boxes.json", "--json")
    adapter = {"size": SIZE, "window": [0, 1]}
    for wrong, says in (
        ({"image": "pixels"}, "takes the inputs image, box, and the adapter gives pixels, box"),
        ({"output": "mask"}, "has no output 'mask', only"),
        ({"size": [8, 8]}, "cannot be run"),
    ):
        (scan / "adapter.json").write_text(json.dumps(adapter | wrong))
        assert prompt(*words, "--adapter", scan / "adapter.json") == 3
        assert says in capsys.readouterr().err
    (scan / "adapter.json").write_text(json.dumps(adapter))
    assert prompt(*words, "--adapter", scan / "adapter.json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["prompts"]["boxes"] == 3
    assert record["program"]["sha256"] == hashlib.sha256(onnx.read_bytes()).hexdigest()
    found, image = read_volume(scan / "mask.nii").data, read_volume(scan / "scan.nii.gz").data
    assert np.array_equal(found, np.where(image > 0.5, 7, 0))


@pytest.mark.slow
def test_weights_beside_an_onnx_file_are_refused(scan, monkeypatch, capsys):
    """Also in the folder of the file, where onnxruntime would find them."""
    program = export_onnx(DOCUMENTED.replace("external_data=False, ", ""), scan)
    assert (scan / "medsam.onnx.data").stat().st_size == 4 * SIZE[0] * SIZE[1]
    monkeypatch.chdir(scan)
    capsys.readouterr()
    assert prompt(program.name, "scan.nii.gz", "mask.nii", "--reference", "label.nii.gz") == 3
    says = (
        "medsam.onnx: keeps weights in another file, medsam.onnx.data, which its sha256 does not cover; export it in "
    )
    error = capsys.readouterr().err
    assert says + "one file: torch.onnx.export(..., external_data=False)" in error
    assert error.count("\n") == 1


def onnx_model(place):
    """Return an ONNX model, one of whose tensors lies in the file `far`: a weight, or a constant in a branch."""
    onnx = pytest.importorskip("onnx")
    near = onnx.helper.make_tensor("near", onnx.TensorProto.FLOAT, [1], [1.0])
    far = onnx.helper.make_tensor("far", onnx.TensorProto.FLOAT, [1], [1.0])
    far.ClearField("float_data")
    far.data_location = onnx.TensorProto.EXTERNAL
    far.external_data.add(key="location", value="far")
    image = onnx.helper.make_tensor_value_info("image", onnx.TensorProto.BOOL, [1])
    out = onnx.helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, [1])
    constant = onnx.helper.make_node("Constant", [], ["out"], value=far if place == "branch" else near)
    branch = onnx.helper.make_graph([constant], "branch", [], [out])
    chosen = onnx.helper.make_node("If", ["image"], ["out"], then_branch=branch, else_branch=branch)
    weights = [far if place == "weight" else near]
    graph = onnx.helper.make_graph([chosen], "graph", [image], [out], weights)
    versions = onnx.helper.make_opsetid("", 18)  # old enough for any onnxruntime
    return onnx.helper.make_model(graph, ir_version=9, opset_imports=[versions])


@pytest.mark.parametrize("place", ["weight", "branch", None])
def test_tensors_in_other_files_are_found_wherever_they_are(place, tmp_path):
    pytest.importorskip("onnxruntime")
    (tmp_path / "model.onnx").write_bytes(onnx_model(place).SerializeToString())
    with pytest.raises(BadInput) as caught:
        PromptProgram(tmp_path / "model.onnx")
    says = "takes the inputs image, and" if place is None else "keeps weights in another file, far, which"
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_verb_with_a_coarse_model(exported, scan, capsys):
    from fheat import create_model, save

    model = create_model("miniature")
    model.head.bias.data = torch.tensor([0.0, 100.0])  # everything is foreground, so a box is the whole slice
    save(model, scan / "model")
    words = words_for(exported, scan)
    assert prompt(*words, "--coarse", scan / "model", "--margin", 3, "--trust") == 0
    record = json.loads((scan / "mask.json").read_text())
    assert (record["prompts"]["from"], record["prompts"]["boxes"]) == ("coarse model", 5)
    found, image = (read_volume(scan / f"{name}.nii.gz").data for name in ("mask", "scan"))
    assert np.array_equal(found, image > 0.5)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--boxes", "a.json", "--coarse", "la-4"], 2, "--boxes and --coarse are given: boxes come from one of them"),
        (["--boxes", "a.json", "--margin", "2"], 2, "--margin is for boxes around a mask"),
        (["--reference", "r.nii", "--jitter", "-1"], 2, "must not be negative"),
        (["--reference", "r.nii", "--device", "cpu"], 2, "--device is for the model of --coarse"),
        ([], 2, "give --boxes FILE, --reference MASK or --coarse MODEL"),
        (["--adapter", "nothing.json"], 3, "nothing.json: does not exist"),
        (["--boxes", "nothing.json"], 3, "nothing.json: does not exist"),
        (["--reference", "nothing.nii"], 3, "nothing.nii"),
    ],
)
def test_wrong_words_are_one_line(words, code, says, exported, scan, monkeypatch, capsys):
    monkeypatch.chdir(scan)
    adapter = [] if "--adapter" in words else ["--adapter", exported / "adapter.json"]
    assert prompt(exported / "bright.pt2", "scan.nii.gz", "mask.nii.gz", "--trust", *adapter, *words) == code
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1
    assert not (scan / "mask.nii.gz").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"sise": [4, 4]}, "field sise does not exist, perhaps size is meant"),
        ({"size": [0, 4]}, "field size.0"),
        ({"box_shape": [1, 3]}, "box_shape: (1, 3) does not hold four numbers"),
        ({"window": [3, 3]}, "window: (3.0, 3.0) is empty"),
        ({"mean": [1, 2]}, "mean: has 2 numbers for 3 channels"),
    ],
)
def test_wrong_adapters(content, says, tmp_path):
    path = tmp_path / "adapter.json"
    path.write_text(json.dumps(content))
    with pytest.raises(BadInput) as caught:
        Adapter.read(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_programs(exported, tmp_path):
    (tmp_path / "broken.pt2").write_bytes(b"PK nothing")
    (tmp_path / "broken.onnx").write_bytes(b"nothing")
    with trusting():
        for name, reason in (("broken.pt2", "is no program of torch.export"), ("none.pt2", "does not exist")):
            with pytest.raises(BadInput, match=reason):
                PromptProgram(tmp_path / name)
        with pytest.raises(BadInput, match=r"is no program; give a file that ends in \.onnx or \.pt2"):
            PromptProgram(tmp_path / "model.pth")
        with pytest.raises(BadInput, match="takes the inputs image, box, and the adapter gives image, box, mode"):
            PromptProgram(exported / "bright.pt2", Adapter(extra={"mode": 1.0}))
        program = PromptProgram(exported / "alone.pt2", Adapter(box=None, size=SIZE, output="0"))
        with pytest.raises(BadInput, match=r"returns shape \(\), not one mask"):
            program.logits(np.zeros((1, 3, *SIZE), np.float32), None)
    pytest.importorskip("onnxruntime")
    with pytest.raises(BadInput, match="is no ONNX model"):
        PromptProgram(tmp_path / "broken.onnx")
