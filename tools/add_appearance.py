"""Let an existing model folder say what its training scans look like: `python tools/add_appearance.py FOLDER DATASET`.

For models that were trained before cards had the field `appearance`. The training split of DATASET is measured with the
preprocessing of the card, and `model.json` is written again; the weights stay as they are, to the last byte.
"""

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import tyro

from fheat.data.appearance import Appearance, Looks
from fheat.data.layouts import open_dataset
from fheat.data.read import read_image
from fheat.models.card import Card
from fheat.models.folder import WEIGHTS, load, read_manifest, save
from fheat.system.errors import BadInput


def add_appearance(
    folder: Annotated[Path, tyro.conf.Positional], dataset: Annotated[Path, tyro.conf.Positional]
) -> Appearance:
    """Write the ranges over the training scans of a dataset into the card of a model folder, and return them.

    Args:
        folder: model folder, which is replaced.
        dataset: the dataset that the model was trained on.
    """
    manifest, model = read_manifest(folder), load(folder)
    cases = open_dataset(dataset).split("train")
    if not cases:
        raise BadInput(dataset, "has no training scans", "see fheat data check")
    preprocessing = manifest.card.preprocessing
    appearance = Appearance.of(Looks.of(preprocessing.scan(read_image(case))) for case in cases)
    card = Card.model_validate(manifest.card.model_dump() | {"appearance": appearance.model_dump()})
    with tempfile.TemporaryDirectory() as place:
        trial = read_manifest(save(model, Path(place) / "model", card, dtype=manifest.stored))
    if trial.sha256[WEIGHTS] != manifest.sha256[WEIGHTS]:
        raise BadInput(folder / WEIGHTS, "would be written with other bytes", "use the versions that wrote the folder")
    save(model, folder, card, overwrite=True, dtype=manifest.stored)
    return appearance


def main() -> None:
    try:
        appearance = tyro.cli(add_appearance)
    except BadInput as error:
        print(error, file=sys.stderr)
        sys.exit(3)
    print(f"{appearance.scans} training scans")
    for name, known in appearance.ranges.items():
        print(f"{name}: {known.least:g} to {known.greatest:g}, usual {known.low:g} to {known.high:g}")


if __name__ == "__main__":
    main()
