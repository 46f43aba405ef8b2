"""The pages in a real browser, against the real service with a tiny model; voxels are compared, not pictures."""

import base64
import gzip
import itertools
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from urllib.parse import urlsplit

import nibabel
import numpy as np
import pytest

from fheat import Card, create_model, save
from fheat.data.phantom import phantom
from fheat.io import read_nifti, write_nifti
from fheat.models.card import Window
from fheat.training.run_folder import RunFolder
from tests.miniature import declare
from tests.training.helpers import SMALL, settings_of

playwright = pytest.importorskip("playwright.sync_api", reason="browser tests need playwright: pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="browser tests need Chromium: install the system's package chromium"),
]
FLAGS = [
    "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox", "--disable-gpu-sandbox",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run",
]  # fmt: skip
SIDE = 16
LONG = 60_000
"""Milliseconds that a step may take on a crowded machine; none of them is waited for in vain."""
LAPTOP, PHONE, STAMP = ({"width": w, "height": h} for w, h in ((1024, 640), (375, 812), (200, 200)))


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    """A service with a model, a run in progress, a dataset and a folder for labels, and a scan to send."""
    root = tmp_path_factory.mktemp("studio")
    card = Card(
        classes=("background", "chamber", "wall"),
        preprocessing={"orientation": "RAS", "intensity": {"kind": "zscore"}},
        window=Window(size=(SIDE,) * 3, stride=(SIDE,) * 3),
    )
    network = create_model("miniature", patch_size=(SIDE,) * 3, out_channels=3)
    save(network, root / "tiny", card)
    made = phantom(3, (30, 28, 26))
    write_nifti(made.image, root / "scan.nii.gz")
    write_nifti(made.label, root / "reference.nii.gz")
    (root / "damaged.nii.gz").write_bytes((root / "scan.nii.gz").read_bytes()[:3000])
    _make_dataset(root, made)
    run = RunFolder(root / "runs" / "first")
    run.begin(settings_of(data=str(root / "dataset"), iterations=100, **SMALL))
    run.log([_logged(iteration) for iteration in (1, 2)])
    folders = ["--models", root / "tiny", "--runs", root / "runs", "--labels", root / "labels"]
    folders += ["--dataset", root / "dataset", "--predictions", root / "predictions"]
    command = [sys.executable, "-m", "fheat", "studio", "--port", "0", "--no-browser", "--runtime", "torch", *folders]
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, text=True, env=declare(root / "site"), cwd=root
    ) as process:
        address = next(re.finditer(r"http://\S+token=\S+", "".join(_until_address(process.stdout))))[0]
        yield SimpleNamespace(root=root, address=address, run=run, origin="http://" + urlsplit(address).netloc)
        process.terminate()
    run.release()


def _until_address(lines):
    for line in lines:
        yield line
        if "token=" in line:
            return


def _make_dataset(root, made):
    for folder in ("imagesTr", "labelsTr"):
        (root / "dataset" / folder).mkdir(parents=True)
    (root / "predictions").mkdir()
    for name in ("a", "b"):
        write_nifti(made.image, root / "dataset" / "imagesTr" / f"{name}_0000.nii.gz")
        write_nifti(made.label, root / "dataset" / "labelsTr" / f"{name}.nii.gz")
    (root / "dataset" / "dataset.json").write_text(
        '{"channel_names": {"0": "MR"}, "labels": {"background": 0, "chamber": 1}, "numTraining": 2, '
        '"file_ending": ".nii.gz"}'
    )
    write_nifti(made.label, root / "predictions" / "a.nii.gz")
    half = np.array(made.label.data)
    half[: half.shape[0] // 2] = 0
    write_nifti(replace(made.label, data=half), root / "predictions" / "b.nii.gz")


def _logged(iteration):
    values = {"iteration": iteration, "total": 1 / iteration, "supervised": 0.5 / iteration, "rate": 0.01}
    return values | {f"{name}.{site}": 0.5 for site in ("enc1", "enc2", "dec1") for name in ("D", "alpha")}


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as session:
        opened = session.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def page(browser, studio):
    """A page that has the cookie; at the end, nothing went wrong in it and nothing left the host."""
    context = browser.new_context(viewport=LAPTOP, accept_downloads=True)
    context.set_default_timeout(LONG)
    opened = context.new_page()
    problems, asked = [], []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda line: problems.append(line.text) if "Content Security" in line.text else None)
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(studio.address)
    opened.wait_for_selector("#model option", state="attached")
    yield opened
    context.close()
    assert problems == []
    elsewhere = [url for url in asked if urlsplit(url).scheme in ("http", "https", "ws") and studio.origin not in url]
    assert elsewhere == []


