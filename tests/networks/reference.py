"""Write reference.json: a few logits of every network from fixed seeds, so that no change of output is silent."""

import json
from pathlib import Path

import torch

from fheat import list_models


def sample(name: str) -> list[float]:
    from tests.networks.test_contract import WINDOW, build, narrowed

    torch.manual_seed(1)
    with narrowed(WINDOW):
        model = build(name, patch=(40, 36, 32)).eval()
    x = torch.randn(1, 1, 40, 36, 32, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        logits = model(x).flatten()
    return [round(value, 5) for value in logits[:: logits.numel() // 12].tolist()]


if __name__ == "__main__":
    content = {name: sample(name) for name in list_models()}
    Path(__file__).with_name("reference.json").write_text(json.dumps(content, indent=1) + "\n")
