"""Networks as graphs in one file: ONNX, OpenVINO and pt2, all made of the same compilable form of the network."""

import tempfile
import warnings
from collections.abc import Mapping
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim

from fheat.export.recipe import INPUT, KEY, OUTPUT, Recipe
from fheat.inference.compilers import Forward, onnx_model, openvino_model
from fheat.system.files import WEIGHTS_LIMIT, read_capped
from fheat.system.imports import import_openvino, openvino_core

MOST_STEPS = 64
"""A graph for any size is made for axes of up to so many steps."""
WORTH_SHRINKING = 256
"""Number of values of a constant from which on it is worth a node of its own to store it as one value and a shape."""

Files = Mapping[str, bytes]
"""Content of the files of an export by how their names end, the one that a user names first."""


class GraphFormat(Protocol):
    """A kind of file that holds a graph."""

    suffixes: tuple[str, ...]
    """How the names of the files end, the one that a user names first."""
    packages: tuple[str, ...]
    """Packages that it needs."""

    def make(self, network: nn.Module, recipe: Recipe) -> Files:
        """Return the files of a network in its compilable form; its sizes are those of the recipe."""

    def load(self, files: Files) -> Forward:
        """Return what runs these files, as a user would."""


class Onnx:
    """One file; the recipe is in `metadata_props`."""

    suffixes: tuple[str, ...] = (".onnx",)
    packages: tuple[str, ...] = ("onnx", "onnxscript", "onnxruntime")

    def make(self, network: nn.Module, recipe: Recipe) -> Files:
        """Export, drop where in the source each node comes from, and add the recipe."""
        model = onnx_model(
            network,
            _example(recipe),
            dynamic_shapes=(_dynamic_shapes(recipe),),
            input_names=[INPUT],
            output_names=[OUTPUT],
        )
        graph = model.graph
        _shrink(graph)
        for described in (
            *graph.node,
            *graph.input,
            *graph.output,
            *graph.value_info,
            *graph.initializer,
            graph,
            model,
        ):
            del described.metadata_props[:]
            described.doc_string = ""
        model.metadata_props.add(key=KEY, value=recipe.text())
        return {".onnx": model.SerializeToString(deterministic=True)}

    def load(self, files: Files) -> Forward:
        """Return an ONNX Runtime session."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(files[".onnx"], options, providers=["CPUExecutionProvider"])
        return lambda x: torch.from_numpy(session.run([OUTPUT], {INPUT: x.numpy()})[0])


class OpenVino:
    """An .xml file with the graph and the recipe in `rt_info`, and a .bin file with weights in float32."""

    suffixes: tuple[str, ...] = (".xml", ".bin")
    packages: tuple[str, ...] = ("openvino",)

    def make(self, network: nn.Module, recipe: Recipe) -> Files:
        """Trace, convert, name input and output, and add the recipe."""
        sizes = recipe.input
        grid = sizes.size if sizes.step is None else (-1, -1, -1)
        model = openvino_model(network, _example(recipe), (-1, sizes.channels, *grid))
        model.inputs[0].get_tensor().set_names({INPUT})
        model.outputs[0].get_tensor().set_names({OUTPUT})
        model.set_rt_info(recipe.text(), KEY)
        with tempfile.TemporaryDirectory(prefix="fheat-") as folder:  # it writes to files only
            path = Path(folder) / "model.xml"
            import_openvino().save_model(model, path, compress_to_fp16=False)
            return {suffix: read_capped(path.with_suffix(suffix), WEIGHTS_LIMIT) for suffix in self.suffixes}

    def load(self, files: Files) -> Forward:
        """Return the files compiled for this CPU."""
        core = openvino_core()
        model = core.read_model(files[".xml"], files[".bin"])
        compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return lambda x: torch.from_numpy(compiled({INPUT: x.numpy()})[OUTPUT].copy())


class Pt2:
    """torch's own graph file, which `torch.export.load` reads; the recipe is the extra file `fheat_recipe.json`."""

    suffixes: tuple[str, ...] = (".pt2",)
    packages: tuple[str, ...] = ()

    def make(self, network: nn.Module, recipe: Recipe) -> Files:
        """Export, drop the example input and where in the source each node comes from, and add the recipe."""
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.export.export(network, (_example(recipe),), dynamic_shapes=(_dynamic_shapes(recipe),))
            for node in program.graph.nodes:
                for name in ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node"):
                    node.meta.pop(name, None)
            program.example_inputs = None
            file = BytesIO()
            torch.export.save(program, file, extra_files={f"{KEY}.json": recipe.text()})
        return {".pt2": file.getvalue()}

    def load(self, files: Files) -> Forward:
        """Return the graph as a module."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return cast(Forward, torch.export.load(BytesIO(files[".pt2"])).module())


GRAPHS: Mapping[str, GraphFormat] = {"onnx": Onnx(), "openvino": OpenVino(), "pt2": Pt2()}


def _shrink(graph: Any) -> None:
    """Write large constants with one value everywhere, such as the ones of every norm, as that value and a shape."""
    from onnx import helper, numpy_helper

    made: dict[tuple[Any, ...], str] = {}
    renamed: dict[str, str] = {}
    for constant in [one for one in graph.initializer if prod(one.dims) >= WORTH_SHRINKING]:
        values = numpy_helper.to_array(constant)
        if (values != values.flat[0]).any():
            continue
        kind = (values.dtype, values.shape, values.flat[0].item())
        renamed[constant.name] = made.setdefault(kind, constant.name)
        graph.initializer.remove(constant)
        if made[kind] == constant.name:
            shape = numpy_helper.from_array(np.array(values.shape, np.int64), f"{constant.name}_shape")
            value = numpy_helper.from_array(values.reshape(-1)[:1])
            graph.initializer.append(shape)
            graph.node.insert(0, helper.make_node("ConstantOfShape", [shape.name], [constant.name], value=value))
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]


def _example(recipe: Recipe) -> Tensor:
    """Return two windows of noise; for graphs of any size a step longer, as a network may treat its own patch apart."""
    sizes = recipe.input
    grid = [length + (sizes.step or 0) for length in sizes.size]
    return torch.randn(2, sizes.channels, *grid, generator=torch.Generator().manual_seed(0))


def _dynamic_shapes(recipe: Recipe) -> dict[int, Any]:
    """Return the axes of the input that may have other lengths: the batch and, with a step, the grid.

    The lengths of an axis leave the same remainder as the window's, so that the network pads each of its levels alike.
    """
    axes: dict[int, Any] = {0: Dim("batch")}
    step = recipe.input.step
    if step is not None:
        for axis, length in enumerate(recipe.input.size):
            steps = step * Dim("xyz"[axis], min=max(length // step, 1), max=MOST_STEPS)
            axes[axis + 2] = steps + length % step if length % step else steps
    return axes
