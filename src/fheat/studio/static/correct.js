// The panel that corrects a mask: brush, class, size, erase, undo, discard, and save as a new label.

import { Refusal, upload } from "./api.js";
import { Brush } from "./brush.js";
import { find, fill, make } from "./dom.js";
import { attempt, clearError } from "./page.js";

export class Correction {
  /** `onChange` is called when the drawing begins, changes and ends. */
  constructor(viewer, onChange) {
    this.brush = new Brush(viewer, (action) => {
      this.unsaved ||= action === "draw";
      onChange();
    });
    this.onChange = onChange;
    this.unsaved = false;
    this.active = false;
    this.erasing = false;
    find("brush-on").addEventListener("click", () => attempt(() => this.toggle()));
    find("brush-class").addEventListener("change", () => this.choose(false));
    find("brush-size").addEventListener("input", () => this.choose(this.erasing));
    find("brush-erase").addEventListener("click", () => this.choose(!this.erasing));
    find("brush-undo").addEventListener("click", () => this.brush.undo());
    find("brush-discard").addEventListener("click", () => this.discard());
    find("brush-save").addEventListener("click", () => attempt(() => this.save()));
  }

  /** Get ready for the mask of a job. */
  resultShown(job, mask, entries) {
    this.discard();
    Object.assign(this, { job, mask, entries });
    fill(find("brush-class"), entries.map(({ name, value }) => make("option", { value }, name)));
    find("brush").disabled = false;
  }

  /** There is no mask any more. */
  resultGone() {
    this.discard();
    find("brush").disabled = true;
  }

  get loaded() {
    return this.brush.loaded;
  }

  /** Throw a `Refusal` where strokes would be lost. */
  checkSaved() {
    if (this.unsaved) throw new Refusal("the corrected mask is not saved", "save it as a new label, or discard it");
  }

  /** Begin to draw, or stop it; what was drawn stays. */
  async toggle() {
    if (!this.active && !this.loaded) await this.brush.load(this.mask, this.entries, 0.5);
    this.active = !this.active;
    find("brush-on").setAttribute("aria-pressed", this.active);
    find("brush-on").textContent = this.active ? "Stop drawing" : "Draw with the brush";
    find("brush-tools").hidden = !this.active;
    this.choose(false);
    this.onChange();
  }

  /** Give the mouse the chosen class, or the eraser. */
  choose(erasing) {
    this.erasing = erasing;
    find("brush-erase").setAttribute("aria-pressed", erasing);
    const size = Number(find("brush-size").value);
    find("brush-size-value").textContent = `${size} ${size === 1 ? "voxel" : "voxels"}`;
    this.brush.use(this.active ? (erasing ? 0 : Number(find("brush-class").value)) : null, size);
  }

  /** Forget what was drawn. */
  discard() {
    this.brush.close();
    this.active = false;
    this.unsaved = false;
    find("brush-on").setAttribute("aria-pressed", false);
    find("brush-on").textContent = "Draw with the brush";
    find("brush-tools").hidden = true;
    find("brush-note").textContent = "The model's mask is kept; the correction becomes a label of its own.";
    this.onChange();
  }

  async save() {
    const answer = await upload(`/api/jobs/${this.job}/corrected`, await this.brush.save());
    this.unsaved = false;
    clearError();
    fill(
      find("brush-note"),
      `Saved${answer.saved ? ` as ${answer.saved}` : ""}: ${answer.changed_voxels.toLocaleString("en")} voxels differ from the model's mask. `,
      make("a", { href: answer.label, download: true }, "Download the label"),
    );
  }

  /** Answer a key that was pressed in the viewer. */
  key(event) {
    if (find("brush").disabled) return false;
    if ((event.ctrlKey || event.metaKey) && event.key === "z") this.active && this.brush.undo();
    else if (event.ctrlKey || event.metaKey || event.altKey) return false;
    else if (event.key === "b") attempt(() => this.toggle());
    else if (event.key === "e" && this.active) this.choose(!this.erasing);
    else if ((event.key === "[" || event.key === "]") && this.active) {
      find("brush-size")[event.key === "[" ? "stepDown" : "stepUp"]();
      this.choose(this.erasing);
    } else return false;
    return true;
  }
}

export const BRUSH_HELP = [
  ["b", "Brush on and off"],
  ["e", "Erase or draw"],
  ["[ ]", "Smaller and larger brush"],
  ["Ctrl + Z", "Undo a stroke"],
];
