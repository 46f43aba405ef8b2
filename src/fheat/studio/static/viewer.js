// The viewer: NiiVue with one scan and named overlays on it. Whatever is known about NiiVue stays in this file and
// in brush.js.

import { Refusal } from "./api.js";
import { lookup } from "./colours.js";
import { edgesOf, middleOf, voxelAt } from "./geometry.js";

const { Niivue, NVImage, DRAG_MODE, SHOW_RENDER, SLICE_TYPE } = globalThis.niivue;

export const VIEWS = {
  all: SLICE_TYPE.MULTIPLANAR,
  axial: SLICE_TYPE.AXIAL,
  coronal: SLICE_TYPE.CORONAL,
  sagittal: SLICE_TYPE.SAGITTAL,
  render: SLICE_TYPE.RENDER,
};
const OPTIONS = {
  isRadiologicalConvention: true,
  multiplanarShowRender: SHOW_RENDER.ALWAYS,
  multiplanarPadPixels: 14,
  isOrientCube: true,
  dragAndDropEnabled: false,
  isForceMouseClickToVoxelCenters: true,
  showLegend: false,
  show3Dcrosshair: true,
  showAllOrientationMarkers: true,
  crosshairColor: [1, 0.85, 0.3, 0.9],
  crosshairWidth: 0.4,
  crosshairGap: 8,
  fontColor: [1, 0.87, 0.25, 1],
  fontMinPx: 17,
  loadingText: "",
  logLevel: "error",
  maxDrawUndoBitmaps: 32,
  mouseEventConfig: {
    leftButton: { primary: DRAG_MODE.crosshair, withShift: DRAG_MODE.pan },
    rightButton: DRAG_MODE.windowing,
    centerButton: DRAG_MODE.pan,
  },
};
const SLICES_IN_3D = -1; // NiiVue's number for a 3D view of the three planes with the overlays around them

export class Viewer {
  /** `onLocation` gets what lies under the crosshair, `onWindow` the grey levels that are black and white. */
  constructor(canvas, { onLocation = () => {}, onWindow = () => {} } = {}) {
    this.canvas = canvas;
    this.nv = new Niivue(OPTIONS);
    this.nv.onLocationChange = (location) => onLocation(this.describe(location));
    this.nv.onIntensityChange = () => onWindow(this.window);
    canvas.addEventListener("mouseleave", () => this.nv.uiData.mousedown && this.nv.mouseUpListener());
    canvas.addEventListener("mouseup", () => setTimeout(() => this.hasScan && onWindow(this.window)));
    this.overlays = new Map();
    this.outlined = false;
    this.frame = null;
  }

  /** Attach to the canvas; a browser without WebGL 2 is told apart from other trouble. */
  async start() {
    if (!document.createElement("canvas").getContext("webgl2")) {
      throw new Refusal("this browser cannot show scans: it has no WebGL 2", "use a current Firefox, Chrome or Edge");
    }
    await this.nv.attachToCanvas(this.canvas);
    await this.nv.setVolumeRenderIllumination(SLICES_IN_3D);
  }

  get hasScan() {
    return this.nv.volumes.length > 0;
  }

  get scan() {
    return this.nv.volumes[0];
  }

  /** Voxels along the three axes of the file. */
  get shape() {
    return sizeOf(this.scan);
  }

  get channels() {
    return this.scan.nFrame4D;
  }

  /** Replace everything by a scan. */
  async showScan(buffer, name) {
    const scan = await read(buffer, name, { colormap: "gray" });
    this.clear();
    this.nv.addVolume(scan);
    this.nv.scene.pan2Dxyzmm = [0, 0, 0, 1];
    this.nv.setRenderAzimuthElevation(120, 15);
    this.nv.setScale(1.25);
    this.goTo([0.5, 0.5, 0.5]);
  }

  /** Move the crosshair to the voxel at fractions of the volume, into its middle. */
  goTo(fractions) {
    this.nv.scene.crosshairPos = this.nv.vox2frac(this.nv.frac2vox(fractions));
    this.nv.createOnLocationChange();
    this.nv.drawScene();
  }

  /** Remove the scan and all that lies over it. */
  clear() {
    if (this.nv.drawBitmap) this.nv.closeDrawing();
    for (const volume of [...this.nv.volumes].reverse()) this.nv.removeVolume(volume);
    this.overlays.clear();
  }

  /** Lay a volume over the scan under a name: labels with entries of a legend, or numbers with a colour map. */
  async lay(name, buffer, { entries = null, opacity = 0.5, colormap = "inferno" }) {
    const volume = await read(buffer, `${name}.nii.gz`, entries ? {} : { colormap });
    this.lift(name);
    if (!entries) {
      volume.cal_max = volume.global_max || 1;
      volume.cal_min = 0.05 * volume.cal_max; // what is less is transparent
    }
    this.overlays.set(name, { volume, isLabel: entries !== null, voxels: volume.img, edges: null, opacity });
    this.apply(name);
    this.nv.addVolume(volume);
    if (entries) this.paint(name, entries);
  }

