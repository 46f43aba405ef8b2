// How scan and overlays are shown: contrast, opacity, outline, view, convention, position and screenshot.

import { find, fill, make } from "./dom.js";

const CONVENTIONS = {
  true: "Radiological view: the patient's right side is on the left of the picture (R on the left).",
  false: "Neurological view: the patient's right side is on the right of the picture (R on the right).",
};
const LETTERS = [["R", "L"], ["A", "P"], ["S", "I"]];

/** Connect the controls around a viewer; those that a page does not have are left out. */
export class Display {
  constructor(viewer) {
    this.viewer = viewer;
    for (const button of find("views").children) button.addEventListener("click", () => this.setView(button.dataset.view));
    for (const id of ["low", "high"]) find(id).addEventListener("input", () => this.moveWindow(id));
    find("reset-window").addEventListener("click", () => this.resetWindow());
    find("radiological").addEventListener("change", () => this.setRadiological(find("radiological").checked));
    find("screenshot").addEventListener("click", () => this.saveScreenshot());
    find("zoom-in").addEventListener("click", () => viewer.zoom(1.25));
    find("zoom-out").addEventListener("click", () => viewer.zoom(0.8));
    find("outline").addEventListener("change", () => viewer.setOutlined(find("outline").checked));
    find("channel").addEventListener("change", () => viewer.setChannel(Number(find("channel").value)));
    this.setRadiological(true);
  }

  /** Set the controls to a scan that was just loaded. */
  scanShown(name) {
    this.name = name.replace(/\.(nii|nii\.gz|nrrd|zip)$/i, "");
    find("empty").hidden = true;
    find("display").disabled = false;
    find("screenshot").disabled = false;
    const { least, greatest } = this.viewer.window;
    for (const id of ["low", "high"]) {
      const slider = find(id);
      [slider.min, slider.max, slider.step] = [least, greatest, (greatest - least) / 500 || 1];
    }
    const count = this.viewer.channels;
    find("channel-field").hidden = count < 2;
    fill(find("channel"), Array.from({ length: count }, (_, index) => make("option", { value: index }, `${index + 1}`)));
    this.showWindow();
  }

  /** Set the controls to no scan. */
  scanGone() {
    find("empty").hidden = false;
    find("display").disabled = true;
    find("screenshot").disabled = true;
    find("readout").textContent = "";
  }

  showWindow() {
    const { low, high } = this.viewer.window;
    for (const [id, value] of [["low", low], ["high", high]]) {
      find(id).value = value;
      find(`${id}-value`).textContent = number(value);
    }
  }

  moveWindow(moved) {
    let [low, high] = [Number(find("low").value), Number(find("high").value)];
    if (low > high) [low, high] = moved === "low" ? [low, low] : [high, high];
    this.viewer.setWindow(low, high);
    this.showWindow();
  }

  resetWindow() {
    this.viewer.resetWindow();
    this.showWindow();
  }

  setView(name) {
    for (const button of find("views").children) button.setAttribute("aria-pressed", button.dataset.view === name);
    this.viewer.setView(name);
  }

  setRadiological(on) {
    find("radiological").checked = on;
    find("convention").textContent = CONVENTIONS[on];
    this.viewer.nv.opts.isRadiologicalConvention = on;
    if (this.viewer.hasScan) this.viewer.setRadiological(on);
  }

  /** Say where the crosshair is; `under` is what the overlays have there. */
  showLocation({ mm, voxel, value }, under) {
    const place = mm.map((at, axis) => `${LETTERS[axis][at < 0 ? 1 : 0]} ${Math.abs(at).toFixed(1)}`).join("  ");
    const parts = [`${place} mm`, `voxel ${voxel.join(", ")}`, `value ${value === null ? "–" : number(value)}`];
    find("readout").textContent = [...parts, ...under].join("  ·  ");
  }

  async saveScreenshot() {
    if (!this.viewer.hasScan) return;
    const address = URL.createObjectURL(await this.viewer.picture());
    make("a", { href: address, download: `${this.name}.png` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  }

  /** Answer a key that was pressed in the viewer; returns whether it means something. */
  key(event) {
    const views = { 1: "all", 2: "axial", 3: "coronal", 4: "sagittal", 5: "render" };
    const moves = {
      ArrowLeft: [-1, 0, 0], ArrowRight: [1, 0, 0], ArrowUp: [0, 1, 0], ArrowDown: [0, -1, 0],
      PageUp: [0, 0, 1], PageDown: [0, 0, -1],
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return false;
    if (event.key in moves) {
      const radiological = find("radiological").checked && event.key.match(/Left|Right/) ? -1 : 1;
      this.viewer.move(...moves[event.key].map((step) => step * radiological * (event.shiftKey ? 5 : 1)));
    } else if (event.key in views) this.setView(views[event.key]);
    else if (event.key === "+") this.viewer.zoom(1.25);
    else if (event.key === "-") this.viewer.zoom(0.8);
    else if (event.key === "0") this.viewer.zoom(0);
    else if (event.key === "s") this.saveScreenshot();
    else if (event.key === "r") this.setRadiological(!find("radiological").checked);
    else if (event.key === "o") find("outline").click();
    else return false;
    return true;
  }
}

/** Send keys that are pressed in the viewer to the first of these that knows them, and none to NiiVue. */
export function listen(frame, ...answers) {
  frame.addEventListener("keydown", (event) => {
    if (event.key === "Tab" || event.key === "Escape" || event.key === "?") return;
    event.stopPropagation();
    if (answers.some((answer) => answer(event))) event.preventDefault();
  }, { capture: true });
  frame.addEventListener("keyup", (event) => event.stopPropagation(), { capture: true });
}

/** What the help dialog says about the viewer. */
export const VIEWER_HELP = [
  ["Keys below", "work while the viewer has the focus: click into it, or reach it with Tab"],
  ["← → ↑ ↓", "Move the crosshair in the axial plane, as seen; with Shift five voxels"],
  ["Page Up, Page Down", "Move it up and down"],
  ["1 2 3 4 5", "All, axial, coronal, sagittal, 3D"],
  ["+ − 0", "Zoom in, out, and back"],
  ["r", "Radiological or neurological view"],
  ["o", "Outline or filled"],
  ["s", "Screenshot"],
  ["Wheel, or pinch", "Scroll through slices"],
  ["Drag, right button", "Contrast"],
  ["Drag, Shift or middle button", "Move the picture"],
  ["Drag in 3D", "Rotate"],
];

/** Write a number of an image with few digits. */
export function number(value) {
  return Math.abs(value) >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
}
