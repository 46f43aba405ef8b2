"""The application: all routes behind the guards."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.types import ASGIApp

from fheat import __version__
from fheat.studio import job_routes, page_routes, scan_routes, slicer_routes, view_routes
from fheat.studio.answers import add_handlers
from fheat.studio.guards import Bodies, Guard, LastResort
from fheat.studio.launcher import Launcher
from fheat.studio.service import Service
from fheat.studio.settings import StudioSettings


def create_app(settings: StudioSettings, *, launcher: Launcher | None = None) -> ASGIApp:
    """Return the service as an ASGI application.

    Args:
        settings: addresses, folders, devices and limits.
        launcher: what starts tasks; by default one of its own, which ends with the application.

    The documentation pages that FastAPI has load scripts from elsewhere, so /docs is a page of this package.
    """
    service = Service(settings, launcher)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(
        title="fheat studio",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    add_handlers(app)
    for routes in (page_routes, scan_routes, job_routes, view_routes, slicer_routes):
        app.include_router(routes.router)
    page_routes.docs_page(json.dumps(app.openapi()))  # both are kept: nobody waits for them later
    return Guard(LastResort(Bodies(app, settings.limits)), settings)
