"""The page that segments: upload, mask, scrolling, overlay, brush, reference, refusals."""

import base64
import gzip
import itertools
import re

import nibabel
import numpy as np
import pytest

from fheat.io import read_nifti
from tests.studio.browser.steps import STAMP, fetched, middle, readout, segment, send_scan

pytestmark = pytest.mark.slow


def test_a_scan_becomes_a_mask_that_can_be_looked_at_and_downloaded(page, studio, tmp_path):
    send_scan(page, studio)
    page.check("#want-uncertainty")
    segment(page)
    assert "30 \u00d7 28 \u00d7 26" in page.inner_text("#scan-facts")
    names = page.locator("#legend .name").all_inner_texts()
    assert names == ["chamber", "wall"]
    with page.expect_download() as downloading:
        page.click("#downloads a >> text=NIfTI")
    downloading.value.save_as(tmp_path / "mask.nii.gz")
    mask = read_nifti(tmp_path / "mask.nii.gz")
    scan = read_nifti(studio.root / "scan.nii.gz")
    assert mask.data.shape == scan.data.shape
    assert np.any(mask.data)
    np.testing.assert_allclose(mask.affine, scan.affine, atol=1e-5)
    millilitres = float(np.sum(mask.data == 1) * abs(np.linalg.det(scan.affine[:3, :3])) / 1000)
    shown = float(page.locator("#legend .amount").first.inner_text().split()[0])
    assert shown == pytest.approx(millilitres, abs=0.051)
    assert page.locator("text=DICOM SEG").count() == 0

    page.click("#views [data-view=axial]")
    page.mouse.move(*middle(page))
    before, text = readout(page), page.text_content("#readout")
    page.mouse.wheel(0, 120)
    page.wait_for_function("text => document.getElementById('readout').textContent !== text", arg=text)
    assert sum(a != b for a, b in zip(before, readout(page), strict=True)) == 1

    filled, faint = colour_of(page, "0.8"), colour_of(page, "0.1")
    page.uncheck("#show-mask")
    nothing = colour_of(page, "0.8")  # letters and crosshair
    assert filled - nothing > 4 * (faint - nothing) > 0
    assert page.is_enabled("#show-uncertainty")
    with page.expect_download() as downloading:
        page.click("#screenshot")
    assert downloading.value.suggested_filename == "scan.png"
    downloading.value.save_as(tmp_path / "scan.png")
    assert (tmp_path / "scan.png").read_bytes()[:4] == b"\x89PNG"


def colour_of(page, opacity):
    """Return how colourful the picture is with an opacity of the mask: the scan is grey and the mask is not."""
    page.locator("#opacity").fill(opacity)
    return page.evaluate(
        """async () => {
          await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
          const { viewer } = await import("/assets/segment.js");
          const picture = await createImageBitmap(await viewer.picture());
          const plain = new OffscreenCanvas(picture.width, picture.height).getContext("2d");
          plain.drawImage(picture, 0, 0);
          const { data } = plain.getImageData(0, 0, picture.width, picture.height);
          let sum = 0;
          for (let i = 0; i < data.length; i += 4) {
            const colour = data.slice(i, i + 3);
            sum += Math.max(...colour) - Math.min(...colour);
          }
          return sum;
        }"""
    )


def test_the_brush_changes_the_voxel_under_the_pointer_and_saves_exactly_that(page, studio):
    send_scan(page, studio)
    job = segment(page)
    mask, affine = fetched(page, studio, f"/api/jobs/{job}/mask.nii.gz")
    page.click("#views [data-view=coronal]")
    page.mouse.click(*middle(page, 41, -33))
    voxel = readout(page)
    value = 2 if mask[voxel] != 2 else 1
    page.click("#brush-on")
    page.select_option("#brush-class", str(value))
    page.locator("#brush-size").fill("1")
    page.mouse.click(*middle(page, 41, -33))
    page.click("#start")
    page.wait_for_selector("#messages .message")
    assert page.inner_text("#messages strong") == "the corrected mask is not saved"
    with page.expect_request(lambda request: request.method == "PUT") as sending:
        page.click("#brush-save")
    page.wait_for_selector("#brush-note a")
    assert "1 voxels differ" in page.inner_text("#brush-note")
    stored, place = fetched(page, studio, f"/api/jobs/{job}/corrected.nii.gz")
    sent = nibabel.Nifti1Image.from_bytes(gzip.decompress(sending.value.post_data_buffer))
    np.testing.assert_array_equal(stored, np.asarray(sent.dataobj))
    expected = mask.copy()
    expected[voxel] = value
    np.testing.assert_array_equal(stored, expected)
    np.testing.assert_array_equal(place, affine)
    label = read_nifti(studio.root / "labels" / "scan.nii.gz")
    np.testing.assert_array_equal(label.data, expected)

    page.locator("#brush-size").fill("5")
    page.click("#brush-erase")
    page.mouse.click(*middle(page, 41, -33))
    page.click("#brush-undo")
    page.click("#brush-save")
    page.wait_for_function("() => document.getElementById('brush-note').textContent.includes('scan-2')")
    np.testing.assert_array_equal(read_nifti(studio.root / "labels" / "scan-2.nii.gz").data, expected)


