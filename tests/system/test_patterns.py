"""Patterns of names: what {id} stands for, which files fit, and what is said if none does."""

import pytest

from fheat import BadInput
from fheat.system.patterns import check_pattern, files_by_id


@pytest.fixture
def folder(tmp_path):
    for name in (
        "pat001_LGE.nii.gz",
        "pat001_LGE_seg.nii.gz",
        "pat002_LGE.nii.gz",
        ".pat003_LGE.nii.gz",
        "a+b(1)_LGE.nii.gz",
        "deep/p1/t1.nii.gz",
        "deep/p2/t1.nii.gz",
        "deep/p2/t2.nii.gz",
        "deep/p3/p3_t1.nii.gz",
        "deep/p4/p9_t1.nii.gz",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder_LGE.nii.gz").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("{id}_LGE.nii.gz", ["a+b(1)", "pat001", "pat002"]),
        ("{id}_LGE_seg.nii.gz", ["pat001"]),
        ("pat{id}_LGE{any}", ["001", "002"]),
        ("{id}.nii.gz", ["a+b(1)_LGE", "pat001_LGE", "pat001_LGE_seg", "pat002_LGE"]),
        (".{id}_LGE.nii.gz", ["pat003"]),
        ("deep/{id}/t1.nii.gz", ["p1", "p2"]),
        ("{any}/{id}/{id}_t1.nii.gz", ["p3"]),
    ],
)
def test_what_fits(folder, pattern, found):
    assert list(files_by_id(folder, pattern)) == found


def test_several_files_of_one_case_are_all_there(folder):
    files = files_by_id(folder, "deep/{id}/{any}.nii.gz")
    assert [file.name for file in files["p2"]] == ["t1.nii.gz", "t2.nii.gz"]


def test_characters_have_no_meaning_of_their_own(folder):
    assert list(files_by_id(folder, "{id}+b(1)_LGE.nii.gz")) == ["a"]
    with pytest.raises(BadInput, match=r"has no file that fits '\.\*\{id\}'; it holds a\+b\(1\)_LGE\.nii\.gz, deep, "):
        files_by_id(folder, ".*{id}")


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("LGE.nii.gz", "has no {id}"),
        ("{id}_{channel}.nii.gz", "has the placeholder {channel}: use {id} and {any}"),
        ("/{id}.nii.gz", "is no name below a folder"),
        ("../{id}.nii.gz", "is no name below a folder"),
        ("", "has no {id}"),
    ],
)
def test_what_is_no_pattern(pattern, reason):
    with pytest.raises(ValueError, match="pattern") as error:
        check_pattern(pattern)
    assert reason in str(error.value)


def test_a_file_is_no_folder(folder):
    with pytest.raises(BadInput, match="is no folder"):
        files_by_id(folder / "pat001_LGE.nii.gz", "{id}")
