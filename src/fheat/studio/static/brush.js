// Correcting a mask by hand: NiiVue's drawing, loaded from the mask and sent to the service as a new label.

import { Refusal } from "./api.js";
import { lookup } from "./colours.js";
import { columnsOf, determinant } from "./geometry.js";
import { read } from "./viewer.js";

const { cmapper } = globalThis.niivue;

export class Brush {
  /** `onChange` is called after each stroke, undo and load, with NiiVue's word for it: `draw`, `undo` or `load`. */
  constructor(viewer, onChange = () => {}) {
    this.viewer = viewer;
    this.nv = viewer.nv;
    this.nv.onDrawingChanged = (action) => action !== "close" && onChange(action);
  }

  /** Whether a mask is loaded for correction. */
  get loaded() {
    return Boolean(this.nv.drawBitmap);
  }

  /** Load a mask; it must lie on the grid of the shown scan. */
  async load(buffer, entries, opacity) {
    const mask = await read(buffer, "mask.nii.gz");
    this.paint(entries);
    this.nv.setDrawOpacity(opacity);
    if (!this.nv.loadDrawing(mask)) {
      const reason = `the mask has ${mask.hdr.dims.slice(1, 4).join(" × ")} voxels, the shown scan ${this.viewer.shape.join(" × ")}`;
      throw new Refusal(reason, "a scan this large is shown coarser than it is: correct its mask in another program");
    }
  }

  /** Give the classes their colours. */
  paint(entries) {
    this.nv.drawLut = cmapper.makeDrawLut(lookup(entries));
    this.nv.updateGLVolume();
  }

  /** Let the mouse draw this class, 0 to erase, with a square of this many voxels a side; or let it draw nothing. */
  use(value, size) {
    this.nv.setDrawingEnabled(value !== null);
    if (value === null) return;
    this.nv.setPenValue(value, false);
    this.nv.opts.penSize = size;
  }

  undo() {
    this.nv.drawUndo();
  }

  setOpacity(opacity) {
    this.nv.setDrawOpacity(opacity);
  }

  /** Forget the correction. */
  close() {
    this.use(null);
    if (this.loaded) this.nv.closeDrawing();
  }

  /** Return the label at a voxel, which is counted in RAS order as NiiVue keeps its drawing. */
  valueAt([x, y, z]) {
    const [, nx, ny] = this.viewer.scan.dimsRAS;
    return this.nv.drawBitmap[x + nx * (y + ny * z)] ?? null;
  }

  /** Return the volume of each class in ml, by value. */
  volumes() {
    const counts = new Array(256).fill(0);
    for (const value of this.nv.drawBitmap) counts[value] += 1;
    const millilitres = Math.abs(determinant(columnsOf(this.viewer.scan.hdr.affine))) / 1000;
    return counts.map((count) => count * millilitres);
  }

  /** Return the corrected mask as a compressed NIfTI file. Its header is the scan's: the service keeps the voxels only. */
  async save() {
    return this.viewer.scan.saveToUint8Array("label.nii.gz", this.nv.drawBitmap);
  }
}
