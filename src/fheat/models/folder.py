"""Model folders: a network and its card on disk, protected by checksums. Reading one never executes its content.

A folder has two files: `model.safetensors` with the weights and `model.json` with everything else. Weights can be
stored in float16, which halves the file; the network gets them back as float32.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Literal

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from fheat.gates.retire import remove_gate
from fheat.models.card import Card, Manifest, NetworkEntry
from fheat.models.placed import place_gates, placed_gates
from fheat.models.weights import GET_AGAIN, Budget, Claimed, read_header
from fheat.models.zoo import MANIFEST, find_folder
from fheat.networks.registry import NetworkSpec, spec_of
from fheat.ops.gates import gates_of, operators_of
from fheat.ops.mixing_block import branches_of
from fheat.ops.spectral_mixer import SpectralMixer
from fheat.system.errors import BadInput
from fheat.system.files import TEXT_LIMIT, WEIGHTS_LIMIT, open_regular, write_folder

FULL_BELOW = 256
"""Number of elements below which a tensor stays float32: gates, rational coefficients, biases and norms. They are 3 %
of FHEAT-Seg, and a gate must keep D, alpha and above all a closed D = 0 exactly."""
LARGEST_LOSS = 2**-10
"""Largest error of a tensor in float16 relative to its norm. Rounding alone stays below 2^-11; a larger error means
that values are outside the range of float16."""


def halve(model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state with all large parameters in float16; buffers, small parameters and vectors do not change.

    Raises `ValueError` that names the first tensor that is not float32 or does not fit float16.
    """
    halved = dict(state)
    for key, _ in model.named_parameters(remove_duplicate=False):
        value = state[key]
        if value.dtype != torch.float32:
            raise ValueError(f"key {key!r} is {value.dtype}: only float32 networks are stored as float16")
        if value.numel() < FULL_BELOW or value.ndim < 2:
            continue
        half = value.half()
        if not torch.isfinite(half).all():
            raise ValueError(f"key {key!r} holds {value.abs().max():.3g}, beyond float16: store it as it is")
        if (half.double() - value.double()).norm() > LARGEST_LOSS * value.double().norm():
            raise ValueError(f"key {key!r} holds numbers too small for float16: store it as it is")
        halved[key] = half
    return halved


