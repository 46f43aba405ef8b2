"""The stages of the FHEAT networks by fused kernels: the same parameters and the same function in few launches."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fheat.nn.convolutions import DepthwiseConv3d, Pointwise3d
from fheat.nn.fheat import FHEAT, KAN3D
from fheat.nn.layers import OneGroupNorm, has_hooks
from fheat.ops import kernels
from fheat.ops.heat import FractionalHeat
from fheat.ops.kernels.launch import WIDEST
from fheat.ops.rational import Rational
from fheat.ops.spectral_mixer import SpectralMixer

if TYPE_CHECKING:
    from fheat.nn.blocks import FHEATBlock

Parts = tuple[tuple[str, type[nn.Module]], ...]

_FIRST_HALF: Parts = (
    ("fheat", FHEAT), ("fheat.depthwise", DepthwiseConv3d), ("fheat.project", Pointwise3d),
    ("fheat.norm", OneGroupNorm), ("fheat.out", Pointwise3d), ("fheat_norm", OneGroupNorm),
)  # fmt: skip
_SECOND_HALF: Parts = (
    ("mixer", KAN3D), ("mixer.0", OneGroupNorm), ("mixer.1", Pointwise3d), ("mixer.2", Rational),
    ("mixer.3", Pointwise3d), ("mixer_norm", OneGroupNorm),
)  # fmt: skip
"""Submodules of the halves of an FHEAT block, in the order in which the kernels take their weights and biases."""

_VOXELS_FOR_LIBRARY = 16384
"""Fewest voxels of a batch whose products of 65 to 128 channels the library computes."""
_WIDEST_FOR_LIBRARY = 256
"""Most channels of a stage whose products the library computes: tiles of more have no test."""


def fusable(x: Tensor, blocks: Iterable[Any], gate: nn.Module) -> bool:
    """Return whether kernels can run the light blocks of a stage on x: they read the weights and call no submodule.

    They cannot if a submodule was replaced, has a parametrisation, a hook, another eps or no bias, if the stage is
    too wide, or if what stands in the place of the gate is no gate or does something else in every call. A mixer other
    than KAN3D of ratio 1 is no obstacle: it runs as a module between kernels.
    """
    return (
        _fusable_gate(gate)
        and not has_hooks(gate)
        and all(
            type(light.depthwise) is DepthwiseConv3d
            and (light.depthwise.in_channels <= WIDEST or _library_can(x, light.depthwise.in_channels))
            and not any(has_hooks(module) for module in light.modules())
            and _as_built(light.first, _FIRST_HALF)
            and _as_built(light.second, _FIRST_HALF)
            for light in blocks
        )
    )


def run_fused(x: Tensor, blocks: Iterable[Any], gate: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the features of a stage and the output of its last FHEAT, as `FHEATStage` computes them."""
    from fheat.ops.kernels.depthwise import residual_depthwise, weight_tables  # Triton takes a second to import
    from fheat.ops.kernels.fheat import FHEATWeights, fheat_half
    from fheat.ops.kernels.mixer import MixerWeights, mixer_half
    from fheat.ops.kernels.wide import wide_fheat_half, wide_mixer_half

    with kernels.on_device(x):
        x = x.float().movedim(1, -1).contiguous()
        y, wide = x, _is_wide(x)
        first_half, second_half = (wide_fheat_half, wide_mixer_half) if wide else (fheat_half, mixer_half)
        response = gate.response(tuple(x.shape[1:4]), x) if isinstance(gate, FractionalHeat) else None
        layers = [(light, light.first.fheat, light.second.fheat) for light in blocks]
        table = iter(weight_tables([layer.depthwise.weight for trio in layers for layer in trio]))
        for light, *_ in layers:
            x = residual_depthwise(x, light.depthwise.weight, next(table))
            for block in (light.first, light.second):
                eps = block.fheat_norm.eps
                x, moments, y = first_half(x, response, FHEATWeights(*_values(block, _FIRST_HALF)), next(table), eps)
                if _small_kan(block, x.shape[-1]):
                    x = second_half(x, moments, MixerWeights(*_values(block, _SECOND_HALF)), eps)
                else:
                    mixed = block.mixer_norm(block.mixer(x.movedim(-1, 1)))
                    x = x + mixed.movedim(1, -1)
    return x.movedim(-1, 1), y.movedim(-1, 1)


def _is_wide(x: Tensor) -> bool:
    """Return whether the products of (N, X, Y, Z, C) are left to the library: more channels do not fit one program, and
    from 65 on the gradients of matrices fill its registers, which is slow where there are many voxels."""
    channels = x.shape[-1]
    many = channels > 64 and x.numel() >= channels * _VOXELS_FOR_LIBRARY
    return _library_can(x, channels) and (channels > WIDEST or many)


def _library_can(x: Tensor, channels: int) -> bool:
    """Return whether kernels can run between products by the library: places in operands of twice the elements of x are
    numbers of 32 bits."""
    return channels <= _WIDEST_FOR_LIBRARY and 2 * x.numel() < 2**31


def _fusable_gate(gate: nn.Module) -> bool:
    if isinstance(gate, FractionalHeat):
        return gate.one_response and gate.transform == "auto"
    return isinstance(gate, SpectralMixer) and gate.retired


def _small_kan(block: "FHEATBlock", channels: int) -> bool:
    """Return whether the mixer of a block is the one that has a kernel: KAN3D of ratio 1."""
    return (
        type(block.mixer) is KAN3D
        and _as_built(block, _SECOND_HALF)
        and bool(block.get_submodule("mixer.1").out_channels == channels)
    )


def _values(block: "FHEATBlock", parts: Parts) -> list[Tensor]:
    """Return the ten parameters of one half of a block."""
    names = {FHEAT: (), KAN3D: (), Rational: ("numerator", "denominator")}
    return [
        getattr(block.get_submodule(part), name) for part, kind in parts for name in names.get(kind, ("weight", "bias"))
    ]


def _as_built(block: "FHEATBlock", parts: Parts) -> bool:
    built = [(block.get_submodule(name), kind) for name, kind in parts]
    epsilons = {part.eps for part, _ in built if isinstance(part, OneGroupNorm)}
    return (
        all(type(part) is kind for part, kind in built)
        and epsilons == {block.fheat_norm.eps}
        and all(part.bias is not None for part, _ in built if isinstance(part, nn.Conv3d))
    )
