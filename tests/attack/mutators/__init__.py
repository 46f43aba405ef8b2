"""The kinds of files that are attacked, each with its mutations; one file per format."""

from tests.attack.kinds import Kind
from tests.attack.mutators import dicom, nifti, nrrd

KINDS: tuple[Kind, ...] = (*nifti.KINDS, *nrrd.KINDS, *dicom.KINDS)
