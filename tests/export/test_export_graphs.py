"""Exported graphs: the network's numbers for any batch and size, no transform of a closed gate, the recipe inside."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from io import BytesIO
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from results import ROOT, read_result

from fheat import Predictor, load, retire
from fheat.export.compare import LARGEST_DIFFERENCE, Comparison, compare_on_noise, compare_on_scans
from fheat.export.graphs import GRAPHS
from fheat.export.recipe import KEY, Recipe, recipe_of
from fheat.export.write import export_model
from fheat.io import Volume, read_volume, write_nifti

SUFFIX = {"onnx": ".onnx", "openvino": ".xml", "pt2": ".pt2"}
LA = Path(os.environ.get("FHEAT_LA", ROOT.parent / "shared" / "data" / "la"))


@pytest.fixture(scope="module")
def exports(models, scan, tmp_path_factory):
    """Return a function that gives the result and the files of an export, which is made once."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    made, folder = {}, tmp_path_factory.mktemp("exports")

    def get(to, kind):
        if (to, kind) not in made:
            target = folder / f"{kind}{SUFFIX[to]}"
            result = export_model(models[kind], to, target, scans=[scan])
            made[to, kind] = result, {suffix: target.with_suffix(suffix).read_bytes() for suffix in GRAPHS[to].suffixes}
        return made[to, kind]

    return get


def recipe_inside(to, files):
    """Read the recipe with the library of the format."""
    if to == "onnx":
        import onnx

        model = onnx.load_model_from_string(files[".onnx"])
        text = {entry.key: entry.value for entry in model.metadata_props}[KEY]
    elif to == "openvino":
        import openvino

        text = openvino.Core().read_model(files[".xml"], files[".bin"]).get_rt_info(KEY).value
    else:
        extra = {f"{KEY}.json": ""}
        torch.export.load(BytesIO(files[".pt2"]), extra_files=extra)
        text = extra[f"{KEY}.json"]
    return Recipe.model_validate_json(text)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["closed", "open"])
@pytest.mark.parametrize("to", ["onnx", "openvino", "pt2"])
@torch.no_grad()
def test_a_graph_gives_the_logits_of_the_network(exports, models, to, kind):
    result, files = exports(to, kind)
    network, run = retire(load(models[kind])), GRAPHS[to].load(files)
    size = result.recipe.input.size
    grids = [size] if kind == "open" else [size, tuple(np.add(size, (0, 32, 64)))]
    for batch, grid in [(1, size), (3, size), *((2, grid) for grid in grids)]:
        x = torch.randn(batch, 1, *grid)
        found, expected = run(x), network(x)
        assert found.shape == expected.shape
        assert (found - expected).abs().max() <= LARGEST_DIFFERENCE * expected.abs().max()
    assert (result.on_noise.other_class, result.on_scans.other_class) == (0, 0)
    assert 0 < result.on_scans.largest <= LARGEST_DIFFERENCE
    assert result.on_scans.windows >= 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["closed", "open"])
@pytest.mark.parametrize("to", ["onnx", "openvino", "pt2"])
def test_a_file_has_its_recipe_and_its_hash(exports, models, to, kind):
    result, files = exports(to, kind)
    recipe = recipe_inside(to, files)
    assert recipe == result.recipe
    assert recipe.weights_sha256 == hashlib.sha256((models[kind] / "model.safetensors").read_bytes()).hexdigest()
    assert recipe.input.step == (None if kind == "open" else 32)
    assert ("open gates dec1" in recipe.input.fixed_because) is (kind == "open")
    assert set(GRAPHS[to].packages) <= recipe.versions.keys()
    *paths, hashes = map(Path, result.files)
    for path, line in zip(paths, hashes.read_text().splitlines(), strict=True):
        assert line == f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}"
        assert result.sha256[str(path)] == line.split()[0]
    assert not any(str(ROOT).encode() in content for content in files.values()), (
        "the file names a folder of this machine"
    )


