"""MONAI bundles: weights, how the network is built, and MONAI's own transforms in the order of the recipe.

A bundle is written and never read: the texts in its configuration that begin with $ are Python, and its weights are a
pickle.
"""

import json
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import torch
from torch import Tensor, nn

from fheat import create_model, instrument
from fheat.export.recipe import KEY, Recipe
from fheat.inference.compilers import Forward
from fheat.inference.predictor import Predictor
from fheat.models.placed import placed_gates
from fheat.ops.gates import gates_of
from fheat.system.machine import installed_version

SCHEMA = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"
"""Address of MONAI's schema of the metadata, which its checks want named."""
VERSION = "0.1.0"
"""Version of a bundle: one export is one bundle, which has no history."""
PACKAGES = ("monai", "nibabel")

_NONZERO_ZSCORE = (
    "$lambda x: torch.stack([(c - c[c != 0].mean()) / (c[c != 0].std(correction=0) or 1) if (c != 0).any() else c"
    " for c in x])"
)
"""Each channel over the mean and deviation of its voxels that are not 0; MONAI's own leaves the zeros as they are."""


def make_bundle(predictor: Predictor, recipe: Recipe) -> dict[str, bytes]:
    """Return the files of a bundle by name, or raise `ValueError` for what MONAI's transforms cannot do."""
    if recipe.largest_component and recipe.regions:
        raise ValueError("nested regions and their largest components are not among MONAI's transforms")
    licence = f"Weights: {recipe.licence or 'no licence is stated'}\nData: {recipe.data or 'not stated'}\n"
    weights = BytesIO()
    torch.save(dict(predictor.network.state_dict()), weights)
    return {
        "LICENSE": licence.encode(),
        "configs/metadata.json": _json(_metadata(recipe)),
        "configs/inference.json": _json(_inference(recipe, _network_def(predictor.network, recipe))),
        "models/model.pt": weights.getvalue(),
        "docs/README.md": _readme(recipe).encode(),
    }


def described_network(files: Mapping[str, bytes], weights: Mapping[str, Tensor]) -> Forward:
    """Return the network that the configuration of a bundle just made describes, with these weights.

    The pickle of a bundle is not opened, not even one of our own.
    """
    network = _built(json.loads(files["configs/inference.json"])["network_def"])
    network.load_state_dict(weights)
    return network.eval()


def _built(definition: Mapping[str, Any]) -> nn.Module:
    """Return the network of a definition that `_network_def` made."""
    arguments = {name: value for name, value in definition.items() if name != "_target_"}
    if "model" not in arguments:
        return create_model(**arguments)
    return instrument(_built(arguments.pop("model")), **arguments)


def _network_def(network: nn.Module, recipe: Recipe) -> dict[str, Any]:
    """Return what builds the network without its retired gates, in MONAI's words: `fheat.create_model`, and around it
    `fheat.instrument` where gates that were put into the network are open.

    Raises `ValueError` where these gates differ in more than their places, which one call cannot describe.
    """
    gates, described = gates_of(network), recipe.network
    own = [site for site, gate in gates.items() if not placed_gates([gate])]
    options = {"gates": [site for site in own if not gates[site].retired] or "closed"} if own else {}
    definition = {
        "_target_": "fheat.create_model",
        "name": described.name,
        "in_channels": described.in_channels,
        "out_channels": described.out_channels,
        "patch_size": list(described.patch_size),
        **described.options,
        **options,
    }
    placed = placed_gates(gate for gate in gates.values() if not gate.retired)
    if not placed:
        return definition
    ways = [one.model_dump(mode="json", exclude={"site", "child", "options"}) | one.options for one in placed]
    if any(way != ways[0] for way in ways):
        raise ValueError("a bundle describes gates that were put in in one way, and those of this network differ")
    return {"_target_": "fheat.instrument", "model": definition, "sites": [one.site for one in placed], **ways[0]}


def _metadata(recipe: Recipe) -> dict[str, Any]:
    image = {
        "type": "image",
        "dtype": "float32",
        "spatial_shape": list(recipe.window.size),
        "value_range": [],
        "is_patch_data": True,
    }
    channels = recipe.network.in_channels
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "changelog": {VERSION: "exported"},
        "monai_version": installed_version("monai"),
        "pytorch_version": recipe.versions["torch"],
        "numpy_version": recipe.versions["numpy"],
        "required_packages_version": {name: recipe.versions[name] for name in ("fheat", "nibabel")},
        "name": recipe.title or recipe.network.name,
        "task": "segmentation of 3D medical images",
        "description": f"{recipe.title or recipe.network.name}. Trained on: {recipe.data or 'not stated'}",
        "authors": "see docs/README.md",
        "copyright": recipe.licence or "not stated",
        "intended_use": "research; not a medical device",
        "network_data_format": {
            "inputs": {
                "image": {
                    **image,
                    "format": "magnitude",
                    "num_channels": channels,
                    "channel_def": {str(at): f"channel {at}" for at in range(channels)},
                }
            },
            "outputs": {
                "pred": {
                    **image,
                    "format": "probabilities" if recipe.regions else "labels",
                    "num_channels": recipe.network.out_channels,
                    "channel_def": {str(at): name for at, name in enumerate(recipe.classes)},
                }
            },
        },
        KEY: json.loads(recipe.text()),
    }


