"""A network of three layers that trains in milliseconds, known to this process and to those that it starts."""

import os
import sys
from contextlib import contextmanager

import pytest

from fheat.networks import registry

MODULE = """
from torch import nn
from fheat import FractionalHeat


class Tiny(nn.Sequential):
    def __init__(self, *, in_channels=1, out_channels=2, patch_size=(16, 16, 16), width=4):
        convolutions = nn.Conv3d(in_channels, width, 3, padding=1), nn.Conv3d(width, out_channels, 3, padding=1)
        super().__init__(convolutions[0], FractionalHeat(), nn.Dropout(0.2), nn.GELU(), convolutions[1])
"""


@contextmanager
def tiny_network(site):
    """Install a package with the network `tiny` in a folder that other processes look for packages in."""
    information = site / "fheat_tiny-1.0.dist-info"
    information.mkdir(parents=True)
    (site / "fheat_tiny.py").write_text(MODULE)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: fheat-tiny\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[fheat.networks]\ntiny = fheat_tiny:Tiny\n")
    registry.list_models()  # before the package is on the path: this process is told of the network below
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
        patch.setattr(sys, "path", [str(site), *sys.path])
        patch.setitem(registry._NETWORKS, "tiny", __import__("fheat_tiny").Tiny)
        yield
    sys.modules.pop("fheat_tiny", None)