def unhalve(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state with all float16 tensors as float32, which changes no value."""
    return {key: value.float() if value.dtype == torch.float16 else value for key, value in state.items()}


FORMAT_1_TOLERANCE = 0.001
"""Tolerance of the spacing with which prediction resampled for models of format 1, which state none."""
WEIGHTS = "model.safetensors"
BUILT_PER_STORED, BUILT_BESIDE = 4, 64 * 2**20
"""Bytes that the tensors of a network may take while it is built: so many per byte of its weights, which may be stored
at half their size, and so many more. A description of a larger network does not belong to its weights."""
_SAVE_AGAIN = "write the folder again with fheat.save"


def save(
    model: nn.Module,
    folder: str | Path,
    card: Card | None = None,
    *,
    overwrite: bool = False,
    dtype: Literal["float16"] | None = None,
) -> Path:
    """Write a network to a folder, completely or not at all.

    Args:
        model: a network built by `create_model`; retired gates stay retired, and gates of `fheat.instrument` stay.
        folder: folder to create; an existing model folder is replaced only with `overwrite`, any other folder never.
        card: classes, preprocessing, training facts and metrics; by default the card with which it was loaded.
        dtype: `float16` stores the weights of a float32 network at half their size, except gates and other small
            tensors; `load` returns float32. Weights that do not fit float16 are refused.
    """
    if dtype not in (None, "float16"):
        raise ValueError(f"dtype={dtype!r} is unknown: use 'float16', or None to store what the network has")
    model = getattr(model, "_orig_mod", model)  # the network inside a compiled one
    spec = spec_of(model)
    own = getattr(model, "card", None)
    card = card or (own if isinstance(own, Card) else Card())
    if card.classes and len(card.classes) != spec.out_channels:
        raise ValueError(f"card.classes has {len(card.classes)} names for {spec.out_channels} output channels")
    if card.regions and len(card.regions) != spec.out_channels:
        raise ValueError(f"card.regions has {len(card.regions)} values for {spec.out_channels} output channels")
    target = check_target(folder, overwrite=overwrite)
    gates = gates_of(model)
    for gate in gates.values():
        gate.check_parameters()
    mixers = {site: one for site, one in operators_of(model).items() if isinstance(one, SpectralMixer)}
    state = {key: value.detach().cpu().contiguous().clone() for key, value in model.state_dict().items()}
    broken = _first_not_finite(model, state)
    if broken is not None:
        raise ValueError(f"key {broken!r} holds NaN or infinity: training diverged, save an earlier model")
    weights = to_bytes(halve(model, state) if dtype == "float16" else state)
    manifest = Manifest(
        network=NetworkEntry(**asdict(spec)),
        instrumented=placed_gates(gates.values()),
        retired={site: gate.alpha.item() for site, gate in gates.items() if gate.retired}
        | {site: 0.0 for site, mixer in mixers.items() if mixer.retired}
        | {site: 0.0 for site, branch in branches_of(model).items() if not branch.present},
        frozen={site: gate.strength.item() for site, gate in gates.items() if gate.delta is None and not gate.retired},
        stored=dtype,
        card=card,
        sha256={WEIGHTS: _sha256(weights), MANIFEST: ""},
    )
    content = manifest.model_dump(mode="json", exclude=None if manifest.instrumented else {"instrumented"})
    content["sha256"][MANIFEST] = _sha256(_canonical(content))
    write_folder(target, {WEIGHTS: weights, MANIFEST: _canonical(content)})
    return Path(folder)


def check_target(folder: str | Path, *, overwrite: bool) -> Path:
    """Return the resolved path to which a model folder may be written, or raise `BadInput`; nothing is changed."""
    target = Path(folder).resolve()
    if target.exists():
        if not overwrite:
            raise BadInput(folder, "exists already", "choose another folder or pass overwrite=True")
        if not target.is_dir() or not (target / MANIFEST).is_file():
            raise BadInput(
                folder, f"is not a model folder (no {MANIFEST})", "choose another folder; nothing was touched"
            )
        foreign = sorted(path.name for path in target.iterdir() if path.name not in (WEIGHTS, MANIFEST))
        if foreign:
            raise BadInput(
                folder, f"holds {foreign[0]!r}, which is not part of a model", "move it; nothing was touched"
            )
    return target


def load(folder_or_zoo_name: str | Path) -> nn.Module:
    """Read a network from a model folder or from the zoo, in evaluation mode and in the precision of its weights.

    A folder takes precedence over a zoo model of the same name, see `fheat.models.zoo`. `model.card` is its card.
    Raises `BadInput` that names the file and the reason if a byte was changed, a key is missing or superfluous, or the
    weights belong to another network.
    """
    folder = find_folder(folder_or_zoo_name)
    manifest = read_manifest(folder)
    path = folder / WEIGHTS
    with _open(path, WEIGHTS_LIMIT) as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != manifest.sha256[WEIGHTS]:  # type: ignore[arg-type]
            raise BadInput(path, f"sha256 differs from the one in {MANIFEST}: the file was changed", GET_AGAIN)
        claimed = read_header(file, path)
        model = _build(manifest, folder / MANIFEST, os.fstat(file.fileno()).st_size)
        _compare(model, claimed, path)
        file.seek(0)
        _fill(model, file.read(), path, halved=manifest.stored == "float16")
    model.card = manifest.card  # type: ignore[assignment]
    return model.eval()


def read_manifest(folder: Path) -> Manifest:
    """Read and verify `model.json` only."""
    path = folder / MANIFEST
    if not path.exists():
        inside = [child.parent for child in sorted(folder.glob(f"*/{MANIFEST}"))]
        remedy = f"did you mean {inside[0]}?" if inside else GET_AGAIN
        raise BadInput(path, "is missing", remedy)
    raw = _read(path)
    try:
        content = json.loads(raw)
        stated = content["sha256"][MANIFEST]
        if set(content["sha256"]) != {WEIGHTS, MANIFEST}:
            raise ValueError("field sha256 must name both files")
        content["sha256"][MANIFEST] = ""
        intact = stated == _sha256(_canonical(content))
        content["sha256"][MANIFEST] = stated
        intact = intact and raw == _canonical(content)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        raise BadInput(path, f"is not a model description ({reason})", GET_AGAIN) from None
    if not intact:
        raise BadInput(path, "sha256 differs from the one it states: the file was changed", _SAVE_AGAIN)
    if content.get("format") not in (1, 2):
        reason = f"field format is {repr(content.get('format'))[:40]}, this version of fheat reads 1 and 2"
        raise BadInput(path, reason, "install a newer fheat, or write the folder again with this one")
    try:
        return Manifest.model_validate(_from_format_1(content) if content["format"] == 1 else content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise BadInput(path, f"field {field}: {first['msg']}", _SAVE_AGAIN) from None


def _from_format_1(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a format 1 file, whose card had orientation, spacing and intensity apart, as format 2."""
    card = content.get("card")
    if not isinstance(card, dict):
        return {**content, "format": 2}
    stated = {name: card[name] for name in ("orientation", "spacing", "intensity") if card.get(name) is not None}
    kept = {name: value for name, value in card.items() if name not in ("orientation", "spacing", "intensity")}
    preprocessing = {"tolerance": FORMAT_1_TOLERANCE, **stated} if stated else {}
    return {**content, "format": 2, "card": {**kept, "preprocessing": preprocessing}}


def _build(manifest: Manifest, path: Path, stored: int) -> nn.Module:
    """Build the network of a model folder whose weights have so many bytes, in memory that fits such weights."""
    network = manifest.network
    try:
        with Budget(BUILT_PER_STORED * stored + BUILT_BESIDE):
            model = NetworkSpec(**network.model_dump()).build()
    except (TypeError, ValueError, RuntimeError, MemoryError) as error:
        reason = str(error).split("\n")[0]
        raise BadInput(
            path, f"field network: {reason}", "install the version or the package that has it, or register_model"
        ) from None
    place_gates(model, manifest.instrumented, path)
    gates, operators, branches = gates_of(model), operators_of(model), branches_of(model)
    for name, sites in (("retired", manifest.retired), ("frozen", manifest.frozen)):
        for site, value in sites.items():
            if name == "retired" and site in branches and site not in operators:  # a gate may stand behind a mixer
                branches[site].remove()
                continue
            if site not in (operators if name == "retired" else gates):
                raise BadInput(path, f"field {name}: {network.name} has no gate {site!r}", _SAVE_AGAIN)
            if name == "retired":
                remove_gate(model, operators[site], value)
            elif gates[site].delta is not None or gates[site].retired:
                raise BadInput(path, f"field frozen: the gate {site!r} of {network.name} is not frozen", _SAVE_AGAIN)
            else:
                gates[site].set_strength(value)
    return model


def _compare(model: nn.Module, claimed: Mapping[str, Claimed], path: Path) -> None:
    """Raise `BadInput` where the tensors that a weight file claims to have are not those of the network."""
    name, expected = type(model).__name__, model.state_dict()
    for key in sorted(expected.keys() | claimed.keys()):
        if key not in claimed:
            raise BadInput(path, f"key {key!r} of {name} is missing", GET_AGAIN)
        if key not in expected:
            raise BadInput(path, f"key {key!r} does not belong to {name}", GET_AGAIN)
        kind, shape = claimed[key]
        wanted = tuple(expected[key].shape)
        if shape != wanted:
            raise BadInput(path, f"key {key!r} has shape {shape} where {name} has {wanted}", GET_AGAIN)
        if ("F" in kind) != expected[key].is_floating_point():
            raise BadInput(path, f"key {key!r} is {kind} where {name} has {expected[key].dtype}", GET_AGAIN)


def _fill(model: nn.Module, weights: bytes, path: Path, *, halved: bool) -> None:
    try:
        stored = from_bytes(weights)
    except SafetensorError as error:
        raise BadInput(path, f"is not a safetensors file ({error})", GET_AGAIN) from None
    if halved:
        stored = unhalve(stored)
    broken = _first_not_finite(model, stored)
    if broken is not None:
        raise BadInput(path, f"key {broken!r} holds NaN or infinity", "training diverged: use an earlier model")
    for key, tensor in model.state_dict(keep_vars=True).items():
        tensor.data = tensor.data.to(stored[key].dtype)  # in place, so that tied weights stay tied
    model.load_state_dict(stored)


def _first_not_finite(model: nn.Module, state: dict[str, Tensor]) -> str | None:
    """Return the name of the first parameter with NaN or infinity, or None; buffers may hold infinity on purpose."""
    sums = [state[key].sum() for key, _ in model.named_parameters()]
    if not sums or torch.isfinite(torch.stack(sums)).all():  # else one is broken, or large
        return None
    return next((key for key, _ in model.named_parameters() if not torch.isfinite(state[key]).all()), None)


def _read(path: Path) -> bytes:
    with _open(path, TEXT_LIMIT) as file:
        return file.read(TEXT_LIMIT)


def _open(path: Path, limit: int) -> BinaryIO:
    try:
        if path.is_dir():
            raise BadInput(path, "is a folder where a file should be", GET_AGAIN)
        return open_regular(path, limit)
    except FileNotFoundError:
        raise BadInput(path, "is missing", GET_AGAIN) from None


def _canonical(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
