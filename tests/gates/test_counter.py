"""Our counter against fvcore, layer by layer; whole networks are in tests/networks/test_sizes.py."""

import pytest
import torch
from fvcore.nn import FlopCountAnalysis
from torch import nn

from fheat import cost

NORMS = [
    nn.GroupNorm(2, 4),
    nn.GroupNorm(2, 4, affine=False),
    nn.BatchNorm3d(4),
    nn.BatchNorm3d(4, affine=False),
]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_norms_are_counted_as_fvcore_does(norm):
    model = nn.Sequential(nn.Conv3d(1, 4, 1), norm).eval()
    x = torch.randn(1, 1, 3, 4, 5)
    assert cost(model, x.shape).macs == int(FlopCountAnalysis(model, x).total())
