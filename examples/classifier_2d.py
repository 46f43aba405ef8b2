"""The gate in a network of your own: a small 2D classifier learns which of its layers need global mixing.

The task is made up on the spot: faint stripes across the image, hidden under noise, run in one of four
directions. No single pixel tells; averaging over the image does. Three gates may mix globally. After training the
closed ones are retired and the outputs compared bit for bit.

    python examples/classifier_2d.py
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fheat


class Classifier(nn.Module):
    """Three convolutions, a gate after each, the mean of the squares as read-out."""

    def __init__(self, width: int = 16, classes: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(size, width, 3, padding=1) for size in (1, width, width))
        self.gates = nn.ModuleList(fheat.FractionalHeat(dims=2) for _ in range(3))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 1, X, Y) -> logits (N, classes)."""
        for layer, gate in zip(self.layers, self.gates, strict=True):
            x = F.gelu(gate(layer(x)))
        return self.head(x.square().mean(dim=(2, 3)))


def stripes(count: int, generator: torch.Generator, size: int = 24) -> tuple[Tensor, Tensor]:
    """Images (N, 1, size, size) with a stripe pattern along one of four directions under noise, and the direction."""
    direction = torch.randint(4, (count,), generator=generator)
    angle = direction * torch.pi / 4
    axis = torch.linspace(-1, 1, size)
    along = angle.cos()[:, None, None] * axis[:, None] + angle.sin()[:, None, None] * axis
    phase = 2 * torch.pi * torch.rand(count, 1, 1, generator=generator)
    image = torch.sin(6 * along + phase) + 2 * torch.randn(count, size, size, generator=generator)
    return image[:, None], direction


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    model = Classifier()
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=1e-4)
    for _ in range(options.steps):
        image, direction = stripes(64, generator)
        optimiser.zero_grad()
        F.cross_entropy(model(image), direction).backward()
        optimiser.step()
    model.eval()
    image, direction = stripes(1000, generator)
    small = fheat.retire(model)
    with torch.no_grad():
        full, bypassed = model(image), small(image)
    print(fheat.allocation(small, (1, 1, 24, 24)))
    print(f"\naccuracy {(full.argmax(1) == direction).float().mean():.3f} (chance 0.250)")
    print(f"before: {fheat.cost(Classifier(), (1, 1, 24, 24))}")
    print(f"after:  {fheat.cost(small, (1, 1, 24, 24))}")
    print(f"retired network equal bit for bit: {torch.equal(full, bypassed)}")


if __name__ == "__main__":
    main()
