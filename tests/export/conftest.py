"""Two models that the tests export, with all gates closed and with one open, and a scan on another grid."""

import numpy as np
import pytest
import torch
from scipy import ndimage

from fheat import Card, create_model, save
from fheat.io import Volume, write_nifti
from fheat.ops.gates import gates_of
from tests.miniature import NAME

SITES = {"closed": (), "open": ("dec1",)}


def write_model(folder, kind, patch, **facts):
    """Write a model with random weights whose card asks for another orientation and spacing than `scan` has."""
    torch.manual_seed(3)
    model = create_model(NAME, patch_size=patch, out_channels=3)
    for parameter in model.parameters():
        if parameter.ndim:
            parameter.data += 0.3 * torch.randn_like(parameter)
    model.head.bias.data.zero_()
    for site, gate in gates_of(model).items():
        gate.set_strength(0.6 if site in SITES[kind] else 0.0)
    preprocessing = {"orientation": "RAS", "spacing": (1.0, 1.0, 1.5), "intensity": {"kind": "zscore"}}
    window = {"size": patch, "stride": [length // 2 for length in patch]}
    facts = {"preprocessing": preprocessing, "window": window, "licence": "CC0", "data": "noise"} | facts
    return save(model, folder, Card(title="blobs", classes=("background", "dark", "bright"), **facts))


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    patches = {"closed": (32, 48, 80), "open": (32, 48, 32)}
    return {kind: write_model(folder / kind, kind, patch) for kind, patch in patches.items()}


@pytest.fixture(scope="session")
def scan(tmp_path_factory):
    """A scan of blobs, 50x46x30 voxels of 1.2x0.9x1.5 mm, its first two axes exchanged and pointing the other way."""
    noise = np.random.default_rng(0).normal(size=(50, 46, 30))
    data = 100 + 1000 * ndimage.gaussian_filter(noise, 3).astype(np.float32)
    affine = np.array([[0, -0.9, 0, 5], [-1.2, 0, 0, 7], [0, 0, 1.5, -3], [0, 0, 0, 1]], dtype=np.float64)
    path = tmp_path_factory.mktemp("scans") / "blobs.nii.gz"
    write_nifti(Volume(data, affine), path)
    return path
