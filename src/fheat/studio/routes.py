"""Common parts of the routes: the service that they belong to, and how files are sent."""

from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from fastapi import Depends, Request
from fastapi.responses import FileResponse, StreamingResponse

from fheat.studio.answers import Refused
from fheat.studio.reading import packed_parts
from fheat.studio.service import Service


async def service_of(request: Request) -> Service:
    """Return the service of an application. It is a coroutine because others would be called in another thread."""
    service: Service = request.app.state.service
    return service


Running = Annotated[Service, Depends(service_of)]
"""The service, as an argument of a route."""
NIFTI = "application/gzip"


def packed_file(file: Path, name: str) -> StreamingResponse:
    """Send a NIfTI file packed with gzip; it is packed while it is sent, in another thread."""
    return StreamingResponse(packed_parts(file), media_type=NIFTI, headers=_attachment(name))


def stored_file(file: Path, name: str, kind: str = NIFTI) -> FileResponse:
    """Send a file as it is, or raise `Refused` if it is gone."""
    if not file.is_file():
        raise Refused(404, "the file does not exist", "results are deleted after a while: start the job again")
    return FileResponse(file, media_type=kind, headers=_attachment(name))


def stem_of(name: str) -> str:
    """Return a file name without the endings of a scan."""
    for ending in (".nii.gz", ".nii", ".nrrd", ".zip"):
        if name.lower().endswith(ending):
            return name[: -len(ending)]
    return name


def _attachment(name: str) -> dict[str, str]:
    return {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}
