"""Routes of the MONAI Label protocol, so that the plug-in of 3D Slicer can use the service.

Its client sends neither our header nor a cookie, so the secret is part of the address: `http://127.0.0.1:PORT/s/TOKEN`.
The guard takes it out of the path. The client cannot read an answer in chunks, and takes any 200 at `/train/` for a
training that runs.
"""

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator
from typing import Any, Final, Literal

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, Response, StreamingResponse
from starlette.datastructures import FormData, UploadFile
from starlette.requests import ClientDisconnect

from fheat import __version__
from fheat.studio.answers import Refused
from fheat.studio.jobs import Job
from fheat.studio.routes import Running, packed_file, stored_file
from fheat.studio.scans import LONGEST_NAME, Scan, ending_of
from fheat.studio.service import Service
from fheat.system.files import WEIGHTS_LIMIT, read_capped

router = APIRouter(prefix="/s", tags=["3D Slicer"])
LOOK_EVERY: Final = 0.5
"""Seconds between two looks whether a waiting client is still there."""
MOST_FILES, MOST_FIELDS, LONGEST_FIELD = 2, 8, 64 * 2**10
"""Largest numbers of files and of fields in a form, and of bytes in a field."""
_PART: Final = 2**20
CONFIG: Final = {"largest_component": False, "preset": ["own", "fast"]}
"""Options that the plug-in offers its user: a check box and a list."""


@router.get("/auth/")
async def auth() -> dict[str, bool]:
    """Say that there is no log-in; the client asks before every request."""
    return {"enabled": False}


@router.get("/train/")
async def train() -> None:
    """Say that no training runs, which the protocol does with 404."""
    raise Refused(404, "no training runs", "train with fheat train")


@router.get("/info/")
async def info(service: Running) -> dict[str, Any]:
    """Return the models as the plug-in shows them."""
    models = await service.catalogue.models()
    return {
        "name": "fheat",
        "description": "",
        "version": __version__,
        "labels": list(dict.fromkeys(label for model in models.values() for label in model.labels)),
        "models": {
            key: {
                "type": "segmentation",
                "labels": model.labels,
                "dimension": 3,
                "description": model.facts["title"],
                "config": CONFIG,
            }
            for key, model in models.items()
        },
        "trainers": {},
        "strategies": {},
        "scoring": {},
        "train_stats": {},
        "datastore": _counts(service),
    }


@router.get("/datastore/")
async def list_images(service: Running, output: str | None = None) -> dict[str, Any]:
    """Return how many images there are and how many have a label, or with `output=all` which."""
    if output != "all":
        return _counts(service)
    kept = {"ext": ".nii.gz", "info": {}}
    labels = {name: {"final": kept} if name in service.slicer_labels else {} for name in _known(service)}
    images = {name: {"image": kept, "labels": labels[name]} for name in labels}
    return {"name": "fheat", "description": "", "objects": images}


@router.put("/datastore/")
async def add_image(request: Request, service: Running, image: str | None = None) -> dict[str, str]:
    """Keep the scan in the part `file` of a form under a name."""
    async with request.form(max_files=MOST_FILES, max_fields=MOST_FIELDS, max_part_size=LONGEST_FIELD) as form:
        name = await _add(service, form, image)
    return {"image": name}


@router.get("/datastore/image")
async def get_image(service: Running, image: str) -> StreamingResponse:
    """Return the voxels and the affine of a scan."""
    scan = _scan(service, image)
    return packed_file(scan.file, f"{scan.id}.nii.gz")


@router.post("/infer/{model}")
async def infer(
    request: Request,
    service: Running,
    model: str,
    image: str | None = None,
    output: Literal["image", "json", "all", "dicom_seg"] = "all",
) -> Response:
    """Segment a scan, wait for it, and return the label names and the mask as NRRD in one form.

    A client that leaves cancels its job.
    """
    found = await service.catalogue.model(model)
    async with request.form(max_files=MOST_FILES, max_fields=MOST_FIELDS, max_part_size=LONGEST_FIELD) as form:
        params = _params(form)
        name = await _add(service, form, image) if isinstance(form.get("file"), UploadFile) else image
    if name is None:
        raise Refused(400, "the request names no image", "send image=NAME")
    preset = "fast" if params.get("preset") == "fast" else None
    largest = params.get("largest_component") is True
    scan = _scan(service, name)
    job = await service.segmentation(scan, found, preset=preset, largest_component=largest, nrrd=True)
    await _wait(request, service, job)
    if job.result is None:
        said = job.error or {"error": f"the job is {job.state}", "remedy": "start it again"}
        raise Refused(422, said["error"], said["remedy"])
    labels = {"label_names": job.result["classes"], "latencies": {"total": job.result["seconds"]}}
    if output == "json":
        return Response(json.dumps(labels), media_type="application/json")
    if output == "dicom_seg" and not job.result["seg"]:
        raise Refused(409, "a DICOM SEG belongs to a DICOM series, and the scan was none", "ask for the image instead")
    file = job.folder / ("mask.dcm" if output == "dicom_seg" else "mask.nrrd")
    mask = await asyncio.to_thread(read_capped, file, WEIGHTS_LIMIT)
    if output != "all":
        return Response(mask, media_type="application/octet-stream")
    return _form_answer(labels, mask)


