"""Where the volumes of a run live: on the device of the step, or in host memory where they do not fit."""

from collections.abc import Sequence
from typing import Literal

import torch

from fheat.data.pack import Packed, bytes_together
from fheat.data.store import VolumeStore
from fheat.data.stream import HostStore

SHARE = 0.5
"""Of the free memory of a GPU that volumes may take; networks and their gradients need the rest."""


def place(
    volumes: Sequence[Packed], device: torch.device, resident: Literal["auto", "yes", "no"]
) -> VolumeStore | HostStore:
    """Return a store of the volumes: resident on the device if they fit or are told to, else streamed from the host.

    A CPU computes where the volumes are, so there `auto` always means resident.
    """
    if resident == "auto":
        resident = "yes" if bytes_together(volumes) <= room(device) else "no"
    return VolumeStore(volumes, device) if resident == "yes" else HostStore(volumes, device)


def room(device: torch.device) -> float:
    """Return the bytes that volumes may take on a device."""
    return SHARE * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else float("inf")
