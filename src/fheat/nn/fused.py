"""The stages of the FHEAT networks by fused kernels: the same parameters and the same function in few launches."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fheat.nn.fheat import FHEAT, KAN3D
from fheat.nn.layers import OneGroupNorm
from fheat.ops import kernels
from fheat.ops.heat import FractionalHeat
from fheat.ops.kernels.launch import WIDEST
from fheat.ops.rational import Rational
from fheat.ops.spectral_mixer import SpectralMixer

if TYPE_CHECKING:
    from fheat.nn.blocks import FHEATBlock

_PARTS = (
    ("fheat", FHEAT), ("fheat.depthwise", nn.Conv3d), ("fheat.project", nn.Conv3d), ("fheat.norm", OneGroupNorm),
    ("fheat.out", nn.Conv3d), ("fheat_norm", OneGroupNorm), ("mixer", KAN3D), ("mixer.0", OneGroupNorm),
    ("mixer.1", nn.Conv3d), ("mixer.2", Rational), ("mixer.3", nn.Conv3d), ("mixer_norm", OneGroupNorm),
)  # fmt: skip
"""Submodules of an FHEAT block, in the order in which the kernels take their weights and biases."""


def fusable(blocks: Iterable[Any], gate: nn.Module) -> bool:
    """Return whether kernels can run the light blocks of a stage: they read the weights and call no submodule.

    They cannot if a submodule was replaced, has a parametrisation, a hook, another eps or no bias, if the stage is
    too wide, or if what stands in the place of the gate is no gate or does something else in every call.
    """
    return (
        _fusable_gate(gate)
        and not _has_hooks(gate)
        and all(
            type(light.depthwise) is nn.Conv3d
            and light.depthwise.in_channels <= WIDEST
            and not any(_has_hooks(module) for module in light.modules())
            and _as_built(light.first)
            and _as_built(light.second)
            for light in blocks
        )
    )


def run_fused(x: Tensor, blocks: Iterable[Any], gate: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the features of a stage and the output of its last FHEAT, as `FHEATStage` computes them."""
    from fheat.ops.kernels.depthwise import residual_depthwise, weight_tables  # Triton takes a second to import
    from fheat.ops.kernels.fheat import FHEATWeights, fheat_half
    from fheat.ops.kernels.mixer import MixerWeights, mixer_half

    with kernels.on_device(x):
        x = x.float().permute(0, 2, 3, 4, 1).contiguous()
        y = x
        response = gate.response(tuple(x.shape[1:4]), x) if isinstance(gate, FractionalHeat) else None
        layers = [(light, light.first.fheat, light.second.fheat) for light in blocks]
        table = iter(weight_tables([layer.depthwise.weight for trio in layers for layer in trio]))
        for light, *_ in layers:
            x = residual_depthwise(x, light.depthwise.weight, next(table))
            for block in (light.first, light.second):
                values, eps = _values(block), block.fheat_norm.eps
                x, moments, y = fheat_half(x, response, FHEATWeights(*values[:10]), next(table), eps)
                x = mixer_half(x, moments, MixerWeights(*values[10:]), eps)
    return x.permute(0, 4, 1, 2, 3), y.permute(0, 4, 1, 2, 3)


def _fusable_gate(gate: nn.Module) -> bool:
    if isinstance(gate, FractionalHeat):
        return gate.one_response and gate.transform == "auto"
    return isinstance(gate, SpectralMixer) and gate.retired


def _values(block: "FHEATBlock") -> list[Tensor]:
    """Return the parameters of a block: ten of its first half, then ten of its second."""
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


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )
