// The page that segments a scan: upload, model, job, overlays, comparison and correction.

import { ask, bytesOf, Refusal, upload } from "./api.js";
import { entriesOf } from "./colours.js";
import { compareWith } from "./compare.js";
import { BRUSH_HELP, Correction } from "./correct.js";
import { Display, listen, VIEWER_HELP } from "./display.js";
import { fill, find, make, tab } from "./dom.js";
import { describe, duration, follow } from "./jobs.js";
import { showLegend } from "./legend.js";
import { attempt, begin, clearError } from "./page.js";
import { buildStage } from "./stage.js";
import { Viewer } from "./viewer.js";

buildStage("No scan yet");
export const viewer = new Viewer(find("canvas"), { onLocation: showLocation, onWindow: () => display.showWindow() });
const display = new Display(viewer);
export const correction = new Correction(viewer, showOverlays);
const state = { scan: null, models: [], job: null, busy: false, entries: [], volumes: {} };

async function main() {
  begin([...VIEWER_HELP, ...BRUSH_HELP]);
  listen(find("frame"), (event) => correction.key(event), (event) => display.key(event));
  takeFiles(find("drop"), find("file"), find("choose"), loadScan);
  takeFiles(find("compare"), find("reference"), find("choose-reference"), compare);
  find("model").addEventListener("change", showModel);
  addEventListener("beforeunload", (event) => correction.unsaved && event.preventDefault());
  find("start").addEventListener("click", () => attempt(segment));
  find("cancel").addEventListener("click", () => attempt(() => ask(`/api/jobs/${state.job}`, { method: "DELETE" })));
  for (const id of ["show-mask", "show-uncertainty", "show-difference", "opacity"]) {
    find(id).addEventListener("input", showOverlays);
  }
  await attempt(loadModels);
  await attempt(() => viewer.start());
  await attempt(restore);
}

/** Let files be dropped on an element, or chosen with a button. */
function takeFiles(zone, input, button, take) {
  button.addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    if (input.files.length) attempt(() => take(input.files[0]));
    input.value = "";
  });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    zone.addEventListener(kind, (event) => {
      event.preventDefault();
      zone.classList.toggle("over", kind === "dragover");
      if (kind === "drop" && event.dataTransfer.files.length && !zone.disabled) attempt(() => take(event.dataTransfer.files[0]));
    });
  }
}

async function loadModels() {
  state.models = await ask("/api/models");
  const groups = { folder: "Model folders", run: "Runs", zoo: "Zoo" };
  fill(
    find("model"),
    Object.entries(groups).map(([source, name]) => {
      const options = state.models.filter((model) => model.source === source);
      const made = options.map(({ id, title }) => make("option", { value: id }, title ? `${id}: ${title}` : id));
      return options.length ? make("optgroup", { label: name }, made) : null;
    }),
  );
  const chosen = tab.get("model");
  if (state.models.some(({ id }) => id === chosen)) find("model").value = chosen;
  showModel();
}

function showModel() {
  const model = state.models.find(({ id }) => id === find("model").value);
  if (!model) return;
  tab.set("model", model.id);
  const names = entriesOf(model.classes).map(({ name }) => name).join(", ");
  const input = [model.modality, model.channels > 1 ? `${model.channels} channels` : null].filter(Boolean).join(", ");
  find("model-facts").textContent = `Finds: ${names}.${input ? ` Made for: ${input}.` : ""}`;
  enable();
}

async function loadScan(file) {
  if (state.busy) throw new Refusal("a segmentation is running", "wait for its end, or cancel it");
  correction.checkSaved();
  clearError();
  const facts = find("scan-facts");
  facts.hidden = false;
  const bar = make("progress", { max: 1, "aria-label": "Upload" });
  fill(facts, make("p", { role: "status" }, `Sending ${file.name}`), bar);
  try {
    const scan = await upload(`/api/scans?name=${encodeURIComponent(file.name)}`, file, (share) => (bar.value = share));
    await showScan(scan);
  } catch (error) {
    state.scan ? describeScan() : (facts.hidden = true);
    throw error;
  }
}

async function showScan(scan) {
  const image = await bytesOf(`/api/scans/${scan.scan}/image.nii.gz`);
  forgetResult();
  await viewer.showScan(image, "scan.nii.gz");
  state.scan = scan;
  tab.set("scan", scan);
  display.scanShown(scan.name);
  describeScan();
  enable();
}

function describeScan() {
  const { scan } = state;
  const kinds = { nifti: "NIfTI", dicom: "DICOM series", nrrd: "NRRD" };
  const kind = scan.channels > 1 ? `${kinds[scan.kind]}, ${scan.channels} channels` : kinds[scan.kind];
  const spacing = scan.spacing.map((value) => Number(value.toFixed(3))).join(" × ");
  const remove = make("button", { type: "button", class: "quiet", onclick: () => attempt(removeScan) }, "Remove the scan");
  find("scan-facts").hidden = false;
  find("drop").classList.add("again");
  find("choose").textContent = "Choose another file";
  fill(
    find("scan-facts"),
    make("p", { class: "name" }, scan.name),
    make("p", { class: "note" }, `${kind}, ${scan.orientation}, ${scan.shape.join(" × ")} voxels of ${spacing} mm`),
    remove,
  );
}

