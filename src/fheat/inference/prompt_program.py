"""A segmentation program of somebody else that takes an image and a box: loaded from a file, called slice by slice.

The file is an ONNX model or a program of `torch.export`, both without any source code of the model. A small JSON file,
the adapter, names its inputs and says what it expects.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, model_validator
from torch import Tensor

from fheat.system.errors import BadInput, first_line
from fheat.system.files import TEXT_LIMIT, WEIGHTS_LIMIT, read_capped
from fheat.system.settings import Section, reason_of
from fheat.system.trust import is_trusting

Percentage = Annotated[float, Field(ge=0, le=100)]
Call = Callable[[Mapping[str, NDArray[Any]]], NDArray[Any]]
"""Maps named inputs to the output that holds the mask."""
LONGEST_SIDE: Final = 4096
"""Largest number of rows or columns of an image."""


class Adapter(Section):
    """Inputs and output of a program; the defaults are those of MedSAM with its 1024 x 1024 images."""

    image: str = "image"
    """Name of the input for the image, float32 (1, channels, rows, columns)."""
    box: str | None = "box"
    """Name of the input for the box, float32 x0, y0, x1, y1 in pixels of the image, x along its columns; none for a
    program that takes no box and finds its object by itself."""
    output: str | None = None
    """Output with the logits of the mask, (..., rows, columns) of any size: its name or, for a tuple of torch.export,
    its place from 0; the first one if none."""
    size: tuple[Annotated[int, Field(ge=1, le=LONGEST_SIDE)], Annotated[int, Field(ge=1, le=LONGEST_SIDE)]] = (
        1024,
        1024,
    )
    """Rows and columns of the image."""
    channels: PositiveInt = 3
    """Channels of the image, into each of which the slice is copied."""
    resize: Literal["stretch", "pad"] = "stretch"
    """Stretch a slice to the size, or keep its proportions and fill up with zeros to the right and below."""
    window: tuple[float, float] | None = None
    """Intensities that become 0 and `scale`, such as -160, 240 for the abdomen in CT; by percentiles if none."""
    percentiles: tuple[Percentage, Percentage] = (0.5, 99.5)
    """Percentiles, over the voxels of the scan that are not 0, that become 0 and `scale`."""
    scale: PositiveFloat = 1.0
    """Highest intensity of the image, 1 or 255."""
    mean: tuple[float, ...] = (0.0,)
    """Subtracted from the scaled intensities, one number or one per channel."""
    std: tuple[PositiveFloat, ...] = (1.0,)
    """Divisor of the intensities after `mean` is subtracted, one number or one per channel."""
    box_shape: tuple[PositiveInt, ...] = (1, 4)
    """Shape of the input for the box: 1, 4 or 1, 1, 4 or 1, 2, 2."""
    threshold: float = 0.0
    """Logit above which a voxel belongs to the object."""
    extra: dict[str, float | list[float]] = Field(default_factory=dict)
    """Further inputs by name, float32, with the values that they always have."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if math.prod(self.box_shape) != 4:
            raise ValueError(f"box_shape: {self.box_shape} does not hold four numbers")
        for name, low_high in (("window", self.window), ("percentiles", self.percentiles)):
            if low_high is not None and not low_high[0] < low_high[1]:
                raise ValueError(f"{name}: {low_high} is empty")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.channels):
                raise ValueError(f"{name}: has {len(values)} numbers for {self.channels} channels")
        return self

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read an adapter from a JSON file, or raise `BadInput`."""
        try:
            return cls.model_validate_json(read_capped(path, TEXT_LIMIT))
        except FileNotFoundError:
            raise BadInput(path, "does not exist", "check the path") from None
        except ValidationError as error:
            fields = ", ".join(cls.model_fields)
            raise BadInput(path, f"field {reason_of(error, cls.model_fields)}", f"an adapter has {fields}") from None

    def limits(self, data: NDArray[Any]) -> tuple[float, float]:
        """Return the intensities of a scan that become 0 and `scale`."""
        if self.window is not None:
            return self.window
        values = data[data != 0]
        low, high = np.percentile(values if values.size else data, self.percentiles)
        return float(low), float(high)

    def prepare(self, plane: NDArray[Any], limits: tuple[float, float]) -> NDArray[np.float32]:
        """Return the image of a slice (rows, columns): (1, channels, *size)."""
        low, high = limits
        values = torch.from_numpy(np.ascontiguousarray(plane, dtype=np.float32))
        values = ((values - low) / max(high - low, 1e-12)).clamp(0, 1) * self.scale
        rows, columns = self.filled(plane.shape)
        image = F.interpolate(values[None, None], size=(rows, columns), mode="bilinear", align_corners=False)
        mean, std = (torch.tensor(each).reshape(1, -1, 1, 1) for each in (self.mean, self.std))
        image = ((image - mean) / std).expand(1, self.channels, rows, columns)
        padded = F.pad(image, (0, self.size[1] - columns, 0, self.size[0] - rows))
        return np.ascontiguousarray(padded.numpy())

    def filled(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return the rows and columns of the image that a slice of this shape fills."""
        if self.resize == "stretch":
            return self.size
        factor = min(self.size[0] / shape[0], self.size[1] / shape[1])
        return max(1, round(shape[0] * factor)), max(1, round(shape[1] * factor))

    def undo(self, logits: NDArray[Any], shape: tuple[int, ...]) -> Tensor:
        """Return logits, (..., h, w), on the rows and columns of a slice of this shape."""
        maps = torch.from_numpy(np.ascontiguousarray(logits, dtype=np.float32)).reshape(1, 1, *logits.shape[-2:])
        whole = F.interpolate(maps, size=self.size, mode="bilinear", align_corners=False)
        rows, columns = self.filled(shape)
        return F.interpolate(whole[..., :rows, :columns], size=shape, mode="bilinear", align_corners=False)[0, 0]


