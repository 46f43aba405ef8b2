"""Segment scans: load a network once, then bring every scan to its grid and the mask back."""

import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import torch
from nibabel.spatialimages import SpatialImage
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from fheat.data.appearance import Looks, Unusual, unusual_text
from fheat.data.plausible import Allowance, check_plausible, oddities
from fheat.data.preprocessing import PreparedScan, Preprocessing
from fheat.gates.retire import retire, retire_in_place
from fheat.inference.ahead import forget_ahead, wait_ahead, was_opening
from fheat.inference.images import as_volume, check_numbers
from fheat.inference.ledger import model_sha256
from fheat.inference.memory import MemoryBound, activation_bytes, memory_bound, peak_bytes, resident_bytes
from fheat.inference.one_logit import one_logit
from fheat.inference.postprocessing import Prediction, Restorer, keep_largest
from fheat.inference.replay import Precision
from fheat.inference.runtimes import FASTEST, CompiledRuntime, RuntimeName, choose_runtime
from fheat.inference.sliding import Activation, SlidingWindow
from fheat.inference.uncertainty import UncertaintyKind, groups_of, measure_of
from fheat.inference.windows import Weights, Windows
from fheat.io.volume import Volume
from fheat.models.card import Card
from fheat.models.ensemble import load_ensemble, sources_of
from fheat.networks.registry import NetworkSpec
from fheat.system.machine import usable_device as usable_device
from fheat.system.pace import Pace
from fheat.system.progress import Progress

if TYPE_CHECKING:
    from typing import Unpack

    from fheat.inference.folder import FolderOptions
    from fheat.inference.record import PredictionRecord

MaskFormat = Literal["nifti", "seg", "rtstruct"]
"""Kind of file that masks are written to: NIfTI; for DICOM series also DICOM SEG, or contours as RT Structure Set."""


class UnusualScan(UserWarning):
    """A scan does not look like the scans that a network was trained on."""