@router.put("/datastore/label")
async def add_label(request: Request, service: Running, image: str) -> dict[str, str]:
    """Keep a label that was drawn in Slicer, on the grid of its scan; also in the folder of labels, if there is one."""
    scan = _scan(service, image)
    async with request.form(max_files=MOST_FILES, max_fields=MOST_FIELDS, max_part_size=LONGEST_FIELD) as form:
        _params(form)
        label = form.get("label")
        if not isinstance(label, UploadFile):
            raise Refused(400, "the form has no part named label with a file", "send the label")
        ending = ending_of(_plain_name(label.filename))
        key = secrets.token_hex(6)
        sent, read = scan.folder / f"sent-{key}{ending}", scan.folder / f"read-{key}.nii"
        try:
            await service.files.receive(_parts(label), sent)
            await service.files.read("the label", sent, read)
            arguments: dict[str, Any] = {
                "scan": str(scan.file),
                "mask": None,
                "corrected": str(read),
                "largest": 255,
                "regions": {},
            }
            arguments |= {"target": str(scan.folder / "label.nii.gz"), "same_place": True}
            await service.asking.ask("correct", arguments)
        finally:
            await service.files.remove(sent, read)
    await service.save_label(scan.folder / "label.nii.gz", scan.name)
    service.slicer_labels.add(image)
    return {"image": image, "label": image}


@router.get("/datastore/label")
async def get_label(service: Running, label: str, tag: str = "final") -> FileResponse:
    """Return a label that was kept."""
    scan = _scan(service, label)
    return stored_file(scan.folder / "label.nii.gz", f"{scan.id}.nii.gz")


def _counts(service: Service) -> dict[str, Any]:
    completed = len(service.slicer_labels & set(_known(service)))
    return {"total": len(_known(service)), "completed": completed, "label_tags": {"final": completed}}


def _known(service: Service) -> list[str]:
    """Return the names of images whose scans still exist."""
    gone = [name for name, key in service.slicer_images.items() if not service.scans.has(key)]
    for name in gone:
        del service.slicer_images[name]
        service.slicer_labels.discard(name)
    return list(service.slicer_images)


def _scan(service: Service, image: str) -> Scan:
    if image not in service.slicer_images:
        raise Refused(404, "there is no such image", "send it again: scans are deleted after a while")
    return service.scans.get(service.slicer_images[image])


def _params(form: FormData) -> dict[str, Any]:
    """Return the choices of the user, which come as JSON in a field."""
    text = form.get("params", "{}")
    try:
        found = json.loads(text) if isinstance(text, str) and text else {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Refused(422, "the field params is no JSON object", "send {} or leave it out")
    return found


async def _add(service: Service, form: FormData, image: str | None) -> str:
    """Keep the scan of a form and return its name; the client's own path of the file tells its kind and no more."""
    _params(form)
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise Refused(400, "the form has no part named file with a file", "send the scan")
    ending = ending_of(_plain_name(file.filename))
    name = image or _plain_name(file.filename).removesuffix(ending)
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise Refused(400, f"the image has no name of up to {LONGEST_NAME} characters", "name it")
    shown = re.sub(r"[/\\:]+", "_", name).strip(". ")[: LONGEST_NAME - len(ending)] or "scan"
    scan = await service.scans.add(_parts(file), shown + ending)
    before = service.slicer_images.get(name)
    service.slicer_images[name] = scan.id
    service.slicer_labels.discard(name)
    if before is not None and before not in service.jobs.scans_in_use():
        await service.scans.delete(before)
    return name


def _plain_name(path: str | None) -> str:
    """Return the last part of a path of any system."""
    return re.split(r"[/\\]", path or "")[-1]


async def _parts(file: UploadFile) -> AsyncIterator[bytes]:
    while part := await file.read(_PART):
        yield part


async def _wait(request: Request, service: Service, job: Job) -> None:
    """Wait for the end of a job; if the client leaves, cancel it and raise `ClientDisconnect`."""
    while not job.over.is_set():
        try:
            await asyncio.wait_for(job.over.wait(), LOOK_EVERY)
        except TimeoutError:
            if await request.is_disconnected():
                await service.jobs.cancel(job.number)
                raise ClientDisconnect from None


def _form_answer(labels: dict[str, Any], mask: bytes) -> Response:
    """Return both parts in one piece, with the length that the client needs."""
    boundary = secrets.token_hex(16)
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="params"\r\nContent-Type: application/json\r\n\r\n'
        f"{json.dumps(labels)}\r\n"
        f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="mask.nrrd"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    body = head.encode() + mask + f"\r\n--{boundary}--\r\n".encode()
    return Response(body, media_type=f"multipart/form-data; boundary={boundary}")
