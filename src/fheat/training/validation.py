"""How good a network is on scans it does not learn from."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fheat.inference.sliding import SlidingWindow
from fheat.inference.windows import Windows
from fheat.metrics.masks import dice

Held = tuple[str, NDArray[np.float32], NDArray[np.uint8]]
"""Name, image (X, Y, Z[, C]) as the network sees it, and label (X, Y, Z)."""


def validate(model: nn.Module, scans: Sequence[Held], windows: Windows, classes: int) -> dict[str, float]:
    """Return the Dice of every scan, mean over the foreground classes, by the real sliding window.

    No component is removed and an empty prediction counts 0. The network is put back into the mode it was in. Raises
    `FloatingPointError` where its output is NaN or infinite.
    """
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    sliding = SlidingWindow(model, windows, batch=16 if device.type == "cuda" else 2)
    found = {}
    for name, image, label in scans:
        x = torch.from_numpy(image[None] if image.ndim == 3 else np.moveaxis(image, -1, 0).copy()).to(device)
        scores = sliding(x)
        if not torch.isfinite(scores).all():
            raise FloatingPointError(f"the output for {name} is NaN or infinite")
        predicted = scores.argmax(dim=0).cpu().numpy()
        found[name] = float(np.mean([dice(predicted == value, label == value) for value in range(1, classes)]))
    model.train(training)
    return found
