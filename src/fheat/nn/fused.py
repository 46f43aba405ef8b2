"""The stages of the FHEAT networks through fused kernels: same parameters, same function, a handful of launches."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fheat.nn.fheat import FHEAT, KAN3D
from fheat.nn.layers import OneGroupNorm
from fheat.ops import kernels
from fheat.ops.heat import FractionalHeat
from fheat.ops.kernels.launch import WIDEST
from fheat.ops.rational import Rational

if TYPE_CHECKING:
    from fheat.nn.blocks import FHEATBlock

_PARTS = (
    ("fheat", FHEAT), ("fheat.depthwise", nn.Conv3d), ("fheat.project", nn.Conv3d), ("fheat.norm", OneGroupNorm),
    ("fheat.out", nn.Conv3d), ("fheat_norm", OneGroupNorm), ("mixer", KAN3D), ("mixer.0", OneGroupNorm),
    ("mixer.1", nn.Conv3d), ("mixer.2", Rational), ("mixer.3", nn.Conv3d), ("mixer_norm", OneGroupNorm),
)  # fmt: skip
"""Of a block, in the order in which kernels take their weights and biases."""


def fusable(blocks: Iterable[Any], gate: FractionalHeat) -> bool:
    """Whether the light blocks of a stage are as they were built: kernels read weights and call no inner module.

    Not where somebody has put another module, a parametrisation, a hook or another eps inside, or left out a bias, and
    not where it is too wide.
    """
    return (
        gate.transform == "auto"
        and not _heard(gate)
        and all(
            type(light.depthwise) is nn.Conv3d
            and light.depthwise.in_channels <= WIDEST
            and not any(_heard(module) for module in light.modules())
            and _as_built(light.first)
            and _as_built(light.second)
            for light in blocks
        )
    )


def run_fused(x: Tensor, blocks: Iterable[Any], gate: FractionalHeat) -> tuple[Tensor, Tensor]:
    """Return a stage's features and its last FHEAT's output: what `FHEATStage` computes from its light blocks."""
    from fheat.ops.kernels.depthwise import residual_depthwise, tables  # Triton takes a second to import
    from fheat.ops.kernels.fheat import FHEATWeights, fheat_half
    from fheat.ops.kernels.mixer import MixerWeights, mixer_half

    with kernels.on_device(x):
        x = x.float().permute(0, 2, 3, 4, 1).contiguous()
        y = x
        response = gate.response(tuple(x.shape[1:4]), x)
        layers = [(light, light.first.fheat, light.second.fheat) for light in blocks]
        table = iter(tables([layer.depthwise.weight for trio in layers for layer in trio]))
        for light, *_ in layers:
            x = residual_depthwise(x, light.depthwise.weight, next(table))
            for block in (light.first, light.second):
                values, eps = _values(block), block.fheat_norm.eps
                x, moments, y = fheat_half(x, response, FHEATWeights(*values[:10]), next(table), eps)
                x = mixer_half(x, moments, MixerWeights(*values[10:]), eps)
    return x.permute(0, 4, 1, 2, 3), y.permute(0, 4, 1, 2, 3)


def _values(block: "FHEATBlock") -> list[Tensor]:
    """Return the parameters of a block by name: ten of its first half, ten of its second."""
    names = {FHEAT: (), KAN3D: (), Rational: ("numerator", "denominator")}
    return [
        getattr(block.get_submodule(part), name)
        for part, kind in _PARTS
        for name in names.get(kind, ("weight", "bias"))
    ]


def _as_built(block: "FHEATBlock") -> bool:
    parts = [(block.get_submodule(name), kind) for name, kind in _PARTS]
    epsilons = {part.eps for part, _ in parts if isinstance(part, OneGroupNorm)}
    return (
        all(type(part) is kind for part, kind in parts)
        and len(epsilons) == 1
        and all(part.bias is not None for part, _ in parts if isinstance(part, nn.Conv3d))
    )


def _heard(module: nn.Module) -> bool:
    """Whether somebody listens to a module."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )
