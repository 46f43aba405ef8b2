"""The stages of the FHEAT networks by fused kernels: the same parameters and the same function in few launches.

A gate whose transform is a multiplier on the cosine spectrum runs by kernels too. Any other operator in its place is
called as a module, once for each FHEAT, between the kernels before it and those behind it.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import Tensor, nn

from fheat.nn.convolutions import DepthwiseConv3d, Pointwise3d
from fheat.nn.fheat import FHEAT, KAN3D
from fheat.nn.layers import OneGroupNorm, has_hooks
from fheat.ops import kernels
from fheat.ops.heat import FractionalHeat
from fheat.ops.kernels.launch import WIDEST, block_bytes, operand_type, shared_memory
from fheat.ops.rational import Rational
from fheat.ops.spectral_mixer import SpectralMixer

if TYPE_CHECKING:
    from fheat.nn.blocks import FHEATBlock
    from fheat.ops.kernels.fheat import FHEATWeights, Mixed

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

    They cannot if a submodule was replaced, has a parametrisation, a hook, another eps or no bias, if the gate or what
    stands in its place has a hook, or if the stage is too wide for the device. An operator that is no gate and a mixer
    other than KAN3D of ratio 1 are no obstacles: they run as modules between kernels.
    """
    return not any(has_hooks(module) for module in gate.modules()) and all(
        type(light.depthwise) is DepthwiseConv3d
        and (_programs_can(x, light.depthwise.in_channels) or _library_can(x, light.depthwise.in_channels))
        and not any(has_hooks(module) for module in light.modules())
        and _as_built(light.first, _FIRST_HALF)
        and _as_built(light.second, _FIRST_HALF)
        for light in blocks
    )


def run_fused(x: Tensor, blocks: Iterable[Any], gate: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the features of a stage and the output of its last FHEAT, as `FHEATStage` computes them."""
    from fheat.ops.kernels.depthwise import residual_depthwise, weight_tables  # Triton takes a second to import
    from fheat.ops.kernels.fheat import FHEATWeights
    from fheat.ops.kernels.mixer import MixerWeights, mixer_half
    from fheat.ops.kernels.wide import wide_mixer_half

    with kernels.on_device(x):
        x = x.float().movedim(1, -1).contiguous()
        y, wide = x, _is_wide(x)
        first_half, second_half = _first_half(x, gate, wide), wide_mixer_half if wide else mixer_half
        layers = [(light, light.first.fheat, light.second.fheat) for light in blocks]
        table = iter(weight_tables([layer.depthwise.weight for trio in layers for layer in trio]))
        for light, *_ in layers:
            x = residual_depthwise(x, light.depthwise.weight, next(table))
            for block in (light.first, light.second):
                eps = block.fheat_norm.eps
                x, moments, y = first_half(x, FHEATWeights(*_values(block, _FIRST_HALF)), next(table), eps)
                if _small_kan(block, x.shape[-1]):
                    x = second_half(x, moments, MixerWeights(*_values(block, _SECOND_HALF)), eps)
                elif block.mixer is not None:
                    mixed = block.mixer_norm(block.mixer(x.movedim(-1, 1)))
                    x = x + mixed.movedim(1, -1)
    return x.movedim(-1, 1), y.movedim(-1, 1)


def _first_half(x: Tensor, gate: nn.Module, wide: bool) -> Callable[[Tensor, "FHEATWeights", Tensor, float], "Mixed"]:
    """Return x + norm(FHEAT(x)) through a gate as a function of x, parameters, table of depthwise weights and eps.

    `x` has the grid of the stage, (N, X, Y, Z, C). A multiplier that is the same in all calls is computed here, once.
    """
    from fheat.ops.kernels.fheat import fheat_half
    from fheat.ops.kernels.operator_half import operator_half, wide_operator_half
    from fheat.ops.kernels.response import response_of
    from fheat.ops.kernels.wide import wide_fheat_half

    around = wide_operator_half if wide else operator_half
    half, grid = wide_fheat_half if wide else fheat_half, (x.shape[1], x.shape[2], x.shape[3])
    if _is_multiplier(gate):
        if not gate.one_response:
            return lambda x, *rest: half(x, gate.response(grid, x), *rest)
        response = response_of(gate, grid, x)
        return lambda x, *rest: half(x, response, *rest)
    if isinstance(gate, SpectralMixer) and gate.retired:
        return lambda x, *rest: half(x, None, *rest)
    return lambda x, *rest: around(x, gate, *rest)


def _is_multiplier(gate: nn.Module) -> TypeGuard[FractionalHeat]:
    """Return whether all that a gate does in a call is to multiply the cosine spectrum by what `response` returns."""
    return (
        isinstance(gate, FractionalHeat)
        and gate.transform == "auto"
        and (gate.one_response or type(gate).forward is FractionalHeat.forward)
    )


def _is_wide(x: Tensor) -> bool:
    """Return whether the products of (N, X, Y, Z, C) are left to the library: more channels do not fit one program, and
    from 65 on the gradients of matrices fill its registers, which is slow where there are many voxels."""
    channels = x.shape[-1]
    many = channels > 64 and x.numel() >= channels * _VOXELS_FOR_LIBRARY
    return _library_can(x, channels) and (many or not _programs_can(x, channels))


def _programs_can(x: Tensor, channels: int) -> bool:
    """Return whether one program can compute products of so many channels in the type of autocast on the device of x:
    there are tests of them, and its shared memory has room for the matrices."""
    return channels <= WIDEST and block_bytes(channels, operand_type(x)) <= shared_memory(x)


def _library_can(x: Tensor, channels: int) -> bool:
    """Return whether kernels can run between products by the library: places in operands of twice the elements of x are
    numbers of 32 bits."""
    return channels <= _WIDEST_FOR_LIBRARY and 2 * x.numel() < 2**31


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
