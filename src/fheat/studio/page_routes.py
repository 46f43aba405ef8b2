"""Routes of the pages, the files that they use, the health check, and the description of all routes."""

import html
import json
from functools import cache
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse

from fheat import __version__
from fheat.studio.answers import Refused
from fheat.studio.routes import Running

STATIC: Final = Path(__file__).parent / "static"
PAGES: Final = {"/": "index", "/runs": "runs", "/allocation": "allocation", "/dataset": "dataset"}
"""File of each page, without its ending."""
KINDS: Final = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
    ".txt": "text/plain",
    ".woff2": "font/woff2",
}
"""Files that pages may ask for, by ending."""
ASSETS: Final = {
    file.relative_to(STATIC).as_posix(): file
    for file in (sorted(STATIC.rglob("*")) if STATIC.is_dir() else ())
    if file.suffix in KINDS and file.is_file()
}
"""All of them by name; an address can name no other file."""

router = APIRouter(tags=["pages"])


@router.get("/api/health")
async def health(service: Running) -> dict[str, Any]:
    """Answer at once, without a token."""
    return {"status": "ok", "version": __version__, "jobs": len(service.jobs)}


@router.get("/assets/{name:path}", include_in_schema=False)
async def asset(name: str) -> FileResponse:
    """Return a script, a style or a picture of the pages."""
    if name not in ASSETS:
        raise Refused(404, "the pages have no such file", "look at /docs")
    return FileResponse(ASSETS[name], media_type=KINDS[ASSETS[name].suffix], headers={"Cache-Control": "no-cache"})


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> JSONResponse:
    """Return the description of all routes."""
    return JSONResponse(request.app.openapi())


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """Return the description of all routes as a page without scripts, and without anything from elsewhere."""
    return HTMLResponse(docs_page(json.dumps(request.app.openapi())))


async def _page(request: Request) -> FileResponse:
    file = STATIC / f"{PAGES[request.url.path]}.html"
    if not file.is_file():
        raise Refused(404, "this page is not part of the installation", "install fheat[studio] again")
    return FileResponse(file, media_type="text/html", headers={"Cache-Control": "no-cache"})


for _path in PAGES:
    router.add_api_route(_path, _page, methods=["GET"], include_in_schema=False)


@cache
def docs_page(description: str) -> str:
    """Return a table with a row for each route of an OpenAPI description: method, address, arguments, what it does."""
    schema, rows = json.loads(description), []
    for path, methods in schema["paths"].items():
        for method, route in methods.items():
            arguments = [f"{one['in']} {one['name']}" for one in route.get("parameters", ())]
            arguments += [f"body {name}" for name in _body_fields(schema, route)]
            cells = (method.upper(), path, ", ".join(arguments), route.get("description", ""))
            rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>fheat studio: routes</title>'
        f"<h1>fheat studio {html.escape(schema['info']['version'])}: routes</h1>"
        '<p>The same as <a href="/openapi.json">openapi.json</a>. Refusals are JSON: <code>error</code> says what is '
        "wrong, <code>remedy</code> what to do.</p>"
        f"<table><tr><th>method<th>address<th>arguments<th>what it does</tr>{''.join(rows)}</table>"
    )


def _body_fields(schema: dict[str, Any], route: dict[str, Any]) -> list[str]:
    content = route.get("requestBody", {}).get("content", {}).get("application/json", {})
    name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    return list(schema.get("components", {}).get("schemas", {}).get(name, {}).get("properties", {}))
