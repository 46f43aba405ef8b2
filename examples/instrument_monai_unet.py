"""Which layers of a MONAI UNet want global mixing? Train it as it is, put closed gates into it, and ask.

The volumes are made up on the spot: a bright ball and a dim one, in front of a background that drifts across the
volume, under noise; the dim ball is to be segmented. Closed gates change no bit of the network. `fheat.probe` measures
at each of them whether opening it would lower the loss; the sites that say so get gates that are open a little, and
further training decides how far.

    python examples/instrument_monai_unet.py
"""

import argparse

import torch
import torch.nn.functional as F
from monai.networks.nets import UNet
from torch import Tensor, nn

import fheat

SIZE = 24


def volumes(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images (N, 1, SIZE, SIZE, SIZE) and labels (N, SIZE, SIZE, SIZE)."""
    axis = torch.arange(SIZE, dtype=torch.float32)
    position = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"))
    centres = 6 + (SIZE - 12) * torch.rand(2, count, 3, 1, 1, 1, generator=generator)
    bright, dim = ((position - centre).norm(dim=1) < 5 for centre in centres)
    drift = F.interpolate(torch.randn(count, 1, 2, 2, 2, generator=generator), size=(SIZE,) * 3, mode="trilinear")
    image = drift + (2 * bright + (dim & ~bright))[:, None] + torch.randn(drift.shape, generator=generator)
    return image, (dim & ~bright).long()


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    image, label = batch
    return F.cross_entropy(model(image), label)


def train(model: nn.Module, steps: int, rate: float, generator: torch.Generator) -> None:
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=1e-4)
    for _ in range(steps):
        optimiser.zero_grad()
        loss(model, volumes(2, generator)).backward()
        optimiser.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    model = UNet(3, in_channels=1, out_channels=2, channels=(8, 16, 24), strides=(2, 2), num_res_units=1)
    train(model, options.steps, 0.01, generator)

    batches = [volumes(2, generator) for _ in range(6)]
    image = batches[0][0]
    closed = fheat.instrument(model, example=image)  # every convolution with a kernel larger than one
    with torch.no_grad():
        print(f"closed gates change no bit: {torch.equal(closed(image), model(image))}\n")
    found = fheat.probe(closed, loss, *batches)
    print(found)

    wanted = [row.site for row in found if row.pairing > 2 * (row.error or 0.0)]
    print(f"\nP above twice its error at {len(wanted)} of {len(found)} sites; training goes on with gates there\n")
    if wanted:
        gated = fheat.instrument(model, wanted, initial_strength=0.03)
        train(gated, options.steps // 2, 0.005, generator)
        print(fheat.allocation(gated, image))


if __name__ == "__main__":
    main()
