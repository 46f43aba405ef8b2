"""Fine-tuning: a network takes over the weights of a trained model, as far as both have the same tensors.

What depends on the number of classes, of channels or on the patch need not be the same: the head keeps its fresh
weights, a stem for one channel is shared by several, and position embeddings are interpolated.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fheat.gates.hook import placed_by
from fheat.models.folder import WEIGHTS, load, read_manifest
from fheat.models.zoo import MANIFEST, find_folder
from fheat.networks.registry import NetworkSpec, spec_of
from fheat.ops.heat import FractionalHeat
from fheat.system.errors import BadInput

_SIZES = ("in_channels", "out_channels", "patch_size")
"""Arguments of a network in which a model and the network that starts from it may differ."""
FAR: Final = 1.25
"""Factor between the voxel sizes of a model and of a run from which on they are told to differ."""


@dataclass(frozen=True)
class Start:
    """Record of the model that a network was started from; a run keeps it in its checkpoints and its model cards."""

    model: str
    """Name or folder that was given."""
    sha256: str
    """Hash of the weights."""
    fresh: Sequence[str] = ()
    """Tensors that kept their fresh weights."""
    changed: Mapping[str, str] = field(default_factory=dict)
    """Tensors and gates that took over something else than their own values, with what was done."""
    spacing: Sequence[float] | None = None
    """Voxel size in millimetres that the model was trained on; None where its card does not state it."""

    def facts(self) -> dict[str, Any]:
        """Return plain values, from which `Start(**facts)` makes the same."""
        return asdict(self)

    def note(self) -> str:
        """Return in one line what was not taken over as it is; an empty text where everything was."""
        fresh = [f"{', '.join(self.fresh)} begin with fresh weights"] if self.fresh else []
        said = [*fresh, *(f"{name} {how}" for name, how in self.changed.items())]
        return f"from {self.model}: {'; '.join(said)}" if said else ""

    def spacing_note(self, spacing: Sequence[float] | None) -> str:
        """Return in one line that the voxels of a run are far from those of the model, or an empty text.

        The lengths are compared in order of size, since the axes of both may be turned.
        """
        if self.spacing is None or spacing is None:
            return ""
        pairs = zip(sorted(self.spacing), sorted(spacing), strict=True)
        if max(max(old / new, new / old) for old, new in pairs) < FAR:
            return ""
        theirs, ours = (" x ".join(f"{length:.3g}" for length in lengths) for lengths in (self.spacing, spacing))
        reason = f"was trained on voxels of {theirs} mm, and those of this run are {ours} mm"
        return f"from {self.model}: {reason}; --spacing {theirs.replace(' x', '')} trains on those of the model"


def start_folder(name: str) -> Path:
    """Return the model folder that a zoo name, a model folder or a run folder means, or raise `BadInput`.

    A run folder means its best network, as `find_folder` says.
    """
    folder = find_folder(name)
    if not (folder / MANIFEST).is_file():
        reason = "is no model folder, and no run that has saved a network in best/ or final/"
        raise BadInput(folder, reason, "give a folder written by fheat.save or fheat train, or a model of the zoo")
    return folder


def network_of_start(name: str) -> dict[str, Any]:
    """Return the network of a model as the settings of a run have it: its name, its options, and the modules behind
    which gates were put."""
    manifest = read_manifest(start_folder(name))
    placed = {"instrument": [gate.site for gate in manifest.instrumented]} if manifest.instrumented else {}
    return {"name": manifest.network.name, **manifest.network.options, **placed}


def start_from(network: nn.Module, name: str) -> Start:
    """Load the weights of a model into a network, in place, or raise `BadInput` where they do not fit.

    The random state stays what it was.
    """
    folder = start_folder(name)
    with torch.random.fork_rng(devices=[]):
        model = load(folder)
        try:
            fresh, changed = take_over(network, model)
        except ValueError as error:
            remedy = "leave out the name and the options of the network, or start from another model"
            raise BadInput(name, str(error), remedy) from None
    manifest = read_manifest(folder)
    spacing = manifest.card.preprocessing.spacing
    return Start(name, manifest.sha256[WEIGHTS], fresh, changed, None if spacing is None else list(spacing))


@torch.no_grad()
def take_over(network: nn.Module, model: nn.Module) -> tuple[list[str], dict[str, str]]:
    """Give a network the tensors of a model, in place; return the names of those that stay fresh, and of those that
    are changed with what was done.

    Raises `ValueError` where a tensor differs for another reason than the numbers of classes and channels or the patch.
    """
    own, stored = network.state_dict(), model.state_dict()
    fresh, changed = _take_over_gates(network, model)
    of_gates = {f"{path}.{name}" for path, pair in _gates(network, model) for gate in pair for name in gate._parameters}
    of_gates |= set(fresh)
    for name in [*own, *stored]:
        if (name in own) != (name in stored) and name not in of_gates:
            lacking = "the model" if name in own else "the network of the run"
            raise ValueError(f"does not fit {spec_of(network).name}: {lacking} has no {name}")
    shapes = _shapes_by_size(spec_of(network), spec_of(model))
    for name in filter(stored.__contains__, own):
        new, old = own[name], stored[name]
        if new.shape == old.shape:
            new.copy_(old)
            continue
        sizes = [size for size, others in shapes.items() if others[name] != old.shape]
        if not sizes:
            raise ValueError(
                f"does not fit {spec_of(network).name}: {name} is {tuple(old.shape)} there and {tuple(new.shape)} here"
            )
        if sizes == ["in_channels"] and _shared(new, old):
            changed[name] = f"has the weights for one channel, shared by {spec_of(network).in_channels}"
        elif sizes == ["patch_size"] and _interpolated(new, old):
            grids = (" x ".join(map(str, some.shape[2:])) for some in (old, new))
            changed[name] = f"is interpolated from {' to '.join(grids)}"
        else:
            fresh.append(name)
    return fresh, changed


def _shapes_by_size(spec: NetworkSpec, other: NetworkSpec) -> dict[str, dict[str, torch.Size]]:
    """Return the shapes of all tensors of the other network if it had one size of the first, by that size."""
    differing = [size for size in _SIZES if getattr(spec, size) != getattr(other, size)]
    built = {size: replace(other, **{size: getattr(spec, size)}).build() for size in differing}
    return {size: {name: value.shape for name, value in one.state_dict().items()} for size, one in built.items()}


def _shared(new: Tensor, old: Tensor) -> bool:
    """Give every channel its share of the weights for one, so that the same image in all of them gives the same."""
    axes = [axis for axis in range(old.ndim) if old.shape[axis] != new.shape[axis]]
    if len(axes) != 1 or old.shape[axes[0]] != 1:
        return False
    new.copy_((old / new.shape[axes[0]]).expand_as(new))
    return True


def _interpolated(new: Tensor, old: Tensor) -> bool:
    """Resize values on a grid, (1, C, x, y, z), trilinearly, as networks do for inputs that are not their patch."""
    if old.ndim != 5 or old.shape[0] != 1 or old.shape[:2] != new.shape[:2]:  # a filter has no grid of voxels
        return False
    new.copy_(F.interpolate(old.float(), size=new.shape[2:], mode="trilinear"))
    return True


def _take_over_gates(network: nn.Module, model: nn.Module) -> tuple[list[str], dict[str, str]]:
    """Set the gates whose parameters only one of both has; return fresh parameters, and gates with what was done.

    A gate that was retired stays closed. A constant strength is taken over by a gate whose strength is constant too. A
    gate that was put into the network and that the model does not have begins as it is.
    """
    changed: dict[str, str] = {}
    both = _gates(network, model)
    fresh = _put_in_anew(network, {path for path, _ in both})
    for path, (gate, trained) in both:
        if placed_by(gate) != placed_by(trained):
            raise ValueError(f"does not fit {spec_of(network).name}: its gate at {path} sees other axes, or is another")
        if trained.retired and not gate.retired:
            with suppress(ValueError):  # a strength that is never 0 begins afresh
                gate.set_strength(0.0)
                changed[path] = "stays closed, as in the model"
                continue
        if gate.delta is None and trained.delta is None and not (gate.retired or trained.retired):
            gate.set_strength(trained.strength.item())
        fresh += [f"{path}.{name}" for name, _ in gate.named_parameters() if getattr(trained, name) is None]
    return fresh, changed


def _put_in_anew(network: nn.Module, known: set[str]) -> list[str]:
    """Return the names of the parameters of gates that were put into a network, at other paths than these."""
    gates = {path: gate for path, gate in network.named_modules() if isinstance(gate, FractionalHeat)}
    new = {path: gate for path, gate in gates.items() if placed_by(gate) is not None and path not in known}
    return [f"{path}.{name}" for path, gate in new.items() for name, _ in gate.named_parameters()]


def _gates(network: nn.Module, model: nn.Module) -> list[tuple[str, tuple[FractionalHeat, FractionalHeat]]]:
    """Return the gates that both have at the same path."""
    others = dict(model.named_modules())
    found = []
    for path, gate in network.named_modules():
        other = others.get(path)
        if isinstance(gate, FractionalHeat) and isinstance(other, FractionalHeat):
            found.append((path, (gate, other)))
    return found
