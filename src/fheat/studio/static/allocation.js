// The page of a model's allocation: gates, response curves, and what retiring closed gates saves.

import { ask, Refusal } from "./api.js";
import { fill, find, make, tab, table } from "./dom.js";
import { describe, follow } from "./jobs.js";
import { attempt, begin, clearError } from "./page.js";
import { Plot } from "./plot.js";

const responses = new Plot({ title: "Response over frequency", across: "frequency r (radians)", range: [0, 1.02] });
let shown = null;
let times = null;

async function main() {
  begin([["Pointer over the plot", "Read off the responses there"]]);
  find("responses").append(responses.element);
  find("model").addEventListener("change", () => attempt(showModel));
  find("measure").addEventListener("click", () => attempt(measure));
  find("retire").addEventListener("change", () => {
    showCost();
    showTimes();
  });
  const scan = tab.get("scan");
  find("scan-name").textContent = scan
    ? `${scan.name}: one window of it, the median of several passes.`
    : "No scan is loaded: load one on the page Segment.";
  await attempt(async () => {
    const models = await ask("/api/models");
    fill(find("model"), models.map(({ id, title }) => make("option", { value: id }, title ? `${id}: ${title}` : id)));
    if (models.some(({ id }) => id === tab.get("model"))) find("model").value = tab.get("model");
    await showModel();
  });
}

async function showModel() {
  const id = find("model").value;
  if (!id) return;
  tab.set("model", id);
  clearError();
  times = null;
  find("times").replaceChildren();
  find("progress").textContent = "";
  find("measure").disabled = true;
  shown = await ask(`/api/models/${encodeURIComponent(id)}/allocation`);
  find("measure").disabled = !tab.get("scan");
  const rows = shown.gates.map(({ site, D, alpha, open }) => [
    site, D.toFixed(3), alpha.toFixed(3), make("span", { class: open ? "open" : "closed" }, open ? "open" : "closed"),
  ]);
  fill(find("gates"), table(`Gates of ${id}`, ["Site", "D", "alpha", "State"], rows));
  showResponses(shown.gates);
  showCost();
}

/** Draw a line for each open gate, and one for all closed ones, which respond alike. */
function showResponses(gates) {
  const lines = gates.filter(({ open }) => open).map(({ site, response }) => ({ name: site, points: response }));
  const closed = gates.filter(({ open }) => !open);
  if (closed.length) {
    const name = `${closed.length === 1 ? closed[0].site : `${closed.length} gates`} closed`;
    lines.push({ name, points: closed[0].response, colour: "#8a979f" });
  }
  responses.show(lines);
}

/** Show multiply-adds with and without the transforms of closed gates; the switch says which of both is looked at. */
function showCost() {
  if (!shown) return;
  const retired = find("retire").checked;
  const { all_open: open, retired: after } = shown.cost;
  const saved = 100 * (1 - after.macs / open.macs);
  bars(find("cost"), [
    ["All transforms kept", open.macs, `${(open.macs / 1e9).toFixed(3)} G multiply-adds`, !retired],
    ["Closed gates retired", after.macs, `${(after.macs / 1e9).toFixed(3)} G multiply-adds`, retired],
  ]);
  const { counter, shape } = shown.cost;
  find("cost-note").textContent = `Input: ${shape.join(" × ")}. Counter: ${counter}.`;
  const closed = shown.gates.filter((gate) => !gate.open).length;
  find("retire-note").textContent = retired
    ? `${closed} of ${shown.gates.length} gates are closed. Without them ${saved.toFixed(1)} % of the multiply-adds are saved, and the mask is the same. Segmenting always works so.`
    : "Every transform is computed, also those of closed gates, which change nothing.";
}

/** Draw bars: name, value, its text, and whether it is the one that is looked at. */
function bars(element, rows) {
  const most = Math.max(...rows.map(([, value]) => value));
  fill(element, rows.map(([name, value, text, isChosen]) => {
    const bar = make("span", { class: isChosen ? "chosen" : "" });
    bar.style.width = `${(100 * value) / most}%`;
    const title = isChosen ? make("strong", {}, name) : name;
    return make("div", {}, make("div", { class: "said" }, make("span", {}, title), make("span", {}, text)), make("div", { class: "track" }, bar));
  }));
}

async function measure() {
  clearError();
  find("measure").disabled = true;
  try {
    const id = encodeURIComponent(find("model").value);
    const started = await ask(`/api/models/${id}/timing`, { method: "POST", json: { scan: tab.get("scan").scan } });
    const ended = await follow(started.job, (job) => (find("progress").textContent = describe(job)));
    if (ended.state === "failed") throw new Refusal(ended.error.error, ended.error.remedy);
    times = ended.result;
    showTimes();
  } finally {
    find("measure").disabled = false;
  }
}

function showTimes() {
  if (!times) return;
  const { before_seconds: before, after_seconds: after, same_mask: same } = times;
  bars(find("times"), [
    ["Before: transforms kept", before, `${(1000 * before).toFixed(1)} ms`, !find("retire").checked],
    ["After: closed gates retired", after, `${(1000 * after).toFixed(1)} ms`, find("retire").checked],
  ]);
  const change = `${Math.abs(100 * (1 - after / before)).toFixed(1)} % ${after <= before ? "less" : "more"} time per window`;
  find("progress").textContent = `${change}; the masks are ${same ? "identical" : "NOT identical"}.`;
}

main();
