"""Routes of what lies on disk: models with their gates, runs with their curves, a dataset."""

from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from fheat.studio.routes import Running, packed_file
from fheat.studio.shown_dataset import Part

router = APIRouter(tags=["models, runs, dataset"])


class WantedTiming(BaseModel):
    """Body of a request to time a model: the scan to time it on."""

    scan: str


@router.get("/api/models")
async def list_models(service: Running) -> list[dict[str, Any]]:
    """Return the models: those given on the command line, those of runs, and the zoo."""
    models = (await service.catalogue.models()).values()
    return [model.to_json() | {"default": number == 0} for number, model in enumerate(models)]


@router.get("/api/models/{model}/allocation")
async def get_allocation(service: Running, model: str) -> dict[str, Any]:
    """Return the gates of a model with their responses, and its cost with all gates open and as it is."""
    return await service.catalogue.allocation(model)


@router.post("/api/models/{model}/timing", status_code=202)
async def start_timing(service: Running, model: str, wanted: WantedTiming) -> dict[str, Any]:
    """Queue a job that times one window of a scan with the transforms of closed gates, and without."""
    scan, found = service.scans.get(wanted.scan), await service.catalogue.model(model)
    return service.jobs.to_json(await service.start_job("timing", scan, found))


@router.get("/api/runs")
async def list_runs(service: Running) -> list[dict[str, Any]]:
    """Return the training runs below --runs."""
    hidden = ("folder",)
    runs = (await service.catalogue.runs()).values()
    return [{name: value for name, value in run.items() if name not in hidden} for run in runs]


@router.get("/api/runs/{run}")
async def get_run(service: Running, run: str, after: Annotated[int, Field(ge=-1)] = -1) -> dict[str, Any]:
    """Return losses, validation Dice and gates of a run behind an iteration."""
    return await service.catalogue.run(run, after)


@router.get("/api/dataset")
async def list_cases(service: Running) -> list[dict[str, Any]]:
    """Return the cases of --dataset, the worst prediction first; the Dice of a case is null until it is known."""
    return await service.dataset.cases()


@router.get("/api/dataset/{number}/{part}.nii.gz")
async def get_case(service: Running, number: Annotated[int, Field(ge=0)], part: Part) -> StreamingResponse:
    """Return the image, the label or the prediction of a case for a viewer."""
    return packed_file(await service.dataset.file(number, part), f"{number}-{part}.nii.gz")
