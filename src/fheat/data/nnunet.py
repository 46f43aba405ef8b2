"""Writer of the nnU-Net raw layout: a case complete or absent, `dataset.json` and `splits.json` last."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fheat.errors import BadInput
from fheat.files import write_file
from fheat.io.nifti import write_nifti
from fheat.io.volume import Volume

ENDING: Final = ".nii.gz"


class RawWriter:
    """Write cases into a folder that is new or empty.

    Training cases go to `imagesTr` and `labelsTr`, test cases to `imagesTs` and `labelsTs`; a folder without
    `dataset.json` was not finished.
    """

    def __init__(self, target: Path) -> None:
        self.target = target

    def check_empty(self) -> None:
        """Raise `BadInput` where the folder holds something. It is made with the first file."""
        if self.target.exists() and (not self.target.is_dir() or any(self.target.iterdir())):
            raise BadInput(self.target, "exists and is not an empty folder", "choose another or empty it")

    def write_case(self, case: str, images: Sequence[Volume], label: Volume | None, *, test: bool) -> None:
        """Write one file per channel and the label, if any; on failure none of them stays.

        The label comes first, so that whoever interrupts leaves no image whose label is missing.
        """
        part = "Ts" if test else "Tr"
        files = {} if label is None else {self.target / f"labels{part}" / f"{case}{ENDING}": label}
        for channel, image in enumerate(images):
            files[self.target / f"images{part}" / f"{case}_{channel:04d}{ENDING}"] = image
        try:
            for path, volume in files.items():
                write_nifti(volume, path)
        except BaseException:
            for path in files:
                path.unlink(missing_ok=True)
            raise

    def finish(self, dataset: Mapping[str, Any], splits: Mapping[str, Any]) -> None:
        """Write `splits.json`, then `dataset.json`."""
        for name, content in (("splits.json", splits), ("dataset.json", dataset)):
            write_file(self.target / name, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def dataset_json(
    *, name: str, title: str, channels: Sequence[str], labels: Mapping[str, int | list[int]], training: int
) -> dict[str, Any]:
    """Return nnU-Net's description of a dataset; regions get the order in which they are painted."""
    described: dict[str, Any] = {
        "name": name,
        "description": title,
        "channel_names": {str(index): channel for index, channel in enumerate(channels)},
        "labels": dict(labels),
    }
    if any(isinstance(value, list) for value in labels.values()):
        described["regions_class_order"] = list(range(1, len(labels)))
    return described | {"numTraining": training, "file_ending": ENDING}
