"""Time the gate's transform in fused kernels and by the library's products: `python benchmarks/fused_transform.py`.

The transform y = idct(m * dct(x)) is timed on every grid of the two networks with up to 128 channels, for windows of
112x112x80 and batches of one, of four (a training step) and of eight (a prediction). Candidates run on a GPU, captured,
in turns. The forward pass keeps the spectrum where a backward pass follows; the backward pass is the same transform of
the gradient.
"""

import torch
from record import arguments, write_result
from transforms import GRIDS

from fheat.bench.timing import interleaved
from fheat.ops.dct import dct, idct
from fheat.ops.heat import FractionalHeat
from fheat.ops.kernels import transform
from fheat.ops.kernels.launch import WIDEST


def times(batch: int, channels: int, grid: tuple[int, ...], rounds: int) -> dict[str, float]:
    x = torch.randn(batch, *grid, channels, device="cuda")
    multiplier, closed = FractionalHeat(initial_strength=0.5).cuda()._multiplier(grid, x)

    def library() -> torch.Tensor:
        found = idct(dct(x, channels_last=True) * multiplier[..., None], channels_last=True)
        return torch.where(closed, x, found)

    return interleaved(
        {
            "library": library,
            "kernels": lambda: transform.filtered(x, multiplier, closed, keep_spectrum=False),
            "kernels, spectrum kept": lambda: transform.filtered(x, multiplier, closed, keep_spectrum=True),
        },
        rounds,
        "cuda",
    )


def main() -> None:
    options = arguments(__doc__, "fused-transform", rounds=20)
    torch.manual_seed(0)
    found = {}
    with torch.no_grad():
        for site, (channels, grid) in GRIDS.items():
            if channels > WIDEST:
                continue
            for batch in (1, 4, 8):
                found[f"{site}, batch {batch}"] = times(batch, channels, grid, options.rounds)
    for name, values in found.items():
        print(f"{name:34}", "  ".join(f"{kind} {1e3 * value:.1f} us" for kind, value in values.items()))
    write_result(
        options.name,
        title="Time of the gate's transform in fused kernels beside the library's products on a GPU",
        command="python benchmarks/fused_transform.py --device cuda",
        seed=0,
        device="cuda",
        results={"milliseconds": found},
        out=options.out,
    )


if __name__ == "__main__":
    main()
