"""The stages of the FHEAT networks through fused kernels: same parameters, same function, a handful of launches."""

from typing import Any

from torch import Tensor, nn

from fheat.ops.heat import FractionalHeat


def fusable(stage: nn.Module) -> bool:
    """Whether nobody listens inside the stage: fused kernels call no inner module, so no hook of theirs would run."""
    return not any(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
        for module in stage.modules()
        if module is not stage
    )


def run_fused(x: Tensor, blocks: Any, gate: FractionalHeat) -> tuple[Tensor, Tensor]:
    """Return a stage's features and its last FHEAT's output: what `FHEATStage` computes from its light blocks."""
    from fheat.ops.kernels.depthwise import residual_depthwise  # Triton takes a second to import
    from fheat.ops.kernels.fheat import FHEATWeights, fheat_half
    from fheat.ops.kernels.mixer import MixerWeights, mixer_half

    x = x.float().permute(0, 2, 3, 4, 1).contiguous()
    y = x
    response = gate.response(tuple(x.shape[1:4]), x)
    for light in blocks:
        x = residual_depthwise(x, light.depthwise.weight)
        for block in (light.first, light.second):
            x, moments, y = fheat_half(x, response, FHEATWeights(*block.fheat_parameters()), block.fheat_norm.eps)
            x = mixer_half(x, moments, MixerWeights(*block.mixer_parameters()), block.mixer_norm.eps)
    return x.permute(0, 4, 1, 2, 3), y.permute(0, 4, 1, 2, 3)
