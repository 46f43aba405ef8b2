"""Runs, allocation and dataset; and what all pages promise: phone width, keys, colour schemes."""

import numpy as np
import pytest
from scipy.ndimage import binary_erosion

from tests.studio.browser.steps import PHONE, logged, readout, segment, send_scan

pytestmark = pytest.mark.slow


def test_a_run_in_progress_grows_while_it_is_looked_at(page, studio):
    page.goto(studio.origin + "/runs")
    page.wait_for_selector("#list li")
    page.wait_for_function("() => document.querySelector('#list small').textContent.includes('2 of 100')")
    assert page.inner_text("#list .state") == "running"
    page.wait_for_selector("#gates .plot path", state="attached")
    assert page.locator("#gates .plot path").count() == 3
    studio.run.log([logged(iteration) for iteration in range(3, 11)])
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
    page.wait_for_selector("#cases .amount")
    page.wait_for_function(
        "() => [...document.querySelectorAll('#cases .amount')].every((cell) => /[0-9]/.test(cell.textContent))"
    )
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
          .filter((element) => element.id && element.checkVisibility())
          .filter((element) => !element.matches(":disabled, [tabindex='-1']"))
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
          const drawn = [ticks(0, 1), ticks(0.013, 0.11), ticks(0, 16000, 6), ticks(0.02, 3, 5, true)];
          return [...drawn, thin(points, 100), thin(points.slice(0, 9), 100)];
        }"""
    )
    assert answers[0] == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert answers[1] == [0.02, 0.04, 0.06, 0.08, 0.1]
    assert answers[2] == [0, 5000, 10000, 15000]
    assert answers[3] == pytest.approx([0.02, 0.05, 0.1, 0.2, 0.5, 1, 2])
    blocks = np.arange(1000).reshape(100, 10).mean(1)
    np.testing.assert_allclose(answers[4], np.stack([blocks, 2 * blocks], 1))
    assert answers[5] == [[x, 2 * x] for x in range(9)]


def test_edges_middles_and_voxels_are_those_of_numpy(page):
    labels = np.zeros((9, 8, 7), np.uint8)
    labels[1:8, 2:8, 1:6] = 1
    labels[4:, :5, 2:5] = 2
    affine = np.array([[-0.8, 0.1, 0, 11], [0.1, 0.8, 0.2, -7], [0, 0, 1.5, 3], [0, 0, 0, 1.0]])
    place = (affine @ (3, 5, 2, 1))[:3]
    edges, middle, voxel = page.evaluate(
        """async ([voxels, size, affine, place]) => {
          const { edgesOf, middleOf, voxelAt } = await import("/assets/geometry.js");
          const labels = Uint8Array.from(voxels);
          return [Array.from(edgesOf(labels, size)), middleOf(labels, size), voxelAt(affine, place)];
        }""",
        [labels.ravel(order="F").tolist(), labels.shape, affine.tolist(), place.tolist()],
    )
    expected = labels.copy()
    for value in (1, 2):
        expected[binary_erosion(labels == value)] = 0
    np.testing.assert_array_equal(np.reshape(edges, labels.shape, order="F"), expected)
    np.testing.assert_allclose(middle, np.argwhere(labels).mean(axis=0))
    assert voxel == [3, 5, 2]
