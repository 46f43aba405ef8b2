"""Scans and masks on disk, one format per file. Geometry is carried through or the file is refused."""

from fheat.io.nifti import read_nifti as read_nifti
from fheat.io.nifti import write_nifti as write_nifti
from fheat.io.read import read_volume as read_volume
from fheat.io.volume import Volume as Volume

__all__ = ["Volume", "read_nifti", "read_volume", "write_nifti"]
