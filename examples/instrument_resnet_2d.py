"""Which layers of a residual network want global mixing? Put gates into it and let training decide.

The network is of the usual kind and knows nothing of gates. Its task is made up on the spot and has a known answer:
one input is a smooth field under heavy noise, the other a sharp mask, and the target is the field inside the mask.
Averaging over the image helps behind the first stem and can only harm behind the second. Gates go behind both stems and
behind every residual block; the same network is trained without them for comparison.

    python examples/instrument_resnet_2d.py
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fheat

SIZE = 24


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm around a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, X, Y) -> the same."""
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + x)


class ResNet(nn.Module):
    """A stem for each input, residual blocks on both together, one channel out."""

    def __init__(self, width: int = 12, depth: int = 2) -> None:
        super().__init__()
        self.noisy_stem = nn.Conv2d(1, width // 2, 3, padding=1)
        self.mask_stem = nn.Conv2d(1, width // 2, 3, padding=1)
        self.blocks = nn.Sequential(*(BasicBlock(width) for _ in range(depth)))
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, noisy: Tensor, mask: Tensor) -> Tensor:
        """Two images (N, 1, X, Y) -> one."""
        return self.head(self.blocks(torch.cat([self.noisy_stem(noisy), self.mask_stem(mask)], dim=1)))


def images(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Noisy fields, masks and targets, each (N, 1, SIZE, SIZE)."""
    coarse = torch.randn(count, 1, 3, 3, generator=generator)
    field = F.interpolate(coarse, size=(SIZE, SIZE), mode="bicubic", align_corners=True)
    noisy = field + 4 * torch.randn(count, 1, SIZE, SIZE, generator=generator)
    tiles = (torch.rand(count, 1, SIZE // 4, SIZE // 4, generator=generator) < 0.5).float()
    mask = F.interpolate(tiles, scale_factor=4.0, mode="nearest")
    return noisy, mask, field * mask


def train(model: nn.Module, steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    gates = [value for name, value in model.named_parameters() if name.endswith((".gate.theta", ".gate.delta"))]
    others = [value for value in model.parameters() if not any(value is gate for gate in gates)]
    # Two scalars have a long way to go in a short training, so they go faster than the weights.
    groups = [{"params": others}, {"params": gates, "lr": 0.05}]
    optimiser = torch.optim.AdamW(groups, lr=0.01, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    model.train()
    for _ in range(steps):
        noisy, mask, target = images(16, generator)
        optimiser.zero_grad()
        F.mse_loss(model(noisy, mask), target).backward()
        optimiser.step()
        schedule.step()
    model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    plain = ResNet()
    gated = fheat.instrument(plain, ["*_stem", "blocks.*"], dims=2, initial_strength=0.03)
    train(plain, options.steps, options.seed)
    train(gated, options.steps, options.seed)

    noisy, mask, target = images(200, torch.Generator().manual_seed(options.seed + 1))
    small = fheat.retire(gated)
    with torch.no_grad():
        errors = [F.mse_loss(model(noisy, mask), target).item() for model in (plain, gated)]
        equal = torch.equal(small(noisy, mask), gated(noisy, mask))
    print(fheat.allocation(gated, (noisy[:1], mask[:1])))
    print(f"\nsquared error {errors[0]:.4f} without gates, {errors[1]:.4f} with them")
    print(f"retired network equal bit for bit: {equal}")


if __name__ == "__main__":
    main()