@pytest.mark.slow
def test_a_closed_gate_leaves_no_transform(exports):
    """Products with matrices are the cosine transforms, five per open gate: nothing else here has any."""
    import onnx

    counts = {}
    for kind in ("closed", "open"):
        _, files = exports("onnx", kind)
        graph = onnx.load_model_from_string(files[".onnx"]).graph
        counts[kind] = Counter(node.op_type for node in graph.node)
        assert not counts[kind].keys() & {"DFT", "STFT", "Einsum", "Gemm", "Cos"}
    assert counts["closed"]["MatMul"] == 0
    assert counts["open"]["MatMul"] == 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["closed", "open"])
def test_openvino_keeps_float32(exports, kind):
    text = exports("openvino", kind)[1][".xml"].decode()
    assert 'element_type="f16"' not in text
    assert 'element_type="f32"' in text


def segment_without_fheat(script, model, scan, mask):
    """Run a script of examples/ where neither fheat nor torch can be imported."""
    code = (
        "import runpy, sys\n"
        "sys.modules['fheat'] = sys.modules['torch'] = None  # importing them fails\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    command = [sys.executable, "-c", code, ROOT / "examples" / script, model, scan, mask]
    return subprocess.run(command, capture_output=True, text=True)


def least_dice(found, expected):
    """Return the smallest Dice of the three classes, each of which has voxels."""
    values = []
    for value in range(3):
        both = ((found == value) & (expected == value)).sum()
        assert (expected == value).sum() > 500
        values.append(2 * both / ((found == value).sum() + (expected == value).sum()))
    return min(values)


@pytest.mark.slow
def test_the_examples_segment_without_fheat_and_torch(exports, models, scan, tmp_path):
    result, _ = exports("onnx", "open")
    model, mask, ready = next(iter(result.files)), tmp_path / "mask.nii.gz", tmp_path / "ready.nii.gz"
    done = segment_without_fheat("segment_onnx_any.py", model, scan, mask)
    assert done.returncode == 0, done.stderr
    found = nibabel.load(mask)
    predictor = Predictor(models["open"], runtime="torch", device="cpu")
    expected = predictor.segment(scan)
    assert np.array_equal(found.affine, expected.affine)
    assert least_dice(np.asarray(found.dataobj), expected.data) >= 0.99
    assert segment_without_fheat("segment_onnx.py", model, scan, mask).returncode == 1  # it would need resampling
    write_nifti(Volume(read_volume(scan).data, np.diag([1.0, 1.0, 1.5, 1.0])), ready)
    assert segment_without_fheat("segment_onnx.py", model, ready, mask).returncode == 0
    assert least_dice(np.asarray(nibabel.load(mask).dataobj), predictor.segment(ready).data) >= 0.99


@pytest.mark.parametrize(("script", "lines"), [("segment_onnx.py", 20), ("segment_onnx_any.py", 40)])
def test_the_examples_are_short(script, lines):
    code = (ROOT / "examples" / script).read_text().split('"""', 2)[2]
    assert len([line for line in code.splitlines() if line]) <= lines


def test_the_stored_result_meets_its_target():
    results = read_result("export-cpu").results
    rows = results["exports"]
    models = {row["model"] for row in rows}
    assert "la-4" in models
    assert [row["format"] for row in rows] == len(models) * ["onnx", "openvino", "pt2", "bundle"]
    for found in results["dice_with_predict"].values():
        assert found["short"]["stored"] >= 0.99
        assert min(found["example"].values()) >= 0.99
        assert found["bundle"]["stored"] >= 0.99
    for row in rows:
        assert row["largest_difference"] <= LARGEST_DIFFERENCE
        assert row["other_class"] <= 1e-6 * row["voxels"]


@pytest.mark.slow
@pytest.mark.skipif(not (LA / "dataset.json").exists(), reason="FHEAT_LA names no copy of the LA scans")
def test_openvino_on_windows_of_a_real_scan(tmp_path):
    pytest.importorskip("openvino")
    scan = sorted((LA / "imagesTr").glob("*.nii.gz"))[0]
    result = export_model("la-4", "openvino", tmp_path / "la-4.xml", scans=[scan])
    assert result.on_scans.largest <= LARGEST_DIFFERENCE
    assert result.on_scans.windows >= 4


@pytest.mark.parametrize("regions", [False, True])
def test_a_comparison_counts(regions):
    """Two classes at three voxels, logits 4 at most; one is off by 0.5, which changes the class of that voxel."""
    expected = torch.tensor([[[4.0, -0.2, 1.0], [-4.0, 0.2, -1.0]]])
    found = expected + torch.tensor([[[0.0, 0.5, 0.0], [0.0, 0.0, 0.0]]])
    comparison = Comparison(lambda x: expected, lambda x: found, regions=regions)
    comparison(torch.zeros(1, 1, 3))
    result = comparison.result()
    assert (result.largest, result.other_class, result.voxels, result.windows) == (0.125, 1, 3, 1)
    assert not result.accepted


def test_what_is_not_a_number_is_not_accepted():
    x = torch.ones(1, 2, 3)
    comparison = Comparison(lambda x: x, lambda x: x * (torch.nan if x.sum() > 6 else 1), regions=False)
    comparison(x)
    assert comparison.result().accepted
    comparison(2 * x)
    comparison(x)
    assert not comparison.result().accepted
    with pytest.raises(ValueError, match=r"gives \(1, 1, 3\) where the network gives \(1, 2, 3\)"):
        Comparison(lambda x: x, lambda x: x[:, :1], regions=False)(x)


def test_windows_of_a_scan_are_those_of_prediction(models, scan):
    """Each is compared once; an exported file that is off in one voxel of one window is found."""
    predictor = Predictor(models["open"], runtime="torch", device="cpu")
    seen = []

    def exported(x):
        y = predictor.network(x)
        y[0, 0, 0, 0, 0] += len(seen)  # nothing in the first batch
        seen.append(x)
        return y

    result = compare_on_scans(predictor, exported, [scan])
    prepared = predictor.scan(read_volume(scan))
    counts = [-(-length // size) for length, size in zip(prepared.shape, predictor.windows.size, strict=True)]
    assert result.windows == np.prod(counts) == sum(map(len, seen))
    assert result.voxels == result.windows * np.prod(predictor.windows.size)
    assert result.largest > 0.01
    assert not result.accepted
    assert compare_on_noise(predictor, predictor.network, None).largest == 0.0


def test_the_recipe_says_what_the_predictor_does(models):
    predictor = Predictor(models["open"], runtime="torch", device="cpu", largest_component=True)
    recipe = recipe_of(predictor, "abc", step=None, fixed_because="of a reason", packages=("scipy", "none-such"))
    content = json.loads(recipe.text())
    assert content["spacing"] == [1.0, 1.0, 1.5]
    assert content["window"] == {
        "size": [32, 48, 32],
        "stride": [16, 24, 16],
        "weights": "constant",
        "activation": "softmax",
    }
    assert content["gates"] == {"open": ["dec1"], "retired": ["enc1", "enc2"]}
    assert (content["largest_component"], content["classes"]) == (True, ["background", "dark", "bright"])
    assert sorted(content["versions"]) == ["fheat", "numpy", "scipy", "torch"]
    assert "\n" not in recipe.text()


def test_the_page_explains_every_field():
    page = (ROOT / "docs" / "reference" / "export-recipe.md").read_text()
    table = page.split("## The recipe")[1].split("\n## ")[0]
    named = set(re.findall(r"^\| `([\w.]+)`", table, re.M))

    def fields(model, prefix=""):
        for name, field in model.model_fields.items():
            inner = getattr(field.annotation, "model_fields", None)
            yield from [f"{prefix}{name}"] if inner is None else fields(field.annotation, f"{prefix}{name}.")

    assert set(fields(Recipe)) == named
