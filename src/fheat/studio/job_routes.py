"""Routes of jobs: start one, watch it, fetch its files, compare its mask, correct it."""

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Request
from fastapi.responses import FileResponse, StreamingResponse
from pydantic import BaseModel, Field

from fheat.studio.answers import Refused
from fheat.studio.jobs import Job
from fheat.studio.routes import Running, stem_of, stored_file
from fheat.studio.scans import checked_name, ending_of

router = APIRouter(tags=["jobs"])
Number = Annotated[int, Field(ge=1, le=2**53)]


class WantedSegmentation(BaseModel):
    """Body of a request for a segmentation: the scan, the model and the options."""

    scan: str
    model: str
    preset: Literal["fast"] | None = None
    """`fast` looks at about a third to a half of the windows where they are dense, at all where they are sparse."""
    uncertainty: bool = False
    """Whether the entropy of the probabilities is wanted too."""
    largest_component: bool = False
    """Whether only the largest connected component of each class is kept."""


@router.post("/api/jobs", status_code=202)
async def start_job(service: Running, wanted: WantedSegmentation) -> dict[str, Any]:
    """Queue the segmentation of a scan. With a full queue the answer is 503."""
    scan, model = service.scans.get(wanted.scan), await service.catalogue.model(wanted.model)
    options = wanted.model_dump(include={"preset", "uncertainty", "largest_component"})
    return service.jobs.to_json(await service.segmentation(scan, model, **options))


@router.get("/api/jobs")
async def list_jobs(service: Running) -> list[dict[str, Any]]:
    """Return the state of all jobs, without their results."""
    return service.jobs.summaries()


@router.get("/api/jobs/{number}")
async def get_job(service: Running, number: Number) -> dict[str, Any]:
    """Return the state of a job and, once it is done, its result."""
    return service.jobs.to_json(service.jobs.get(number))


@router.delete("/api/jobs/{number}")
async def delete_job(service: Running, number: Number) -> dict[str, Any]:
    """Cancel a job that waits or runs, at once; delete the result of one that has ended."""
    return service.jobs.to_json(await service.jobs.cancel(number))


@router.get("/api/events", response_class=StreamingResponse)
async def watch(service: Running, last_event_id: Annotated[str | None, Header()] = None) -> StreamingResponse:
    """Stream the state of jobs as they change, as server-sent events of the type `job`."""
    service.events.check_room()
    after = int(last_event_id) if last_event_id and re.fullmatch("[0-9]{1,18}", last_event_id) else None

    async def lines() -> AsyncIterator[str]:
        yield "retry: 2000\n\n"
        async for event in service.events.stream(after, service.jobs.summaries):
            if event is None:
                yield ": still here\n\n"
            else:
                yield f"id: {event[0]}\nevent: job\ndata: {json.dumps(event[1])}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


@router.get("/api/jobs/{number}/mask.nii.gz")
async def get_mask(service: Running, number: Number) -> FileResponse:
    """Return the mask in the place of the scan."""
    return _file(service.jobs.done(number), "mask.nii.gz", "mask")


@router.get("/api/jobs/{number}/uncertainty.nii.gz")
async def get_uncertainty(service: Running, number: Number) -> FileResponse:
    """Return the entropy of the mean probabilities, from 0 to 1."""
    job = service.jobs.done(number)
    if job.result is None or not job.result["uncertainty"]:
        raise Refused(409, "the job was started without uncertainty", "start one with it")
    return _file(job, "uncertainty.nii.gz", "uncertainty")


@router.get("/api/jobs/{number}/mask.dcm")
async def get_seg(service: Running, number: Number) -> FileResponse:
    """Return the mask as DICOM SEG, if the scan was a DICOM series."""
    job = service.jobs.done(number)
    if job.result is None or not job.result["seg"]:
        raise Refused(409, "a DICOM SEG belongs to a DICOM series, and the scan was none", "download NIfTI instead")
    return stored_file(job.folder / "mask.dcm", f"{stem_of(job.name)}_mask.dcm", "application/dicom")


@router.put("/api/jobs/{number}/reference")
async def compare(request: Request, service: Running, number: Number, name: str) -> dict[str, Any]:
    """Compare the mask with a reference, sent as the raw body: .nii, .nii.gz or .nrrd on the grid of the scan."""
    job = service.jobs.done(number)
    assert job.result is not None
    with_ending = ending_of(checked_name(name))
    if with_ending == ".zip":
        raise Refused(415, "a reference is one file", "send .nii, .nii.gz or .nrrd")
    reference = await _received(request, service, job, name, with_ending)
    try:
        arguments = {"mask": str(job.folder / "mask.nii.gz"), "reference": str(reference)}
        arguments |= {"regions": job.result["regions"]}
        found: dict[str, Any] = await service.asking.ask("compare", arguments, folder=job.folder)
    finally:
        await service.files.remove(reference)
    return {**found, "difference": f"/api/jobs/{number}/difference.nii.gz"}


@router.get("/api/jobs/{number}/difference.nii.gz")
async def get_difference(service: Running, number: Number) -> FileResponse:
    """Return where mask and reference differ: 1 only in the mask, 2 only in the reference, 3 in both."""
    return _file(service.jobs.done(number), "difference.nii.gz", "difference")


@router.put("/api/jobs/{number}/corrected")
async def correct(request: Request, service: Running, number: Number) -> dict[str, Any]:
    """Keep a mask that was corrected by hand, a NIfTI file as the raw body: its voxels, in the place of the scan."""
    job = service.jobs.done(number)
    assert job.result is not None
    corrected = await _received(request, service, job, "the corrected mask", ".nii")
    try:
        arguments = {
            "scan": str(service.scans.get(job.scan).file),
            "mask": str(job.folder / "mask.nii.gz"),
            "corrected": str(corrected),
            "target": str(job.folder / "corrected.nii.gz"),
            "largest": len(job.result["classes"]),
            "regions": job.result["regions"],
            "same_place": False,
        }
        found: dict[str, Any] = await service.asking.ask("correct", arguments)
    finally:
        await service.files.remove(corrected)
    saved = await service.save_label(job.folder / "corrected.nii.gz", job.name)
    return {"label": f"/api/jobs/{number}/corrected.nii.gz", "saved": saved, **found}


@router.get("/api/jobs/{number}/corrected.nii.gz")
async def get_corrected(service: Running, number: Number) -> FileResponse:
    """Return the corrected mask."""
    return _file(service.jobs.done(number), "corrected.nii.gz", "corrected")


async def _received(request: Request, service: Running, job: Job, name: str, ending: str) -> Path:
    """Receive and read a mask, and return a file with its voxels and affine; a .nii may be packed with gzip."""
    key = secrets.token_hex(6)
    sent, target = job.folder / f"sent-{key}{ending}", job.folder / f"read-{key}.nii"
    try:
        if await service.files.receive(request.stream(), sent) == 0:
            raise Refused(400, f"{name}: the file is empty", "send the content of the file as the body")
        if ending == ".nii":
            sent = await asyncio.to_thread(service.files.with_true_ending, sent)
        await service.files.read(name, sent, target)
    except BaseException:
        await service.files.remove(target)
        raise
    finally:
        await service.files.remove(sent)
    return target


def _file(job: Job, file: str, what: str) -> FileResponse:
    return stored_file(job.folder / file, f"{stem_of(job.name)}_{what}.nii.gz")
