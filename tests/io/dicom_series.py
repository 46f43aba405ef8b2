"""Synthetic DICOM series with a known affine, written by pydicom alone."""

import itertools
from pathlib import Path

import numpy as np
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

from tests.grids import oblique

SHAPE = (12, 10, 7)


def affines(spacings=((1, 1, 1), (0.625, 0.5, 1.25), (0.3, 0.7, 10)), angles=(0, 17, 45)):
    """RAS affines: 48 axis orders and flips x spacings (columns unlike rows) x oblique angles."""
    for order, signs in itertools.product(itertools.permutations(range(3)), itertools.product((1, -1), repeat=3)):
        for spacing, degrees in itertools.product(spacings, angles):
            affine = np.eye(4)
            affine[:3, :3] = oblique(degrees) @ (np.eye(3)[:, order] * signs) @ np.diag(spacing)
            affine[:3, 3] = -31.5, 12.25, 7.0
            yield affine


def scan(shape=SHAPE, seed=0):
    return np.random.default_rng(seed).integers(-1000, 3000, shape).astype(np.int16)


def slices(data, affine, *, storage=CTImageStorage, modality="CT", **fields):
    """Datasets for data[:, :, k], in the order of k; data (X, Y, Z) int16 or uint16; affine RAS."""
    lps = np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine
    spacing = np.linalg.norm(lps[:3, :3], axis=0)
    series, frame, study = generate_uid(), generate_uid(), generate_uid()
    made = []
    for k in range(data.shape[2]):
        image = Dataset()
        image.file_meta = FileMetaDataset()
        image.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        image.file_meta.MediaStorageSOPClassUID = image.SOPClassUID = storage
        image.file_meta.MediaStorageSOPInstanceUID = image.SOPInstanceUID = generate_uid()
        image.StudyInstanceUID, image.SeriesInstanceUID, image.FrameOfReferenceUID = study, series, frame
        image.Modality, image.PatientID, image.PatientName = modality, "phantom", "Phantom^Synthetic"
        image.PatientBirthDate = image.PatientSex = image.AccessionNumber = image.StudyID = ""
        image.StudyDate, image.StudyTime, image.InstanceNumber = "20200101", "120000", k + 1
        image.ImageOrientationPatient = [round(v, 13) for v in (lps[:3, :2] / spacing[:2]).T.ravel().tolist()]
        image.ImagePositionPatient = [round(v, 10) for v in (lps @ [0, 0, k, 1])[:3].tolist()]
        image.PixelSpacing = [round(float(spacing[1]), 12), round(float(spacing[0]), 12)]
        image.SliceThickness = round(float(spacing[2]), 12)
        image.Columns, image.Rows = data.shape[:2]
        image.SamplesPerPixel, image.PhotometricInterpretation = 1, "MONOCHROME2"
        image.BitsAllocated, image.BitsStored, image.HighBit = 16, 16, 15
        image.PixelRepresentation = int(data.dtype == np.int16)
        image.PixelData = np.ascontiguousarray(data[:, :, k].T).tobytes()
        for name, value in fields.items():
            setattr(image, name, value)
        made.append(image)
    return made


def save(images, folder, names=None):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for index, image in enumerate(images):
        image.save_as(folder / (names[index] if names else f"{index:03d}.dcm"), enforce_file_format=True)
    return folder