def send_scan(page, studio, name="scan.nii.gz"):
    page.set_input_files("#file", studio.root / name)
    page.wait_for_selector("#scan-facts dl")


def segment(page):
    page.select_option("#model", "tiny")
    page.click("#start")
    page.wait_for_selector("#result:not([hidden])")
    return int(re.search(r"/api/jobs/(\d+)/", page.get_attribute("#downloads a", "href"))[1])


def readout(page):
    """Return the voxel under the crosshair along the axes of the file."""
    return tuple(map(int, re.search(r"voxel (-?\d+), (-?\d+), (-?\d+)", page.inner_text("#readout")).groups()))


def fetched(page, studio, path):
    """Return the voxels and the affine of a NIfTI file of the service."""
    content = page.request.get(studio.origin + path).body()
    image = nibabel.Nifti1Image.from_bytes(gzip.decompress(content))
    return np.asarray(image.dataobj), image.affine


def middle(page, dx=0, dy=0):
    box = page.locator("#canvas").bounding_box()
    return box["x"] + box["width"] / 2 + dx, box["y"] + box["height"] / 2 + dy


def test_a_scan_becomes_a_mask_that_can_be_looked_at_and_downloaded(page, studio, tmp_path):
    send_scan(page, studio)
    page.check("#want-uncertainty")
    segment(page)
    assert "30 × 28 × 26" in page.inner_text("#scan-facts")
    names = page.locator("#legend .name").all_inner_texts()
    assert names == ["chamber", "wall"]
    with page.expect_download() as downloading:
        page.click("#downloads a >> text=NIfTI")
    downloading.value.save_as(tmp_path / "mask.nii.gz")
    mask = read_nifti(tmp_path / "mask.nii.gz")
    scan = read_nifti(studio.root / "scan.nii.gz")
    assert mask.data.shape == scan.data.shape
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
    assert filled > 4 * faint > 0
    page.uncheck("#show-mask")
    assert colour_of(page, "0.8") < faint / 10  # letters and crosshair
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
            const [red, green, blue] = data.slice(i, i + 3);
            if (red > blue + 3 && Math.abs(green - blue) < 60 && !(green > blue + 30)) sum += red - Math.min(green, blue);
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
    assert page.is_checked("#show-difference")
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


def test_a_run_in_progress_grows_while_it_is_looked_at(page, studio):
    page.goto(studio.origin + "/runs")
    page.wait_for_selector("#list li")
    page.wait_for_function("() => document.querySelector('#list small').textContent.includes('2 of 100')")
    assert page.inner_text("#list .state") == "running"
    page.wait_for_selector("#gates .plot path", state="attached")
    assert page.locator("#gates .plot path").count() == 3
    studio.run.log([_logged(iteration) for iteration in range(3, 11)])
    studio.run.log([{"iteration": 10, "validation": 0.75, "cases": {"a": 0.75}}])
    page.wait_for_function("() => document.querySelector('#list small').textContent.includes('10 of 100')")
    page.wait_for_function("() => document.querySelector('#curves .keys').textContent.includes('0.75')")
    assert "first 0.1" in page.locator("#curves .plot").nth(1).locator(".keys").inner_text()


def test_the_allocation_of_a_model_and_its_time_on_the_loaded_scan(page, studio):
    send_scan(page, studio)
    page.goto(studio.origin + "/allocation")
    page.wait_for_selector("#gates tbody tr")
    page.select_option("#model", "tiny")
    page.wait_for_function("() => document.querySelectorAll('#gates tbody tr').length === 3")
    assert page.locator("#gates tbody th").all_inner_texts() == ["enc1", "enc2", "dec1"]
    assert page.locator("#cost .track").count() == 2
    page.uncheck("#retire")
    assert "Every transform" in page.inner_text("#retire-note")
    page.click("#measure")
    page.wait_for_selector("#times .track")
    assert "identical" in page.inner_text("#progress")
    assert "NOT" not in page.inner_text("#progress")