async function removeScan() {
  correction.checkSaved();
  await ask(`/api/scans/${state.scan.scan}`, { method: "DELETE" });
  forgetResult();
  viewer.clear();
  state.scan = null;
  tab.set("scan", null);
  find("scan-facts").hidden = true;
  find("drop").classList.remove("again");
  find("choose").textContent = "Choose a file";
  display.scanGone();
  enable();
}

function enable() {
  find("start").disabled = state.busy || !state.scan || !find("model").value;
}

async function segment() {
  correction.checkSaved();
  clearError();
  const job = await ask("/api/jobs", {
    method: "POST",
    json: {
      scan: state.scan.scan,
      model: find("model").value,
      uncertainty: find("want-uncertainty").checked,
      preset: find("want-fast").checked ? "fast" : null,
      largest_component: find("want-largest").checked,
    },
  });
  tab.set("job", job.job);
  await watch(job);
}

async function watch(job) {
  state.job = job.job;
  state.busy = true;
  enable();
  find("progress").hidden = false;
  showProgress(job);
  try {
    const ended = await follow(job.job, showProgress);
    if (ended.state === "failed") throw new Refusal(ended.error.error, ended.error.remedy);
    if (ended.state === "done" && ended.scan === state.scan?.scan) await showResult(ended);
    else tab.set("job", null);
  } finally {
    state.busy = false;
    find("progress").hidden = true;
    enable();
  }
}

function showProgress(job) {
  const bar = find("bar");
  if (job.of) [bar.max, bar.value] = [job.of, job.done];
  else bar.removeAttribute("value");
  const text = describe(job);
  if (find("progress-text").textContent !== text) find("progress-text").textContent = text;
}

async function showResult({ job, result }) {
  const mask = await bytesOf(result.mask);
  forgetResult();
  state.job = job;
  state.entries = entriesOf(result.classes);
  state.volumes = result.volumes_ml;
  if (result.uncertainty) await viewer.lay("uncertainty", await bytesOf(result.uncertainty), { opacity: 0 });
  await viewer.lay("mask", mask, { entries: state.entries, opacity: 0.5 }); // last, so that its outline is on top
  viewer.centre("mask");
  find("result").hidden = false;
  find("overlay").disabled = find("compare").disabled = false;
  find("show-uncertainty").disabled = !result.uncertainty;
  fill(
    find("result-facts"),
    `Segmented in ${duration(result.seconds)}.`,
    result.warnings.map((text) => make("p", { class: "warning" }, text)),
  );
  const links = [make("a", { class: "button", href: result.mask, download: true }, "NIfTI")];
  if (state.scan.kind === "dicom") {
    links.push(make("a", { class: "button", href: `/api/jobs/${job}/mask.dcm`, download: true }, "DICOM SEG"));
  }
  if (result.uncertainty) links.push(make("a", { class: "button", href: result.uncertainty, download: true }, "Uncertainty"));
  fill(find("downloads"), make("span", { class: "note" }, "Download"), links);
  correction.resultShown(job, mask, state.entries);
}

function forgetResult() {
  correction.resultGone();
  for (const name of ["mask", "uncertainty", "difference"]) viewer.lift(name);
  find("result").hidden = true;
  find("overlay").disabled = find("compare").disabled = true;
  for (const id of ["show-uncertainty", "show-difference"]) {
    find(id).checked = false;
    find(id).disabled = true;
  }
  find("show-mask").checked = true;
  find("scores").replaceChildren();
}

/** Show the overlays that are ticked; a correction takes the place of the mask. */
function showOverlays() {
  const opacity = Number(find("opacity").value);
  find("opacity-value").textContent = `${Math.round(opacity * 100)} %`;
  const shown = (name) => (find(`show-${name}`).checked ? opacity : 0);
  viewer.setOpacity("mask", correction.loaded ? 0 : shown("mask"));
  viewer.setOpacity("uncertainty", shown("uncertainty"));
  viewer.setOpacity("difference", shown("difference"));
  if (correction.loaded) correction.brush.setOpacity(shown("mask"));
  const corrected = correction.loaded ? correction.brush.volumes() : null;
  showLegend(find("legend"), state.entries, state.volumes, corrected, () => {
    viewer.paint("mask", state.entries);
    if (correction.loaded) correction.brush.paint(state.entries);
  });
}

function showLocation(location) {
  const label = correction.loaded ? correction.brush.valueAt(location.ras) : location.at("mask");
  const under = [];
  if (label !== null) under.push(state.entries.find(({ value }) => value === label)?.name ?? "background");
  const uncertainty = location.at("uncertainty");
  if (uncertainty !== null) under.push(`uncertainty ${uncertainty.toFixed(2)}`);
  display.showLocation(location, under);
}

async function compare(file) {
  clearError();
  await compareWith(file, state.job, viewer);
  find("show-difference").disabled = false;
  find("show-difference").checked = true;
  find("show-mask").checked = false;
  showOverlays();
}

/** Show again what this tab had loaded, unless the service has forgotten it. */
async function restore() {
  const [scan, job] = [tab.get("scan"), tab.get("job")];
  if (!scan) return;
  try {
    await showScan(scan);
    if (job !== null) await watch(await ask(`/api/jobs/${job}`));
  } catch (error) {
    if (error.status !== 404) throw error;
    tab.set(state.scan ? "job" : "scan", null);
  }
}

main();