  /** Show labels filled or, in place of them, their edges, which are thin and hence twice as opaque. */
  apply(name) {
    const overlay = this.overlays.get(name);
    const outlined = overlay.isLabel && this.outlined;
    if (outlined) overlay.edges ??= edgesOf(overlay.voxels, sizeOf(overlay.volume));
    overlay.volume.img = outlined ? overlay.edges : overlay.voxels;
    overlay.volume.opacity = outlined ? Math.min(1, 2 * overlay.opacity) : overlay.opacity;
  }

  /** Move the crosshair to the middle of the labels of an overlay. */
  centre(name) {
    const { volume, voxels } = this.overlays.get(name);
    const middle = middleOf(voxels, sizeOf(volume));
    if (middle === null) return;
    const [i, j, k] = middle;
    const mm = volume.hdr.affine.slice(0, 3).map((row) => row[0] * i + row[1] * j + row[2] * k + row[3]);
    this.goTo(this.nv.mm2frac(mm));
  }

  /** Remove an overlay. */
  lift(name) {
    if (this.overlays.has(name)) this.nv.removeVolume(this.overlays.get(name).volume);
    this.overlays.delete(name);
  }

  has(name) {
    return this.overlays.has(name);
  }

  /** Give the labels of an overlay their colours. */
  paint(name, entries) {
    if (!this.overlays.has(name)) return;
    this.overlays.get(name).volume.setColormapLabel(lookup(entries));
    this.refresh();
  }

  /** Set the opacity of an overlay; 0 hides it. */
  setOpacity(name, opacity) {
    if (!this.overlays.has(name)) return;
    this.overlays.get(name).opacity = opacity;
    this.apply(name);
    this.refresh();
  }

  /** Draw labels as outlines, or filled. NiiVue's own outlines would also be drawn around classes that are hidden. */
  setOutlined(on) {
    this.outlined = on;
    for (const name of this.overlays.keys()) this.apply(name);
    this.refresh();
  }

  /** The grey levels that are shown black and white, and those that exist. */
  get window() {
    const { cal_min: low, cal_max: high, global_min: least, global_max: greatest } = this.scan;
    return { low, high, least, greatest };
  }

  setWindow(low, high) {
    this.scan.cal_min = low;
    this.scan.cal_max = Math.max(high, low + Number.EPSILON * Math.abs(low) + 1e-9);
    this.refresh();
  }

  /** Go back to the window that leaves out the darkest and brightest 2 percent. */
  resetWindow() {
    this.setWindow(this.scan.robust_min, this.scan.robust_max);
  }

  setChannel(index) {
    this.nv.setFrame4D(this.scan.id, index);
  }

  setView(name) {
    this.nv.setSliceType(VIEWS[name]);
  }

  setRadiological(on) {
    this.nv.setRadiologicalConvention(on);
    this.nv.drawScene();
  }

  /** Move the crosshair by voxels to the right, to the front and up. */
  move(right, front, up) {
    if (this.hasScan) this.nv.moveCrosshairInVox(right, front, up);
  }

  /** Zoom around the crosshair; 0 shows everything again. */
  zoom(factor) {
    const [x, y, z, scale] = this.nv.scene.pan2Dxyzmm;
    if (factor === 0) return this.nv.setPan2Dxyzmm([0, 0, 0, 1]);
    const next = Math.min(Math.max(scale * factor, 0.5), 16);
    const mm = this.nv.frac2mm(this.nv.scene.crosshairPos);
    const change = next / scale - 1;
    return this.nv.setPan2Dxyzmm([x - change * mm[0], y - change * mm[1], z - change * mm[2], next]);
  }

  /** Return the picture as a PNG. The canvas is blank except in the task that draws it, so both happen here. */
  picture() {
    this.nv.drawScene();
    return new Promise((resolve) => this.canvas.toBlob(resolve, "image/png"));
  }

  /** Draw soon: several changes in one frame of the screen cost one update of the textures. */
  refresh() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      if (this.hasScan) this.nv.updateGLVolume();
    });
  }

  /**
   * Say where the crosshair is and what lies there. NiiVue's `vox` counts in RAS order; the voxel of the file comes from
   * the middle of that one, through the affine, so that it is the one which the brush would change.
   */
  describe(location) {
    const mm = Array.from(location.mm).slice(0, 3);
    const middle = Array.from(this.nv.frac2mm(this.nv.vox2frac(location.vox), 0, true)).slice(0, 3);
    const at = (name) => {
      if (!this.overlays.has(name)) return null;
      const { volume, voxels } = this.overlays.get(name);
      const [nx, ny] = sizeOf(volume);
      const [x, y, z] = voxelAt(volume.hdr.affine, middle);
      return voxels[x + nx * (y + ny * z)] ?? null;
    };
    const voxel = voxelAt(this.scan.hdr.affine, middle);
    return { mm, voxel, ras: location.vox, value: location.values[0]?.value ?? null, at };
  }
}

/** Read a NIfTI volume from memory; nothing is fetched. */
export function read(buffer, name, settings = {}) {
  return NVImage.loadFromUrl({ url: name, name, buffer, ...settings });
}

/** Return the voxels of a volume along the three axes of its file. */
function sizeOf(volume) {
  return Array.from(volume.hdr.dims.slice(1, 4));
}