def test_the_dataset_shows_the_worst_case_first(page, studio):
    page.goto(studio.origin + "/dataset")
    page.wait_for_function("() => [...document.querySelectorAll('#cases .amount')].every((cell) => cell.textContent !== '–')")
    names = [text.split()[0] for text in page.locator("#cases .what").all_inner_texts()]
    scores = [float(text) for text in page.locator("#cases .amount").all_inner_texts()]
    assert names == ["b", "a"]
    assert scores[0] < 0.9 < scores[1] == 1
    page.click("#cases button >> nth=1")
    page.wait_for_function("() => document.getElementById('case-title').textContent === 'a'")
    page.wait_for_selector("#overlay:not([disabled])")


@pytest.mark.parametrize("path", ["/", "/runs", "/allocation", "/dataset"])
def test_nothing_is_wider_than_a_phone(page, studio, path):
    if path == "/":
        send_scan(page, studio)
        segment(page)
    page.set_viewport_size(PHONE)
    page.goto(studio.origin + path)
    page.wait_for_load_state("networkidle") if path == "/allocation" else page.wait_for_selector("nav a")
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    beyond = page.evaluate(
        """() => [...document.querySelectorAll("main *, header *")]
          .filter((element) => !element.closest(".scroll, .hidden, .skip, svg"))
          .filter((element) => element.getBoundingClientRect().right > innerWidth + 1)
          .map((element) => element.outerHTML.slice(0, 80))"""
    )
    assert beyond == []


def test_keys_reach_everything_and_are_listed(page, studio):
    send_scan(page, studio)
    page.keyboard.press("?")
    assert "Move the crosshair" in page.inner_text("dialog")
    page.keyboard.press("Escape")
    assert not page.is_visible("dialog")
    page.focus("#canvas")
    before = readout(page)
    page.keyboard.press("PageUp")
    assert readout(page) != before
    page.keyboard.press("PageDown")
    assert readout(page) == before
    page.keyboard.press("2")
    assert page.get_attribute("#views [data-view=axial]", "aria-pressed") == "true"
    page.keyboard.press("r")
    assert "Neurological" in page.inner_text("#convention")
    page.evaluate("document.body.tabIndex = -1; document.body.focus()")
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    enabled = page.evaluate(
        """[...document.querySelectorAll("button, select, input, canvas")]
          .filter((element) => element.checkVisibility() && !element.matches(":disabled, [tabindex='-1']") && element.id)
          .map((element) => element.id)"""
    )
    assert set(enabled) <= reached
    unnamed = page.evaluate(
        """[...document.querySelectorAll("button, select, input, canvas")]
          .filter((element) => !(element.labels?.length || element.ariaLabel || element.textContent.trim()))
          .map((element) => element.outerHTML)"""
    )
    assert unnamed == []


def test_the_colour_scheme_is_the_systems_until_another_is_chosen(page):
    def ground():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    page.emulate_media(color_scheme="light")
    light = ground()
    page.emulate_media(color_scheme="dark")
    assert ground() != light
    dark = ground()
    page.click(".scheme")
    assert ground() == light
    page.reload()
    page.wait_for_selector(".scheme")
    assert ground() == light
    page.click(".scheme")
    assert ground() == dark


def test_ticks_and_thinning_of_plots(page):
    answers = page.evaluate(
        """async () => {
          const { ticks, thin } = await import("/assets/plot.js");
          const points = Array.from({ length: 1000 }, (_, x) => [x, 2 * x]);
          return [ticks(0, 1), ticks(0.013, 0.11), ticks(0, 16000, 6), ticks(0.02, 3, 5, true), thin(points, 100), thin(points.slice(0, 9), 100)];
        }"""
    )
    assert answers[0] == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert answers[1] == [0.02, 0.04, 0.06, 0.08, 0.1]
    assert answers[2] == [0, 5000, 10000, 15000]
    assert answers[3] == pytest.approx([0.02, 0.05, 0.1, 0.2, 0.5, 1, 2])
    blocks = np.arange(1000).reshape(100, 10).mean(1)
    np.testing.assert_allclose(answers[4], np.stack([blocks, 2 * blocks], 1))
    assert answers[5] == [[x, 2 * x] for x in range(9)]
