// The page of a dataset: its cases, worst first, each with its label and prediction over the image.

import { ask, bytesOf } from "./api.js";
import { LABEL, ONLY_MASK } from "./colours.js";
import { Display, listen, VIEWER_HELP } from "./display.js";
import { fill, find, make, table } from "./dom.js";
import { attempt, begin, clearError } from "./page.js";
import { buildStage } from "./stage.js";
import { Viewer } from "./viewer.js";

const MOST_CLASSES = 32;
const AGAIN = 3000;

buildStage("Choose a case");
const viewer = new Viewer(find("canvas"), { onLocation: showLocation, onWindow: () => display.showWindow() });
const display = new Display(viewer);
let cases = [];
let current = -1;
let loading = 0;

async function main() {
  begin([...VIEWER_HELP, ["n, p", "Next and previous case"]]);
  listen(find("frame"), key, (event) => display.key(event));
  for (const id of ["show-label", "show-prediction", "opacity"]) find(id).addEventListener("input", showOverlays);
  find("label-swatch").style.backgroundColor = LABEL;
  find("prediction-swatch").style.backgroundColor = ONLY_MASK;
  find("next").addEventListener("click", () => attempt(() => show(current + 1)));
  find("previous").addEventListener("click", () => attempt(() => show(current - 1)));
  viewer.setOutlined(true);
  await attempt(() => viewer.start());
  await attempt(async () => {
    await fetchCases();
    if (cases.length) await show(0);
  });
}

/** Get the cases. The service scores them in the background: while some are not, it is asked again. */
async function fetchCases() {
  const before = cases[current]?.case;
  cases = await ask("/api/dataset").catch((error) => {
    if (error.status !== 404) throw error;
    find("cases-note").textContent = `${error.message}: ${error.remedy}`;
    return null;
  }) ?? [];
  current = cases.findIndex((item) => item.case === before);
  showList();
  if (current >= 0) mark();
  if (cases.length === 0) return;
  const waiting = cases.some((item) => item.label && item.prediction && !item.dice && !item.error);
  find("cases-note").textContent = waiting ? "Scores are being computed." : "";
  if (waiting) setTimeout(() => attempt(fetchCases), AGAIN);
}

function showList() {
  fill(find("cases"), cases.map((item, index) => {
    const scores = item.dice ? Object.values(item.dice) : [];
    const mean = scores.length ? (scores.reduce((sum, value) => sum + value, 0) / scores.length).toFixed(3) : "–";
    const missing = [item.label ? null : "no label", item.prediction ? null : "no prediction"].filter(Boolean).join(", ");
    return make("li", {}, make(
      "button",
      { type: "button", onclick: () => attempt(() => show(index)) },
      make("span", { class: "what" }, item.case, missing ? make("small", {}, missing) : null),
      make("span", { class: "amount", "aria-label": `Dice ${mean}` }, mean),
    ));
  }));
}

async function show(index) {
  if (index < 0 || index >= cases.length) return;
  const turn = ++loading; // a later click wins over a slow answer
  const item = cases[index];
  current = index;
  clearError();
  mark();
  const [image, ...overlays] = await Promise.all(
    [item.image, item.label, item.prediction].map((address) => (address ? bytesOf(address) : null)),
  );
  if (turn !== loading) return;
  await viewer.showScan(image, "scan.nii.gz");
  for (const [at, name] of ["label", "prediction"].entries()) {
    if (overlays[at]) await viewer.lay(name, overlays[at], { entries: oneColour(name === "label" ? LABEL : ONLY_MASK), opacity: 0.5 });
    find(`show-${name}`).disabled = !overlays[at];
  }
  const centred = ["label", "prediction"].find((name) => viewer.has(name));
  if (centred) viewer.centre(centred);
  find("overlay").disabled = false;
  display.scanShown(item.case);
  showOverlays();
}

/** Mark the current case in the list, and say how good its prediction is. */
function mark() {
  const item = cases[current];
  [...find("cases").children].forEach((row, at) => {
    if (at === current) row.firstElementChild.setAttribute("aria-current", "true");
    else row.firstElementChild.removeAttribute("aria-current");
  });
  find("cases").children[current].scrollIntoView({ block: "nearest" });
  find("previous").disabled = current === 0;
  find("next").disabled = current === cases.length - 1;
  find("case-title").textContent = item.case;
  const rows = Object.entries(item.dice ?? {}).map(([name, value]) => [name.replaceAll("_", " "), value === null ? "–" : value.toFixed(3)]);
  const without = item.error ?? (item.label && item.prediction ? "Not scored yet." : "Not scored: it has no label or no prediction.");
  fill(find("scores"), rows.length ? table("Prediction against label", ["Class", "Dice"], rows) : make("p", { class: "note" }, without));
}

/** All classes in one colour: here label and prediction are told apart, not classes. */
function oneColour(colour) {
  return Array.from({ length: MOST_CLASSES }, (_, index) => ({ name: `${index + 1}`, value: index + 1, colour, shown: true }));
}

function showOverlays() {
  const opacity = Number(find("opacity").value);
  find("opacity-value").textContent = `${Math.round(opacity * 100)} %`;
  for (const name of ["label", "prediction"]) viewer.setOpacity(name, find(`show-${name}`).checked ? opacity : 0);
}

function showLocation(location) {
  const under = ["label", "prediction"].filter((name) => viewer.has(name)).map((name) => `${name} ${location.at(name)}`);
  display.showLocation(location, under);
}

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return false;
  if (event.key === "n") attempt(() => show(current + 1));
  else if (event.key === "p") attempt(() => show(current - 1));
  else return false;
  return true;
}

main();
