"""Codes for what a segment shows, which DICOM viewers and planning systems understand: SNOMED CT, NCIt, and DCM.

A segment has a category, such as anatomical structure, a type, such as kidney, modifiers of the type, such as left, and
sometimes the region of the body. `segment_code` knows the common ones by their names.
"""

from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from pydicom import Dataset

Short = Annotated[str, Field(min_length=1, max_length=16, pattern=r"^[\x21-\x5b\x5d-\x7e]+$")]
"""A text that the standard allows 16 characters for: printable, without spaces and backslashes."""


class Code(BaseModel):
    """One coded concept: its value in a scheme, and its meaning in words."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: Short
    scheme: Short = "SCT"
    """Designator of the scheme: `SCT` for SNOMED CT, `NCIt`, or `DCM`."""
    meaning: str = Field(min_length=1, max_length=64, pattern=r"^[^\\\x00-\x1f]+$")

    def item(self) -> "Dataset":
        """Return the code as an item of a DICOM sequence."""
        from pydicom import Dataset

        item = Dataset()
        item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = self.value, self.scheme, self.meaning
        return item


class SegmentCode(BaseModel):
    """Codes for what one label value shows: category, type, modifiers and region of the body."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    category: Code
    type: Code
    modifiers: tuple[Code, ...] = ()
    """Modifiers of the type, such as left."""
    region: Code | None = None
    """Region of the body, where the type is found in many, such as a tumour of the brain."""


ANATOMY: Final = Code(value="123037004", meaning="Anatomical Structure")
"""Category of organs, as dcmqi, 3D Slicer and TotalSegmentator write it."""
TISSUE: Final = Code(value="85756007", meaning="Tissue")
ABNORMAL: Final = Code(value="49755003", meaning="Morphologically Abnormal Structure")
TARGET: Final = Code(value="130041", scheme="DCM", meaning="RT Target")
LEFT, RIGHT = Code(value="7771000", meaning="Left"), Code(value="24028007", meaning="Right")
BRAIN: Final = Code(value="12738006", meaning="Brain")
UNKNOWN: Final = SegmentCode(category=ANATOMY, type=TISSUE)
"""Code of a class that the table does not know: some tissue."""


def _of(category: Code, value: str, meaning: str, scheme: str = "SCT", **more: Any) -> SegmentCode:
    return SegmentCode(category=category, type=Code(value=value, scheme=scheme, meaning=meaning), **more)


_EDEMA, _NECROSIS = _of(ABNORMAL, "79654002", "Edema"), _of(ABNORMAL, "6574001", "Necrosis")
_ENHANCING = _of(ABNORMAL, "C113842", "Enhancing Lesion", "NCIt")
KNOWN: Final = {
    "left atrium": _of(ANATOMY, "82471001", "Left atrium"),
    "pancreas": _of(ANATOMY, "15776009", "Pancreas"),
    "liver": _of(ANATOMY, "10200004", "Liver"),
    "spleen": _of(ANATOMY, "78961009", "Spleen"),
    "kidney": _of(ANATOMY, "64033007", "Kidney"),
    "left kidney": _of(ANATOMY, "64033007", "Kidney", modifiers=(LEFT,)),
    "right kidney": _of(ANATOMY, "64033007", "Kidney", modifiers=(RIGHT,)),
    "hippocampus": _of(ANATOMY, "5366008", "Hippocampus"),
    "left hippocampus": _of(ANATOMY, "5366008", "Hippocampus", modifiers=(LEFT,)),
    "right hippocampus": _of(ANATOMY, "5366008", "Hippocampus", modifiers=(RIGHT,)),
    "lymph node": _of(TISSUE, "59441001", "Lymph node"),
    "tumour": _of(ABNORMAL, "108369006", "Neoplasm"),
    "brain tumour": _of(ABNORMAL, "108369006", "Neoplasm", region=BRAIN),
    "whole tumour": _of(ABNORMAL, "108369006", "Neoplasm", region=BRAIN),
    "edema": _EDEMA,
    "necrosis": _NECROSIS,
    "enhancing": _ENHANCING,
    "enhancing tumour": _ENHANCING,
    "non enhancing tumour": _of(ABNORMAL, "C81175", "Non-Enhancing Lesion", "NCIt"),
    "whole tumour without tumour core": _EDEMA,
    "tumour core without enhancing tumour": _NECROSIS,
    "gtv": _of(TARGET, "228791009", "Gross tumor volume"),
    "gtv primary": _of(TARGET, "130052", "GTV Primary", "DCM"),
    "gtv nodal": _of(TARGET, "130051", "GTV Nodal", "DCM"),
}
"""Codes of common classes by name, in lower case and British spelling."""


def segment_code(name: str) -> SegmentCode:
    """Return the code of a class by its name, or `UNKNOWN`; case, hyphens, underscores and spelling do not matter."""
    words = " ".join(name.casefold().replace("_", " ").replace("-", " ").split())
    for other, known in (("tumor", "tumour"), ("oedema", "edema")):
        words = words.replace(other, known)
    return KNOWN.get(words, UNKNOWN)
