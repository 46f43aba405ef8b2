"""Claims about the networks that need no training: counts, the gates of one stage, the attention map, splits, la-4."""

from typing import Any

import torch
from torch import Tensor, nn

import fheat
from fheat.data.recipes import RECIPES
from fheat.data.recipes.split import split_of
from fheat.gates.cost import parameters
from fheat.nn.blocks import FHEATStage, LightBlock
from fheat.ops.gates import gates_of
from fheat.ops.heat import FractionalHeat


def architecture() -> dict[str, Any]:
    """Return light blocks, channels and gate scalars of both networks, and the parameters of the GELU twin (C03, C22,
    C24)."""
    found = {}
    for name in ("fheat_seg", "fheat_seg_l"):
        model = fheat.create_model(name)
        stages = {path: stage for path, stage in model.named_modules() if isinstance(stage, FHEATStage)}
        found[name] = {
            "blocks": [len(stage.blocks) for stage in stages.values()],
            "channels": [_channels(stage) for stage in stages.values()],
            "stages": list(stages),
            "gate_scalars": sum(parameters(gate) for gate in gates_of(model).values()),
        }
    gelu = fheat.create_model("fheat_seg", mixer="gelu")
    return {**found, "gelu_parameters": parameters(gelu)}


def _channels(stage: FHEATStage) -> int:
    block = stage.blocks[0]
    assert isinstance(block, LightBlock)
    return block.depthwise.in_channels


class _InTurn(nn.Module):
    """Stands for a shared gate and lets the first call pass one gate and every later call another."""

    def __init__(self, first: FractionalHeat, later: FractionalHeat) -> None:
        super().__init__()
        self.gates = [first, later]
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gates[min(self.calls, 1)]
        self.calls += 1
        result: Tensor = gate(x)
        return result


def stage_collapse() -> dict[str, Any]:
    """Replace the gates of one stage by a single gate at the summed time and compare the outputs (C10).

    Theorem 1 would make them equal if the gates followed each other. In a stage there are norms, products,
    convolutions and mixers between them. The bare gates in a row, without these, are measured beside.
    """
    torch.manual_seed(0)
    alpha, strength = 0.9, 1.0
    gate = FractionalHeat(alpha=alpha, strength=strength)
    stage = FHEATStage(24, 1, gate).eval()
    calls = 2 * len(stage.blocks)
    summed = FractionalHeat(alpha=alpha, strength=strength * calls ** (1 / alpha))
    nothing = FractionalHeat(strength=0.0)
    x = torch.randn(1, 24, 14, 14, 10)
    with torch.no_grad():
        before = stage(x)
        in_row = x.double()
        for _ in range(calls):
            in_row = gate(in_row)
        bare = (summed(x.double()) - in_row).norm() / (in_row - x).norm()
        turned = _InTurn(summed, nothing)
        stage.gate = turned  # type: ignore[assignment]
        collapsed = stage(x)
        stage.gate = nothing
        without = stage(x)
    assert turned.calls == calls
    return {
        "gates_in_stage": calls,
        "bare_gates": float(bare),
        "in_stage": float((collapsed - before).norm() / (before - without).norm()),
    }


def mirrored_grids() -> dict[str, int]:
    """Return on how many of the four levels encoder and decoder work on the same grid (C10)."""
    rows = {row.site: row.grid for row in fheat.allocation(fheat.create_model("fheat_seg"))}
    return {"levels": 4, "same_grid": sum(rows[f"enc{level}"] == rows[f"dec{level}"] for level in (1, 2, 3, 4))}


def attention() -> dict[str, Any]:
    """Compare the attention map with the mean of |y| of the last FHEAT, and look for a gradient (C31)."""
    torch.manual_seed(0)
    model = fheat.create_model("fheat_seg", patch_size=(32, 32, 32)).eval()
    outputs: list[Tensor] = []
    last = model.get_submodule("dec1.blocks.0.second.fheat")
    last.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    features = model.forward_features(torch.randn(1, 1, 32, 32, 32))
    wanted = outputs[0].abs().mean(dim=1, keepdim=True)
    return {
        "difference": (features.attention - wanted).abs().max().item(),
        "carries_gradient": features.attention.requires_grad,
    }


def splits() -> dict[str, Any]:
    """Return the sizes of the official splits, and the classes of BraTS 2019 as the benchmark has them (C33, C70)."""
    sizes = {}
    for name in ("la", "pancreas-a", "pancreas-b", "brats2019"):
        split = split_of(name, [])
        sizes[name] = {
            "train": len(split.order),
            "test": len(split.test),
            "labelled": list(split.labelled),
            **({"validation": len(split.validation)} if not set(split.validation) & set(split.order) else {}),
        }
    recipe = RECIPES["brats2019"]
    return {"sizes": sizes, "brats2019_classes": list(recipe.labels), "brats2019_channels": list(recipe.channels)}


def zoo_responses() -> dict[str, Any]:
    """Return what every gate of la-4 leaves of the highest mode of its grid (C46); a retired gate leaves all of it."""
    model = fheat.load("la-4")
    rows = fheat.allocation(model)
    gates = gates_of(model)
    left = {row.site: gates[row.site].multiplier(row.grid).min().item() for row in rows}
    return {"top_mode_left": left, "open": [row.site for row in rows if row.D > 0]}
