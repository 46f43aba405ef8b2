"""Small synthetic downloads, one kind per recipe, with known content."""

import hashlib
import json

import numpy as np
import pytest

from fheat.data.recipes.split import split_of
from fheat.io import Volume, read_nifti, write_nifti

AFFINE = np.array([[-0.8, 0, 0, 90.0], [0, -0.8, 0, 120.0], [0, 0, 1.6, -40.0], [0, 0, 0, 1]])


def noise(shape, seed=0, low=1, high=1000):
    return np.random.default_rng(seed).integers(low, high, shape).astype(np.int16)


def block(shape, box, value=1):
    mask = np.zeros(shape, np.uint8)
    mask[tuple(slice(*bounds) for bounds in box)] = value
    return mask


def save(path, data, affine=AFFINE):
    write_nifti(Volume(data, affine), path)


def tree(folder):
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file()
    }


def world(volume, index):
    return volume.affine @ [*index, 1]


def output(folder, case, channel=0, part="Tr"):
    image = read_nifti(folder / f"images{part}" / f"{case}_{channel:04d}.nii.gz")
    path = folder / f"labels{part}" / f"{case}.nii.gz"
    return image, read_nifti(path) if path.exists() else None


def slow_box(mask):
    """Least and greatest index of the voxels set, by looking at each."""
    low, high = [10**9] * 3, [-1] * 3
    for index in np.ndindex(mask.shape):
        if mask[index]:
            low = [min(pair) for pair in zip(low, index, strict=True)]
            high = [max(pair) for pair in zip(high, index, strict=True)]
    return low, high


# One small download per recipe: a training and a test case of the official split, with a label each.


def make_la(root, shape=(40, 36, 12)):
    nrrd = pytest.importorskip("nrrd")
    lps = np.diag([-1.0, -1.0, 1.0, 1.0]) @ AFFINE
    header = {"space": "left-posterior-superior", "space directions": lps[:3, :3].T, "space origin": lps[:3, 3]}
    split = split_of("la", [])
    for seed, case in enumerate((split.order[0], split.order[-1], split.test[0])):
        folder = root / "Training Set" / case
        folder.mkdir(parents=True)
        nrrd.write(str(folder / "lgemri.nrrd"), noise(shape, seed).astype(np.uint8), header)
        mask = block(shape, ((18, 23), (15, 21), (3, 9)), 255)
        nrrd.write(str(folder / "laendo.nrrd"), mask, header)
    return split.order[0], split.order[-1], split.test[0]


def make_pancreas(root, shape=(40, 36, 20)):
    for seed, case in enumerate(("0001", "0062", "0064", "0067")):
        mask = block(shape, ((10, 17), (12, 18), (4, 9)))
        scan = noise(shape, seed, -1000, 1000)
        scan[mask > 0] = np.random.default_rng(seed).integers(0, 100, int(mask.sum()))
        save(root / "CT" / f"PANCREAS_{case}.nii.gz", scan)
        save(root / "TCIA_pancreas_labels" / f"label{case}.nii.gz", mask)
    return "0001", "0062", "0064", "0067"


def make_brats(root, shape=(14, 13, 12)):
    split = split_of("brats2019", [])
    for seed, case in enumerate((split.order[0], split.validation[0], split.test[0])):
        scan = np.zeros(shape, np.int16)
        scan[2:12, 3:11, 1:10] = noise((10, 8, 9), seed)
        folder = root / ("HGG" if seed else "LGG") / case
        save(folder / f"{case}_flair.nii.gz", scan)
        mask = block(shape, ((4, 7), (5, 9), (3, 6)), 4)
        mask[4:6, 5] //= 2
        save(folder / f"{case}_seg.nii.gz", mask)
    return split.order[0], split.validation[0], split.test[0]


def make_msd(root, shape=(10, 9, 8)):
    names = [f"BRATS_{number:03d}" for number in range(1, 9)]
    for seed, case in enumerate(names):
        scan = np.stack([noise(shape, 10 * seed + channel) for channel in range(4)], -1)
        scan[:3] = 0
        save(root / "imagesTr" / f"{case}.nii.gz", scan)
        save(root / "labelsTr" / f"{case}.nii.gz", noise(shape, seed, 0, 4).astype(np.uint8))
    save(root / "imagesTs" / "BRATS_485.nii.gz", scan)
    training = [{"image": f"./imagesTr/{case}.nii.gz", "label": f"./labelsTr/{case}.nii.gz"} for case in names]
    (root / "dataset.json").write_text(json.dumps({"training": training, "test": ["./imagesTs/BRATS_485.nii.gz"]}))
    return names


def make_abdomen(root, shape=(10, 8, 6)):
    names = [f"Case_{number:05d}" for number in range(1, 9)]
    for seed, case in enumerate(names):
        save(root / "imagesTr" / f"{case}_0000.nii.gz", noise(shape, seed, -500, 500))
        save(root / "labelsTr" / f"{case}.nii.gz", noise(shape, seed, 0, 5).astype(np.uint8))
    save(root / "AbdomenCT-1K-ImagePart3" / "Case_01001_0000.nii.gz", noise(shape, 9))
    return names


def make_hnc(root, shape=(10, 9, 8)):
    names = [str(number) for number in range(2, 10)]
    for seed, case in enumerate(names):
        folder = root / "HNTSMRG24_train" / case / "preRT"
        save(folder / f"{case}_preRT_T2.nii.gz", noise(shape, seed))
        save(folder / f"{case}_preRT_mask.nii.gz", noise(shape, seed, 0, 3).astype(np.uint8))
        other = folder.with_name("midRT")
        save(other / f"{case}_midRT_T2.nii.gz", noise(shape, seed))
        save(other / f"{case}_preRT_T2_registered.nii.gz", noise(shape, seed))
    (folder / f"._{case}_preRT_T2.nii.gz").write_bytes(b"macOS")
    return names


MAKE = {
    "la": make_la,
    "pancreas-a": make_pancreas,
    "pancreas-b": make_pancreas,
    "brats2019": make_brats,
    "msd-task01": make_msd,
    "abdomenct1k": make_abdomen,
    "hnc": make_hnc,
}