class Predictor:
    """Segments scans of any size, spacing and orientation with one network.

    Args:
        model: a network, its model folder, the name of a zoo model or the folder of a run; or several folders and
            names, or a folder of runs, to be averaged. Gates that training closed are retired; no output changes.
        card: preprocessing, window and regions; by default the one the network was loaded with. What it leaves out
            stays as it is in the scan.
        windows: size and stride; by default the card's, else the network's patch with half of it as stride.
            `predictor.windows.fast()` are fewer of them, see `Windows`.
        weights: `constant` or `gaussian` weight of the voxels of a window.
        batch: number of windows per forward pass; by default 4, on a GPU 16.
        flips: average over the eight mirror images of each window.
        largest_component: keep only the largest 26-connected component of each class of the mask.
        probabilities: let `predict` return the probability of every class.
        uncertainty: let `predict` return how unsure the prediction is: the `entropy` of the probabilities, or the
            `disagreement` of flips and networks, which needs `flips` or several models.
        device: `cuda` where there is one, else `cpu`.
        runtime: on a CPU, `torch`, `onnx` or `openvino`; `auto` is the one measured to be fastest where it is
            installed and there are windows enough to be worth compiling, else torch. Outputs agree up to rounding.
        precision: on a GPU and with OpenVINO, `float32` or `bfloat16`. `auto` is float32 on a CPU, and on a GPU
            with many windows bfloat16 where that keeps the classes of the first ones with foreground.
        allow: `["implausible-spacing"]` takes scans with a geometry that no scanner gives, such as micrographs; they
            raise `BadInput` otherwise, see `fheat.data.plausible`.

    Several threads may use one predictor: scans are prepared at the same time, and their windows run scan after scan.
    The masks are those of calls in turn. `network` is to be read only: what runs is made of it once.

    >>> from fheat import Predictor, create_model
    >>> mask = Predictor(create_model("fheat_seg")).segment(np.zeros((120, 112, 80), np.float32))
    >>> mask.shape, mask.dtype
    ((120, 112, 80), dtype('uint8'))
    """

    def __init__(
        self,
        model: nn.Module | str | Path | Sequence[str | Path],
        *,
        card: Card | None = None,
        windows: Windows | None = None,
        weights: Weights = "constant",
        batch: int | None = None,
        flips: bool = False,
        largest_component: bool = False,
        probabilities: bool = False,
        uncertainty: UncertaintyKind | None = None,
        device: str | torch.device | None = None,
        runtime: RuntimeName = "auto",
        precision: Precision = "auto",
        allow: Collection[Allowance] = (),
    ) -> None:
        self.sources = sources_of(model)
        network = retire(model) if isinstance(model, nn.Module) else retire_in_place(load_ensemble(self.sources))
        own = getattr(network, "card", None)
        self.card = card or (own if isinstance(own, Card) else Card())
        spec = getattr(network, "spec", None)
        self.spec = spec if isinstance(spec, NetworkSpec) else None
        self.device = usable_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        channels = None if self.spec is None else self.spec.out_channels
        if self.card.regions and channels not in (None, len(self.card.regions)):
            raise ValueError(f"the card has {len(self.card.regions)} regions and the network {channels} channels")
        self.network = network.to(self.device, torch.float32).eval()  # whatever it is stored in
        self._groups = groups_of(self.network, uncertainty, flips=flips)
        batch = (16 if self.device.type == "cuda" else 4) if batch is None else batch
        two_classes = self.device.type == "cpu" and uncertainty != "disagreement" and not self.card.regions
        single = one_logit(self.network) if two_classes else None
        self._one_logit = single is not None
        self._run = choose_runtime(
            single or self.network,
            runtime,
            self.device,
            precision,
            batch=batch,
            regions=bool(self.card.regions),
            groups=self._groups,
        )
        self.windows = windows or self._windows()
        self.wanted_runtime, self.wanted_precision = runtime, precision
        self.weights, self.flips, self.largest_component = weights, flips, largest_component
        self.probabilities, self.uncertainty, self.batch, self.allow = probabilities, uncertainty, batch, tuple(allow)
        self._trials: dict[tuple[str, tuple[int, ...]], tuple[int, int]] = {}
        if isinstance(self._run, CompiledRuntime) and self._run.compiler == FASTEST:
            wait_ahead()  # what it takes counts as program
        else:
            forget_ahead()
        self._program, self._begun = resident_bytes(), peak_bytes() if was_opening() else 0
        self._pace, self._lock = Pace() if self.device.type == "cpu" else None, RLock()
        self.sliding(None)

    @overload
    def segment(
        self, image: Volume | SpatialImage | str | Path, *, progress: Progress | None = None, check: bool = True
    ) -> Volume: ...
    @overload
    def segment(
        self,
        image: NDArray[Any] | Tensor,
        *,
        affine: ArrayLike,
        progress: Progress | None = None,
        check: bool = True,
    ) -> Volume: ...
    @overload
    def segment(
        self, image: NDArray[Any] | Tensor, *, progress: Progress | None = None, check: bool = True
    ) -> NDArray[np.uint8]: ...
    def segment(
        self,
        image: Volume | SpatialImage | str | Path | NDArray[Any] | Tensor,
        *,
        affine: ArrayLike | None = None,
        progress: Progress | None = None,
        check: bool = True,
    ) -> Volume | NDArray[np.uint8]:
        """Return the label of every voxel, in the place of the scan.

        Args:
            image: a path to a NIfTI or NRRD file or to the folder of a DICOM series; a `Volume`; a nibabel image; or an
                array (X, Y, Z) or (X, Y, Z, C).
            affine: of an array, (4, 4), from voxel indices to millimetres (RAS+). Without one the array must already
                have the spacing and orientation of the network.
            progress: a function called after each forward pass with the number of windows done and their total.
            check: give the warning `UnusualScan` where the scan does not look like those the network was trained on.

        An array without affine gives an array, anything else a `Volume` with the affine of the scan; uint8 either way.
        `Volume.save` writes it.
        """
        mask = self._predict(image, affine, progress, check=check).mask
        if affine is None and not isinstance(image, Volume | SpatialImage | str | Path):
            labels: NDArray[np.uint8] = mask.data
            return labels
        return mask

    def predict(
        self,
        image: Volume | SpatialImage | str | Path | NDArray[Any] | Tensor,
        *,
        affine: ArrayLike | None = None,
        progress: Progress | None = None,
        check: bool = True,
    ) -> Prediction:
        """Return the mask with the probabilities and the uncertainty that this predictor was made for.

        The arguments are those of `segment`, and so is the mask, bit for bit. All are volumes in the place of the scan;
        those of an array without affine have the spacing of the network. Probabilities have a last axis with one
        channel per class, the background first, or per region. They are those before `largest_component`.
        """
        return self._predict(image, affine, progress, check=check)

    def segment_folder(
        self, source: str | Path, target: str | Path, **options: "Unpack[FolderOptions]"
    ) -> "PredictionRecord":
        """Segment every scan of a folder, a file or a dataset; see `fheat.inference.folder.predict_folder`."""
        from fheat.inference.folder import predict_folder  # which segments with this class

        return predict_folder(self, source, target, **options)

    @property
    def classes(self) -> dict[str, tuple[int, ...]]:
        """Name of each class or region and the label values that belong to it, without the background."""
        return self.card.class_values(None if self.spec is None else self.spec.out_channels)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the label values 1, 2, ...; a region's own value is what its inner regions leave of it."""
        return self.card.label_names(None if self.spec is None else self.spec.out_channels)

    @cached_property
    def model_sha256(self) -> str:
        """Hash of all that the model adds to a mask, known of every network; see `fheat.inference.ledger`."""
        return model_sha256(self.network, self.card)

    @property
    def runtime(self) -> str:
        """Name of the runtime of the next window: `torch`, `onnx` or `openvino`."""
        return self._run.name

    @property
    def precision(self) -> str:
        """Precision of the next window: `float32` or `bfloat16`; `auto` on a GPU with many windows to come."""
        return self._run.precision

    @property
    def activation(self) -> Activation:
        """Name of the function that turns the logits of `network` into probabilities."""
        return "sigmoid" if self.card.regions else "softmax"

    def check_plausible(self, volume: Volume, name: str | Path = "the scan") -> None:
        """Raise `BadInput` with this name for a geometry that no scanner gives, unless it is allowed."""
        if "implausible-spacing" not in self.allow:
            check_plausible(name, self.preprocessing.scan(volume), self.card.appearance)

    def memory(self, volume: Volume | PreparedScan, *, to_come: int = 0) -> MemoryBound:
        """Return a bound on the memory that `segment` holds, without segmenting the volume.

        `to_come` is the number of scans that are known to come after it: it may then pay to compile the network now.
        """
        scan, sliding = self._prepared(volume), self.sliding(None)
        with self._lock:
            for _ in range(2):  # the windows of a trial count as done, after which it may pay to compile
                self._expect(scan, to_come)
                channels, activations = self._trial(scan.channels)
            classes = 2 if self._one_logit else channels
            program = self._program + self._run.kernel_bytes
        bound = memory_bound(
            sliding,
            scan,
            scan.stored.nbytes,
            program=program,
            classes=classes,
            activations=activations,
            maps=self.probabilities * classes // (1 + sliding.member_count) + (self.uncertainty is not None),
            components=self.largest_component,
            device=self.device,
        )
        return replace(bound, begun=self._begun)

    def unusual(self, volume: Volume | PreparedScan) -> list[Unusual]:
        """Return in what a volume differs from the scans the network was trained on, the greatest difference first.

        Where the card does not say what they looked like, it has only what is odd about any scan: the same value
        everywhere, or a microscopic size.
        """
        scan = self._prepared(volume)
        known, odd = self.card.appearance, oddities(scan)
        named = {one.quantity for one in odd}
        unlike = known.unusual(Looks.of(scan)) if known.ranges else []
        return odd + [one for one in unlike if one.quantity not in named]

    @property
    def preprocessing(self) -> Preprocessing:
        """How a stored scan becomes the network's input."""
        return self.card.preprocessing

    def scan(self, volume: Volume, preprocessing: Preprocessing | None = None) -> PreparedScan:
        """Return the volume as the network sees it."""
        check_numbers(volume)
        scan = (preprocessing or self.preprocessing).scan(volume)
        if self.spec is not None and scan.channels != self.spec.in_channels:
            raise ValueError(f"the image has {scan.channels} channels and the network takes {self.spec.in_channels}")
        return scan

    def sliding(self, progress: Progress | None) -> SlidingWindow:
        """Return the sliding window that `segment` runs."""
        return SlidingWindow(
            self._run,
            self.windows,
            weights=self.weights,
            activation="difference" if self._one_logit else self.activation,
            batch=self.batch,
            flips=self.flips,
            groups=self._groups,
            members=self.uncertainty == "disagreement",
            each=self._run.each,
            progress=progress,
            pace=self._pace if self.runtime == "torch" else None,
        )

    def _prepared(self, volume: Volume | PreparedScan) -> PreparedScan:
        return volume if isinstance(volume, PreparedScan) else self.scan(volume)

    def _predict(
        self,
        image: Volume | SpatialImage | str | Path | NDArray[Any] | Tensor,
        affine: ArrayLike | None,
        progress: Progress | None,
        *,
        check: bool,
    ) -> Prediction:
        states_its_place = isinstance(image, Volume | SpatialImage | str | Path)
        if states_its_place and affine is not None:
            raise ValueError("affine is for arrays: this image says itself where it lies")
        on_the_grid = not states_its_place and affine is None
        volume = as_volume(image, np.diag([*(self.preprocessing.spacing or (1, 1, 1)), 1]) if on_the_grid else affine)
        name = str(image) if isinstance(image, str | Path) else "the scan"
        if not on_the_grid:
            self.check_plausible(volume, name)
        scan = self.scan(volume, Preprocessing(intensity=self.preprocessing.intensity) if on_the_grid else None)
        if check and (found := self.unusual(scan)):
            warnings.warn(unusual_text(name, found), UnusualScan, stacklevel=3)
        prediction = self.run_windows(volume, scan, progress)
        self.finish(prediction)
        return prediction

    def run_windows(
        self, volume: Volume, scan: PreparedScan, progress: Progress | None = None, *, to_come: int = 0
    ) -> Prediction:
        """Run the network over a volume that `scan` has prepared, and return its mask as it is before `finish`.

        `to_come` is that of `memory`.
        """
        with self._lock:  # a runtime may use the memory of its output again with the next window
            self._expect(scan, to_come)
            self._run.prepare((scan.channels, *self.windows.size))
            sliding = self.sliding(progress)
            axis = sliding.axis(scan.shape)
            restorer = Restorer(
                volume,
                scan,
                axis,
                self.card.regions,
                members=sliding.member_count,
                probabilities=self.probabilities,
                measure=measure_of(self.uncertainty, self.card.regions),
            )

            def planes(start: int, stop: int) -> Tensor:
                return scan.planes(axis, start, stop, self.device)

            for part in sliding.stream(planes, scan.shape, scan.channels, scan.source_shape):
                restorer.add(*part)
            del part  # a view that would keep the slab while components are found
            precision = self.precision.replace("auto", "float32")  # where no window had foreground
            return replace(restorer.prediction, runtime=self.runtime, precision=precision)

    def finish(self, prediction: Prediction) -> None:
        """Change the mask as this predictor was asked to: keep the largest components. It needs no network."""
        if self.largest_component:
            keep_largest(prediction.mask.data, self.card.regions)

    def _windows(self) -> Windows:
        if self.card.window is not None:
            return Windows(self.card.window.size, self.card.window.stride)
        if self.spec is None or len(self.spec.patch_size) != 3:
            raise ValueError("neither the network nor its card states a window: pass windows=Windows(size, stride)")
        x, y, z = self.spec.patch_size
        return Windows((x, y, z), (max(x // 2, 1), max(y // 2, 1), max(z // 2, 1)))

    def _expect(self, scan: PreparedScan, to_come: int) -> None:
        """Tell the runtime how many voxels of windows come: those of the scan, and as many of each after it."""
        count = self.sliding(None).count(scan.shape) * (1 + to_come) * (8 if self.flips else 1)
        size, before = self.windows.size, resident_bytes()
        self._run.expect(count * prod(size), (scan.channels, *size))
        self._program += max(resident_bytes() - before, 0)  # libraries that load where a small window is tried

    def _trial(self, channels: int) -> tuple[int, int]:
        """Return the number of output channels and of bytes of one forward pass of a full batch, by rehearsing it."""
        shape = (self.batch, channels, *self.windows.size)
        if (self.runtime, shape) not in self._trials:
            before = resident_bytes()
            self._run.prepare(shape[1:])  # what it holds from now on counts as program
            rehearsal = replace(self.sliding(None), network=self._run.rehearse)
            found = activation_bytes(rehearsal.forward, shape, self.device)
            self._trials[self.runtime, shape] = found
            self._program += max(resident_bytes() - before, 0)  # libraries that load with the first convolution
        return self._trials[self.runtime, shape]
