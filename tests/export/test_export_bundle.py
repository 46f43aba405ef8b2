"""MONAI bundles: MONAI's own checks pass, its `run` gives the mask of `fheat predict`, and fheat opens none."""

import io
import json
import subprocess
import sys
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch

from fheat import BadInput, Card, Predictor, instrument, load, retire, save
from fheat.cli.main import main
from fheat.data.orientation import reorient
from fheat.export.bundle import _after, _before, described_network, make_bundle
from fheat.export.recipe import recipe_of
from fheat.export.write import export_model
from fheat.io import Volume, read_volume, write_nifti
from fheat.ops.gates import gates_of
from tests.miniature import declare

SCHEMA = Path(__file__).with_name("bundle_schema.json")
"""The required fields of MONAI's schema 20240725 in words of our own: tests do not download."""


@pytest.fixture(scope="module")
def bundle(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundles") / "bundle"
    export_model(models["open"], "bundle", folder)
    return folder


COMMANDS = """
import json, runpy, sys
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    runpy.run_module("monai.bundle", run_name="__main__")
"""
"""`python -m monai.bundle` with one list of words after the other, so that MONAI is imported once."""


def monai(folder, site, *commands):
    """Run commands of MONAI in the folder of a bundle, all of them in one process."""
    words = json.dumps([list(map(str, command)) for command in commands])
    command = [sys.executable, "-c", COMMANDS, words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=declare(site))


def test_a_bundle_has_what_monai_asks_for(bundle, models):
    names = {str(path.relative_to(bundle)) for path in bundle.rglob("*") if path.is_file()}
    assert names == {"LICENSE", "configs/metadata.json", "configs/inference.json", "models/model.pt", "docs/README.md"}
    network = retire(load(models["open"]))
    stored = torch.load(bundle / "models" / "model.pt", weights_only=True)
    assert stored.keys() == network.state_dict().keys()
    assert all(torch.equal(stored[name], value) for name, value in network.state_dict().items())
    metadata = json.loads((bundle / "configs" / "metadata.json").read_text())
    assert metadata["network_data_format"]["outputs"]["pred"]["channel_def"]["2"] == "bright"
    assert metadata["fheat_recipe"]["spacing"] == [1.0, 1.0, 1.5]


@torch.no_grad()
def test_the_network_of_a_bundle_is_the_network(bundle, models):
    files = {str(path.relative_to(bundle)): path.read_bytes() for path in bundle.rglob("*") if path.is_file()}
    x = torch.randn(2, 1, 32, 48, 32)
    weights = torch.load(io.BytesIO(files["models/model.pt"]), weights_only=True)
    assert torch.equal(described_network(files, weights)(x), load(models["open"])(x))


@torch.no_grad()
def test_gates_that_were_put_into_a_network_are_described(models, tmp_path):
    """MONAI's own parser builds the network with those of them that are open."""
    from monai.bundle import ConfigParser

    model = instrument(load(models["open"]), ["stem", "dec1.project"], initial_strength=0.5)
    gates_of(model)["stem"].set_strength(0.0)
    export_model(save(model, tmp_path / "model"), "bundle", tmp_path / "bundle")
    parser = ConfigParser()
    parser.read_config(tmp_path / "bundle" / "configs" / "inference.json")
    assert parser["network_def"]["sites"] == ["dec1.project"]
    network = parser.get_parsed_content("network_def").eval()
    network.load_state_dict(torch.load(tmp_path / "bundle" / "models" / "model.pt", weights_only=True))
    x = torch.randn(1, 1, 32, 48, 32)
    assert torch.equal(network(x), model(x))
    assert not torch.equal(network(x), load(models["open"])(x))


def test_gates_that_were_put_in_in_different_ways_are_not_described_as_one(models, tmp_path):
    model = instrument(load(models["open"]), "stem", initial_strength=0.5)
    model = instrument(model, "dec1.project", initial_strength=0.5, alpha=0.7)
    with pytest.raises(BadInput, match="describes gates that were put in in one way"):
        export_model(save(model, tmp_path / "model"), "bundle", tmp_path / "bundle")


@pytest.mark.slow
def test_monai_verifies_and_runs_a_bundle(bundle, models, scan, tmp_path):
    scans = tmp_path / "scans"
    scans.mkdir()
    volume = read_volume(scan)
    write_nifti(volume, scans / "other.nii.gz")
    on_the_grid = reorient(Volume(volume.data, np.diag([-1.0, 1.0, 1.5, 1.0])), "LPS")
    write_nifti(on_the_grid, scans / "same.nii.gz")
    metadata, steps = ["--meta_file", "configs/metadata.json"], ["--config_file", "configs/inference.json"]
    done = monai(
        bundle,
        tmp_path / "site",
        ["verify_metadata", *metadata, "--filepath", SCHEMA],
        ["verify_net_in_out", "network_def", *metadata, *steps],
        ["run", *steps, "--dataset_dir", scans, "--output_dir", tmp_path / "masks"],
    )
    assert done.returncode == 0, done.stderr
    for says in ("metadata is verified with no error", "data shape of network is verified with no error"):
        assert says in done.stdout + done.stderr, done.stderr
    predictor = Predictor(models["open"], runtime="torch", device="cpu")
    for name, least in (("same", 0.999), ("other", 0.9)):
        mask = nibabel.load(tmp_path / "masks" / f"{name}.nii.gz")
        expected = predictor.segment(scans / f"{name}.nii.gz")
        assert mask.get_data_dtype() == np.uint8
        assert np.allclose(mask.affine, expected.affine)
        assert (np.asarray(mask.dataobj) == expected.data).mean() >= least


@pytest.mark.filterwarnings("ignore:NvImgCodecPydicomReader", "ignore:Default logging")
def test_a_run_keeps_neither_gradients_nor_scans(bundle, scan, tmp_path):
    from monai.bundle import ConfigParser

    parser = ConfigParser()
    parser.read_config(bundle / "configs" / "inference.json")
    parser["bundle_root"], parser["output_dir"] = str(bundle), str(tmp_path)
    parser["dataset"] = [{"image": str(scan)}]
    modes = []
    network = parser.get_parsed_content("network")
    network.register_forward_hook(lambda *given: modes.append(torch.is_grad_enabled()))
    assert parser.get_parsed_content("run") == [[None]]
    assert set(modes) == {False}
    assert (tmp_path / scan.name).is_file()


def test_a_schema_that_asks_for_more_is_not_met(bundle):
    """The schema of these tests is not empty: without any of its fields the metadata are refused."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(SCHEMA.read_text())
    metadata = json.loads((bundle / "configs" / "metadata.json").read_text())
    jsonschema.validate(metadata, schema)
    assert len(schema["required"]) >= 10
    for name in schema["required"]:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({key: value for key, value in metadata.items() if key != name}, schema)


@pytest.mark.parametrize("verb", ["predict", "export"])
def test_fheat_opens_no_bundle(bundle, scan, tmp_path, capsys, verb):
    """A pickle that would write a file when it is read is not read."""
    trap = tmp_path / "trap"
    (bundle / "models" / "model.pt").rename(tmp_path / "model.pt")
    (bundle / "models" / "model.pt").write_bytes(pickle_that_writes(trap))
    words = [str(scan), str(tmp_path / "out")] if verb == "predict" else [str(tmp_path / "out"), "--to", "bundle"]
    assert main([verb, str(bundle), *words]) == 3
    (tmp_path / "model.pt").replace(bundle / "models" / "model.pt")
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"{bundle}: is a MONAI bundle, and fheat runs nothing that a bundle says; give the model folder" in error
    assert not trap.exists()
    assert not (tmp_path / "out").exists()


def pickle_that_writes(path):
    import pickle

    class Trap:
        def __reduce__(self):
            return Path.write_text, (path, "caught")

    buffer = io.BytesIO()
    pickle.dump(Trap(), buffer)
    return buffer.getvalue()


def with_card(model, **facts):
    network = load(model)
    card = network.card.model_dump() | facts
    return Predictor(network, card=Card(**card), runtime="torch", device="cpu")


@pytest.mark.filterwarnings("ignore:NvImgCodecPydicomReader")  # a reader of MONAI that nothing here uses
@pytest.mark.parametrize(
    "intensity",
    [
        {"kind": "none"},
        {"kind": "zscore"},
        {"kind": "zscore", "nonzero": True},
        {"kind": "window", "low": -100.0, "high": 240.0},
    ],
    ids=lambda given: "-".join(map(str, given.values())),
)
def test_transforms_before_the_network_are_the_preprocessing(models, tmp_path, intensity):
    """On the network's own grid MONAI's transforms give the values of `Preprocessing`."""
    from monai.bundle import ConfigParser

    data = np.random.default_rng(0).normal(100, 150, size=(34, 33, 35)).astype(np.float32)
    data[:5] = 0
    volume = Volume(data, np.diag([-1.0, -1.0, 1.5, 1.0]))
    write_nifti(volume, tmp_path / "a.nii.gz")
    preprocessing = {"orientation": "RAS", "spacing": (1.0, 1.0, 1.5), "intensity": intensity}
    predictor = with_card(models["open"], preprocessing=preprocessing)
    recipe = recipe_of(predictor, "", step=None, packages=("monai", "nibabel"))
    parser = ConfigParser(
        {"imports": ["$import torch"], "before": {"_target_": "Compose", "transforms": _before(recipe)}}
    )
    found = parser.get_parsed_content("before")({"image": str(tmp_path / "a.nii.gz")})["image"]
    expected = predictor.preprocessing.image(volume)
    assert found.shape == (1, *expected.shape)
    assert found.dtype == torch.float32
    assert np.abs(found[0].numpy() - expected).max() <= 1e-5 * np.abs(expected).max()


def test_regions_are_painted_from_the_outside_in(models):
    from monai.bundle import ConfigParser

    from fheat.inference.postprocessing import paint

    predictor = with_card(models["open"], classes=("whole", "core", "active"), regions=(2, 1, 4))
    recipe = recipe_of(predictor, "", step=None, packages=("monai", "nibabel"))
    assert recipe.window.activation == "sigmoid"
    step = next(one for one in _after(recipe) if one["_target_"] == "Lambdad")
    parser = ConfigParser({"imports": ["$import torch"], "paint": step["func"]})
    probabilities = torch.rand(3, 8, 8, 8)
    found = parser.get_parsed_content("paint")(probabilities)
    assert torch.equal(found[0].to(torch.uint8), paint(probabilities, (2, 1, 4)))
    predictor.largest_component = True
    recipe = recipe_of(predictor, "", step=None, packages=("monai", "nibabel"))
    with pytest.raises(ValueError, match="nested regions and their largest components"):
        make_bundle(predictor, recipe)


def test_a_folder_that_is_no_bundle_is_not_replaced(models, tmp_path):
    (tmp_path / "thesis.tex").write_text("years")
    with pytest.raises(BadInput, match="is not a MONAI bundle; choose another folder; nothing was touched"):
        export_model(models["open"], "bundle", tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "years"


def test_scans_in_the_folder_of_a_bundle_are_not_lost(bundle, models):
    """MONAI reads them there and writes masks beside them, as the README of a bundle says."""
    (bundle / "scans").mkdir()
    with pytest.raises(BadInput, match="holds 'scans', which is not part of an export; move it"):
        export_model(models["open"], "bundle", bundle, overwrite=True)
    (bundle / "scans").rmdir()
