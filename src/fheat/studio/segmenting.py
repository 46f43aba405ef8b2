"""The tasks that run a network: segmenting a scan, and timing a network with and without its retired transforms."""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fheat.data.appearance import unusual_text
from fheat.data.classes import millilitres
from fheat.gates.hook import with_gates_of
from fheat.gates.retire import retire
from fheat.inference.memory import machine_bytes
from fheat.inference.predictor import Predictor, usable_device
from fheat.io import read_volume, trusting, write_nifti
from fheat.io.dicom import Series, read_headers
from fheat.io.dicom_seg import write_dicom_seg
from fheat.io.nrrd import write_nrrd
from fheat.io.volume import Volume
from fheat.models.folder import load
from fheat.networks.registry import spec_of
from fheat.ops.gates import gates_of
from fheat.system.errors import BadInput
from fheat.system.progress import Progress

ROUNDS: Final = 5
"""Number of times that a window is timed with each network."""


def segment(folder: Path, arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Segment a scan of the service and write the mask, and what else is wanted, to the folder.

    Arguments: `scan` (file), `series` (folder of its DICOM series, or None), `model` (folder), `device`, `runtime`,
    `preset`, `largest_component`, `uncertainty` and `nrrd` (whether those files are wanted).
    """
    begin = time.perf_counter()
    with trusting():  # a file that this service has read and written again
        scan = read_volume(arguments["scan"])
    predictor = Predictor(
        Path(arguments["model"]),
        device=arguments["device"],
        runtime=arguments["runtime"],
        largest_component=arguments["largest_component"],
        uncertainty="entropy" if arguments["uncertainty"] else None,
    )
    if arguments["preset"] == "fast":
        predictor.windows = predictor.windows.fast()
    predictor.check_plausible(scan)
    _check_memory(predictor, scan)
    notes = [unusual_text("the scan", unusual)] if (unusual := predictor.unusual(scan)) else []
    found = predictor.predict(scan, progress=progress, check=False)
    mask, uncertainty = found.mask, found.uncertainty
    write_nifti(mask, folder / "mask.nii.gz")
    if uncertainty is not None:
        write_nifti(uncertainty, folder / "uncertainty.nii.gz")
    if arguments["nrrd"]:
        write_nrrd(mask, folder / "mask.nrrd")
    has_seg = arguments["series"] is not None
    if has_seg:
        try:
            series = Series(scan, read_headers(arguments["series"]))  # its pixels were read when it came
            names = ("background", *predictor.labels)
            write_dicom_seg(mask, series, folder / "mask.dcm", names, codes=predictor.card.codes)
        except BadInput as error:  # there is a mask all the same
            has_seg = False
            notes.append(f"no DICOM SEG: {error.reason}; {error.remedy}")
    labels = {name: value for value, name in enumerate(predictor.labels, start=1)}
    groups: dict[str, Sequence[int]] = {name: (value,) for name, value in labels.items()}
    groups.update(predictor.classes)  # nested regions, which hold several label values
    return {
        "volumes_ml": millilitres(mask, groups),
        "classes": labels,
        "regions": predictor.classes,
        "seconds": round(time.perf_counter() - begin, 3),
        "runtime": found.runtime,
        "device": str(predictor.device),
        "warnings": notes,
        "uncertainty": uncertainty is not None,
        "seg": has_seg,
    }


def _check_memory(predictor: Predictor, scan: Volume) -> None:
    bound, available = predictor.memory(scan).total, machine_bytes()
    if available is not None and bound > available:
        reason = f"the scan would take {bound / 2**20:,.0f} MiB, this machine has {available / 2**20:,.0f}"
        raise BadInput("scan", reason, "check its spacing, or use a larger machine")


def time_retirement(folder: Path, arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Time one window of a scan with the transforms of closed gates kept and with them retired.

    Arguments: `scan` (file), `model` (folder), `device`. Each network runs the window once before its `ROUNDS` timed
    rounds, which alternate; the median counts. A retired gate is the identity, so both give the same labels.
    """
    with trusting():
        scan = read_volume(arguments["scan"])
    device = usable_device(arguments["device"] or ("cuda" if torch.cuda.is_available() else "cpu"))
    predictor = Predictor(Path(arguments["model"]), device=device, runtime="torch", precision="float32")
    window = _window(predictor, scan)
    kept = _with_transforms(load(Path(arguments["model"]))).to(device, torch.float32).eval()
    networks = {"before": kept, "after": retire(kept)}
    seconds: dict[str, list[float]] = {name: [] for name in networks}
    outputs: dict[str, NDArray[Any]] = {}
    with torch.no_grad():
        for number in range(ROUNDS + 1):
            for name, network in networks.items():
                _wait(device)
                begin = time.perf_counter()
                output = network(window)
                _wait(device)
                if number:
                    seconds[name].append(time.perf_counter() - begin)
                outputs[name] = output.argmax(dim=1).cpu().numpy()
            progress(number + 1, ROUNDS + 1)
    return {
        "before_seconds": round(median(seconds["before"]), 6),
        "after_seconds": round(median(seconds["after"]), 6),
        "same_mask": bool(np.array_equal(outputs["before"], outputs["after"])),
        "window": list(window.shape[2:]),
        "device": str(device),
    }


def _window(predictor: Predictor, scan: Volume) -> Tensor:
    """Return the window (1, C, *size) in the middle of a scan; zeros surround a scan that is smaller."""
    prepared, size = predictor.scan(scan), predictor.windows.size
    first = [max((length - side) // 2, 0) for length, side in zip(prepared.shape, size, strict=True)]
    image = prepared.planes(0, first[0], min(first[0] + size[0], prepared.shape[0]))
    image = image[:, :, first[1] : first[1] + size[1], first[2] : first[2] + size[2]]
    window = torch.zeros((1, image.shape[0], *size))
    window[0][tuple(slice(length) for length in image.shape)] = image
    return window.to(predictor.device)


def _with_transforms(model: nn.Module) -> nn.Module:
    """Return the network as it was before gates were retired: closed gates, whose transforms run all the same."""
    network = with_gates_of(spec_of(model).build(), model)
    network.load_state_dict(model.float().state_dict(), strict=False)
    for site, gate in gates_of(network).items():
        if gates_of(model)[site].closed and not gate.closed:
            gate.set_strength(0.0)
    return network


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