class PromptProgram:
    """A program in a file, with its adapter.

    A `.pt2` file may run code of its maker when it is opened, so it is refused outside `fheat.io.trusting()`. An ONNX
    file consists of known operations only.
    """

    def __init__(self, path: str | Path, adapter: Adapter | None = None) -> None:
        self.path, self.adapter = Path(path), adapter or Adapter()
        if self.path.suffix not in _LOADERS:
            raise BadInput(path, "is no program", f"give a file that ends in {' or '.join(_LOADERS)}")
        try:
            content = read_capped(self.path, WEIGHTS_LIMIT)
        except FileNotFoundError:
            raise BadInput(path, "does not exist", "check the path") from None
        self.sha256 = hashlib.sha256(content).hexdigest()
        names, self._call = _LOADERS[self.path.suffix](self.path, content, self.adapter.output)
        given = [self.adapter.image, *([self.adapter.box] if self.adapter.box else []), *self.adapter.extra]
        if sorted(given) != sorted(names):
            reason = f"takes the inputs {', '.join(names)}, and the adapter gives {', '.join(given)}"
            raise BadInput(path, reason, "write an adapter that names them, see docs/how-to/prompt.md")

    def logits(self, image: NDArray[np.float32], box: NDArray[np.float32] | None) -> NDArray[Any]:
        """Return the logits of one mask, (h, w), for an image (1, channels, rows, columns) and x0, y0, x1, y1."""
        adapter = self.adapter
        inputs: dict[str, NDArray[Any]] = {adapter.image: image}
        if adapter.box is not None:
            assert box is not None
            inputs[adapter.box] = box.reshape(adapter.box_shape)
        inputs |= {name: np.asarray(value, dtype=np.float32) for name, value in adapter.extra.items()}
        try:
            result = self._call(inputs)
        except Exception as error:  # whatever a program of somebody else raises
            reason = first_line(error)[:200]
            raise BadInput(self.path, f"cannot be run ({reason})", "check size and shapes in the adapter") from None
        if result.ndim < 2 or math.prod(result.shape[:-2]) != 1:
            raise BadInput(
                self.path, f"returns shape {result.shape}, not one mask", "name another output in the adapter"
            )
        if not np.isfinite(result).all():
            raise BadInput(self.path, "returns logits that are not finite", "check the intensities in the adapter")
        return result.reshape(result.shape[-2:])


def _load_onnx(path: Path, content: bytes, output: str | None) -> tuple[list[str], Call]:
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise BadInput(path, f"needs the package {error.name}", 'pip install "fheat[export]"') from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4
    try:
        elsewhere = next(_other_files(onnx.load_model_from_string(content)), None)
        if elsewhere is not None:
            reason = f"keeps weights in another file, {elsewhere[:100]}, which its sha256 does not cover"
            raise BadInput(path, reason, "export it in one file: torch.onnx.export(..., external_data=False)")
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except BadInput:
        raise
    except Exception as error:  # onnxruntime has many kinds of errors and no common one
        reason = first_line(error)[:200]
        raise BadInput(path, f"is no ONNX model that can be run ({reason})", "export it again, in one file") from None
    outputs = [one.name for one in session.get_outputs()]
    if output is not None and output not in outputs:
        raise BadInput(path, f"has no output {output!r}, only {', '.join(outputs)}", "name one in the adapter")
    wanted = output or outputs[0]
    return [one.name for one in session.get_inputs()], lambda inputs: np.asarray(session.run([wanted], dict(inputs))[0])


def _other_files(message: Any) -> Iterator[str]:
    """Return the names of the files in which an ONNX model, or a part of it, keeps its values.

    Any tensor may do so: weights, constants of a node, those in the branches of an `If`, or in a function.
    """
    if any(field.name == "data_location" and value for field, value in message.ListFields()):  # 0 is this file
        yield next((entry.value for entry in message.external_data if entry.key == "location"), "without a name")
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if isinstance(value, Sequence) else [value]:
                yield from _other_files(part)


def _load_exported(path: Path, content: bytes, output: str | None) -> tuple[list[str], Call]:
    if not is_trusting():
        reason = "is a program of torch.export, which may run code of its maker when it is opened"
        raise BadInput(path, reason, "give --trust if it is your own, or an ONNX file")
    try:
        program = torch.export.load(BytesIO(content))
        module = program.module()
    except Exception as error:  # a file that is no program fails anywhere
        reason = first_line(error)[:200]
        raise BadInput(path, f"is no program of torch.export ({reason})", "export it again") from None
    names = [str(name) for name in program.graph_signature.user_inputs]

    def call(inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        with torch.no_grad():
            result = module(*(torch.from_numpy(inputs[name]) for name in names))
        if isinstance(result, dict):
            result = result[output or next(iter(result))]
        elif isinstance(result, list | tuple):
            result = result[int(output or 0)]
        return np.asarray(result)

    return names, call


_LOADERS: Final = {".onnx": _load_onnx, ".pt2": _load_exported}