def _inference(recipe: Recipe, network_def: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration that `python -m monai.bundle run` runs; it needs fheat for the network alone."""
    window = recipe.window
    overlap = [max(0.0, 1 - (step + 0.5) / size) for size, step in zip(window.size, window.stride, strict=True)]
    probabilities = "softmax(1)" if window.activation == "softmax" else "sigmoid()"
    return {
        "imports": ["$import glob", "$import numpy as np", "$import torch"],
        "bundle_root": ".",
        "dataset_dir": "$@bundle_root + '/scans'",
        "output_dir": "$@bundle_root + '/masks'",
        "device": "$torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
        "network_def": network_def,
        "network": "$@network_def.to(@device).eval()",
        "weights": "$torch.load(@bundle_root + '/models/model.pt', map_location=@device, weights_only=True)",
        "dataset": "$[{'image': path} for path in sorted(glob.glob(@dataset_dir + '/*.nii*'))]",
        "preprocessing": {"_target_": "Compose", "transforms": _before(recipe)},
        "inferer": {
            "_target_": "SlidingWindowInferer",
            "roi_size": list(window.size),
            "sw_batch_size": 4,
            "overlap": overlap,
            "mode": window.weights,
        },
        "probabilities": f"$lambda x: @inferer(x[None].to(@device), lambda w: @network(w).{probabilities})[0].cpu()",
        "postprocessing": {"_target_": "Compose", "transforms": _after(recipe)},
        "segment": "$torch.no_grad()(lambda x: @postprocessing({**x, 'pred': @probabilities(x['image'])}))",
        "initialize": ["$@network.load_state_dict(@weights)"],
        "run": ["$[@segment(@preprocessing(x)) and None for x in @dataset]"],  # and None: keep no scan in memory
    }


def _before(recipe: Recipe) -> list[dict[str, Any]]:
    """Return the transforms from a file to the input: turned, then intensities mapped, then resampled."""
    transforms: list[dict[str, Any]] = [
        {"_target_": "LoadImaged", "keys": "image", "reader": "NibabelReader"},
        {"_target_": "EnsureChannelFirstd", "keys": "image"},
    ]
    if recipe.orientation is not None:
        transforms.append({"_target_": "Orientationd", "keys": "image", "axcodes": recipe.orientation, "labels": None})
    intensity = recipe.intensity
    if intensity.kind == "window":
        limits = {"a_min": intensity.low, "a_max": intensity.high, "b_min": 0.0, "b_max": 1.0, "clip": True}
        transforms.append({"_target_": "ScaleIntensityRanged", "keys": "image", **limits})
    elif intensity.nonzero:
        transforms.append({"_target_": "Lambdad", "keys": "image", "func": _NONZERO_ZSCORE})
    elif intensity.kind == "zscore":
        transforms.append({"_target_": "NormalizeIntensityd", "keys": "image", "channel_wise": True})
    if recipe.spacing is not None:
        kept = {
            name: [length * (1 + sign * recipe.tolerance) for length in recipe.spacing]
            for name, sign in (("min_pixdim", -1), ("max_pixdim", 1))
        }
        transforms.append({"_target_": "Spacingd", "keys": "image", "pixdim": list(recipe.spacing), **kept})
    return [*transforms, {"_target_": "CastToTyped", "keys": "image", "dtype": "$torch.float32"}]


def _after(recipe: Recipe) -> list[dict[str, Any]]:
    """Return the transforms from probabilities to a file of labels at the voxels of the scan."""
    back = {"_target_": "Invertd", "keys": "pred", "transform": "@preprocessing", "orig_keys": "image"}
    transforms: list[dict[str, Any]] = [{**back, "nearest_interp": False}]
    if recipe.regions:
        painted = "0"
        for channel, value in enumerate(recipe.regions):
            painted = f"torch.where(p[{channel}:{channel + 1}] > 0.5, {value}, {painted})"
        transforms.append({"_target_": "Lambdad", "keys": "pred", "func": f"$lambda p: {painted}"})
    else:
        transforms.append({"_target_": "AsDiscreted", "keys": "pred", "argmax": True})
    if recipe.largest_component:
        labels = list(range(1, recipe.network.out_channels))
        kept = {"applied_labels": labels, "independent": True, "connectivity": 3}
        transforms.append({"_target_": "KeepLargestConnectedComponentd", "keys": "pred", **kept})
    file = {"output_dir": "@output_dir", "output_postfix": "", "separate_folder": False, "output_dtype": "$np.uint8"}
    return [*transforms, {"_target_": "SaveImaged", "keys": "pred", "resample": False, **file}]


def _readme(recipe: Recipe) -> str:
    classes = ", ".join(recipe.classes)
    several = (
        f" A scan has {recipe.network.in_channels} channels, as the fourth axis of its file."
        if recipe.network.in_channels > 1
        else ""
    )
    return f"""# {recipe.title or recipe.network.name}

Network {recipe.network.name}, classes {classes}. Trained on: {recipe.data or "not stated"}.
Licence of the weights: {recipe.licence or "not stated"}.

Put NIfTI files into `scans` and run this in the folder of the bundle; masks come into `masks`:

    pip install monai nibabel fire fheat
    python -m monai.bundle run --config_file configs/inference.json

`--dataset_dir` and `--output_dir` name other folders.{several} The network is built by `fheat.create_model`.
`configs/metadata.json` has the whole recipe in the field `{KEY}`.
"""


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()
