"""Write reference.json: a few logits of every network from fixed seeds, so that no change of output is silent."""

import json
from pathlib import Path

import torch

from fheat import create_model, list_models


def sample(name: str) -> list[float]:
    """Return a few logits of a network, which is as narrow as its options or a few of its constants make it."""
    from tests.networks.test_contract import NARROW, NARROW_CONSTANTS, with_constants

    torch.manual_seed(1)
    grid = (40, 36, 32)
    with with_constants(NARROW_CONSTANTS), torch.no_grad():
        model = create_model(name, patch_size=grid, **NARROW.get(name, {})).eval()
        x = torch.randn(1, 1, *grid, generator=torch.Generator().manual_seed(2))
        logits = model(x).flatten()
    return [round(value, 5) for value in logits[:: logits.numel() // 12].tolist()]


if __name__ == "__main__":
    content = {name: sample(name) for name in list_models()}
    Path(__file__).with_name("reference.json").write_text(json.dumps(content, indent=1) + "\n")
