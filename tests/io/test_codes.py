"""Codes of classes: what the table says, what is written into a SEG, and cards that bring their own."""

import json

import numpy as np
import pytest

pytest.importorskip("highdicom")

import pydicom
from pydantic import ValidationError

from fheat import Card, create_model, load, save
from fheat.io import Volume
from fheat.io.codes import KNOWN, UNKNOWN, Code, SegmentCode, segment_code
from fheat.io.dicom import read_dicom
from fheat.io.dicom_seg import write_dicom_seg
from tests.io.dicom_series import SHAPE, scan, slices
from tests.io.dicom_series import save as save_series


def values(item):
    return item.CodeValue, item.CodingSchemeDesignator


@pytest.mark.parametrize(
    ("name", "category", "kind"),
    [
        ("left_atrium", "123037004", "82471001"),
        ("Pancreas", "123037004", "15776009"),
        ("lymph node", "85756007", "59441001"),
        ("Tumor", "49755003", "108369006"),
        ("Enhancing-Tumor", "49755003", "C113842"),
        ("GTV primary", "130041", "130052"),
        ("thing", "123037004", "85756007"),
    ],
)
def test_names_are_known_however_they_are_spelt(name, category, kind):
    found = segment_code(name)
    assert (found.category.value, found.type.value) == (category, kind)


def test_regions_are_coded_by_what_their_label_values_show():
    """A value of a nested region is what the inner regions leave of it: edema around the core, necrosis in it."""
    card = Card(classes=("whole tumour", "tumour core", "enhancing tumour"), regions=(1, 2, 3))
    assert [segment_code(name).type.meaning for name in card.label_names()] == ["Edema", "Necrosis", "Enhancing Lesion"]


def test_the_codes_are_those_of_the_dictionary_of_pydicom():
    from pydicom.sr._concepts_dict import concepts

    known = {(scheme, code) for scheme, words in concepts.items() for codes in words.values() for code in codes}
    parts = [code for one in (*KNOWN.values(), UNKNOWN) for code in (one.category, one.type, *one.modifiers)]
    assert {(code.scheme, code.value) for code in parts} <= known


def test_a_seg_states_them(tmp_path):
    series = read_dicom(save_series(slices(scan(), np.eye(4)), tmp_path / "series"))
    mask = np.zeros(SHAPE, np.uint8)
    mask[2:5, 2:5, 2] = 1
    names = ("background", "left kidney", "whole tumour", "enhancing tumour", "mystery", "own")
    own = segment_code("spleen")
    write_dicom_seg(Volume(mask, series.volume.affine), series, tmp_path / "mask.dcm", names, codes={5: own})
    kidney, tumour, enhancing, mystery, last = pydicom.dcmread(tmp_path / "mask.dcm").SegmentSequence
    assert values(kidney.SegmentedPropertyCategoryCodeSequence[0]) == ("123037004", "SCT")
    kind = kidney.SegmentedPropertyTypeCodeSequence[0]
    assert values(kind) == ("64033007", "SCT")
    assert values(kind.SegmentedPropertyTypeModifierCodeSequence[0]) == ("7771000", "SCT")
    assert values(tumour.AnatomicRegionSequence[0]) == ("12738006", "SCT")
    assert values(enhancing.SegmentedPropertyTypeCodeSequence[0]) == ("C113842", "NCIt")
    assert "AnatomicRegionSequence" not in mystery
    assert values(mystery.SegmentedPropertyTypeCodeSequence[0]) == ("85756007", "SCT")
    assert values(last.SegmentedPropertyTypeCodeSequence[0]) == ("78961009", "SCT")
    assert {one.SegmentAlgorithmType for one in (kidney, last)} == {"AUTOMATIC"}
    write_dicom_seg(Volume(mask, series.volume.affine), series, tmp_path / "b.dcm", names[:2], corrected=True)
    assert pydicom.dcmread(tmp_path / "b.dcm").SegmentSequence[0].SegmentAlgorithmType == "SEMIAUTOMATIC"


def test_a_card_keeps_its_codes(tmp_path):
    code = SegmentCode(category=UNKNOWN.category, type=Code(value="1", scheme="99LOCAL", meaning="my organ"))
    card = Card(classes=("background", "organ"), codes={1: code})
    folder = save(create_model("miniature", patch_size=(16, 16, 16)), tmp_path / "model", card)
    assert load(folder).card.codes == {1: code}
    assert json.loads((folder / "model.json").read_text())["card"]["codes"]["1"]["type"]["scheme"] == "99LOCAL"
    with pytest.raises(ValidationError):
        Card(codes={0: code})
    with pytest.raises(ValidationError):
        Code(value="a value of more than 16", meaning="x")