def test_all_orientations_keep_their_voxels_through_the_brush(page):
    """Each of the 48 ways to store a volume: loaded as a drawing, one voxel drawn at a place in mm, saved."""
    page.set_viewport_size(STAMP)
    volumes, codes = [], list(itertools.permutations(range(3)))
    voxels = np.random.default_rng(0).integers(0, 3, (5, 6, 7)).astype(np.uint8)
    for order, signs in itertools.product(codes, itertools.product((1, -1), repeat=3)):
        affine = np.eye(4)
        affine[:3, :3] = np.diag([0.8, 1.1, 1.7])[:, order] * signs
        affine[:3, 3] = (3, -40, 12)
        content = nibabel.Nifti1Image(voxels, affine).to_bytes()
        volumes.append({"content": base64.b64encode(content).decode(), "mm": (affine @ (3, 1, 5, 1))[:3].tolist()})
    answers = page.evaluate(
        """async (volumes) => {
          const { viewer, correction } = await import("/assets/segment.js");
          const saved = [];
          for (const { content, mm } of volumes) {
            const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0)).buffer;
            await viewer.showScan(bytes.slice(0), "scan.nii");
            await correction.brush.load(bytes, [{ name: "x", value: 1, colour: "#ff0000", shown: true }], 0.5);
            const { nv } = viewer;
            nv.scene.crosshairPos = nv.mm2frac(mm);
            nv.drawPt(...nv.frac2vox(nv.scene.crosshairPos), 9);
            const file = await viewer.scan.saveToUint8Array("label.nii", nv.drawBitmap);
            const at = viewer.describe({ mm, vox: nv.frac2vox(nv.scene.crosshairPos), values: [] }).voxel;
            saved.push({ file: btoa(String.fromCharCode(...file)), at, ml: correction.brush.volumes()[9] });
          }
          correction.discard();
          viewer.clear();
          return saved;
        }""",
        volumes,
    )
    expected = voxels.copy()
    expected[3, 1, 5] = 9
    assert len(answers) == 48
    for answer in answers:
        image = nibabel.Nifti1Image.from_bytes(base64.b64decode(answer["file"]))
        np.testing.assert_array_equal(np.asarray(image.dataobj), expected)
        assert answer["at"] == [3, 1, 5]
        assert answer["ml"] == pytest.approx(0.8 * 1.1 * 1.7 / 1000)


def test_a_reference_gives_scores_and_a_difference(page, studio):
    send_scan(page, studio)
    job = segment(page)
    page.set_input_files("#reference", studio.root / "reference.nii.gz")
    page.wait_for_selector("#scores table")
    mask, _ = fetched(page, studio, f"/api/jobs/{job}/mask.nii.gz")
    reference = read_nifti(studio.root / "reference.nii.gz").data
    both = np.sum((mask == 1) & (reference == 1))
    dice = 2 * both / (np.sum(mask == 1) + np.sum(reference == 1))
    assert float(page.locator("#scores tbody td").first.inner_text()) == pytest.approx(dice, abs=6e-4)
    page.wait_for_function("() => document.querySelector('#show-difference').checked")
    assert not page.is_checked("#show-mask")


def test_a_damaged_file_is_refused_with_its_remedy(page, studio):
    page.set_input_files("#file", studio.root / "damaged.nii.gz")
    page.wait_for_selector("#messages .message")
    assert page.get_attribute("#messages", "aria-live") == "assertive"
    assert "damaged.nii.gz" in page.inner_text("#messages strong")
    assert re.match("What to do: .{5}", page.inner_text("#messages .remedy"))
    assert page.is_disabled("#start")
    page.click("#messages button")
    assert page.locator("#messages .message").count() == 0
    send_scan(page, studio)
    assert page.is_enabled("#start")
