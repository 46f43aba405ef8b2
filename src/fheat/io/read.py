"""One scan or mask from wherever it lies, by what its path looks like."""

from pathlib import Path

from fheat.io.nifti import read_nifti
from fheat.io.volume import Volume
from fheat.system.errors import BadInput


def read_volume(path: str | Path) -> Volume:
    """Read a NIfTI file, an NRRD file or the folder of a DICOM series, or raise `BadInput`."""
    place = Path(path)
    if place.is_dir():
        from fheat.io.dicom import read_dicom

        return read_dicom(place).volume
    if place.name.endswith((".nii", ".nii.gz")):
        return read_nifti(place)
    if place.suffix == ".nrrd":
        from fheat.io.nrrd import read_nrrd

        return read_nrrd(place)
    if not place.exists():
        raise BadInput(place, "does not exist", "check the path")
    raise BadInput(place, "is not of a kind that can be read", "give .nii, .nii.gz, .nrrd or a folder of DICOM files")
