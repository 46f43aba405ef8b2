"""Routes of scans: send one, look at it, delete it."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from fheat.studio.routes import Running, packed_file, stem_of

router = APIRouter(tags=["scans"])


@router.put("/api/scans", status_code=201)
async def add_scan(request: Request, service: Running, name: str) -> dict[str, Any]:
    """Send a scan as the raw body: .nii, .nii.gz, .nrrd, or a .zip of the files of one DICOM series."""
    return (await service.scans.add(request.stream(), name)).to_json()


@router.get("/api/scans/{scan}")
async def get_scan(service: Running, scan: str) -> dict[str, Any]:
    """Return what is known of a scan."""
    return service.scans.get(scan).to_json()


@router.get("/api/scans/{scan}/image.nii.gz")
async def get_image(service: Running, scan: str) -> StreamingResponse:
    """Return the voxels and the affine of a scan for a viewer; every n-th voxel where there are over 256 M."""
    found = service.scans.get(scan)
    coarse = found.folder / "view.nii"
    return packed_file(coarse if coarse.exists() else found.file, f"{stem_of(found.name)}.nii.gz")


@router.delete("/api/scans/{scan}")
async def delete_scan(service: Running, scan: str) -> dict[str, Any]:
    """Delete a scan; jobs that use it are cancelled."""
    found = service.scans.get(scan)
    await service.jobs.cancel_all(scan)
    await service.scans.delete(scan)
    return found.to_json()
