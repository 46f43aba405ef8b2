"""Scans and masks on disk, one format per file. A file whose geometry cannot be trusted is refused."""

from pathlib import Path

from fheat.io.nifti import read_nifti as read_nifti
from fheat.io.nifti import write_nifti as write_nifti
from fheat.io.volume import Volume as Volume
from fheat.system.errors import BadInput

__all__ = ["Volume", "read_nifti", "read_volume", "write_nifti"]


def read_volume(path: str | Path) -> Volume:
    """Read a scan or a mask from a NIfTI file, an NRRD file or the folder of a DICOM series, or raise `BadInput`."""
    source = Path(path)
    if source.is_dir():
        from fheat.io.dicom import read_dicom

        return read_dicom(source).volume
    if source.name.endswith((".nii", ".nii.gz")):
        return read_nifti(source)
    if source.suffix == ".nrrd":
        from fheat.io.nrrd import read_nrrd

        return read_nrrd(source)
    if not source.exists():
        raise BadInput(source, "does not exist", "check the path")
    raise BadInput(source, "is not of a kind that can be read", "give .nii, .nii.gz, .nrrd or a folder of DICOM files")
