// The page of runs: curves of losses and Dice and the gates of several runs, which grow while a training is in progress.

import { ask } from "./api.js";
import { fill, find, make } from "./dom.js";
import { begin, clearError, showError } from "./page.js";
import { colourOf, Plot } from "./plot.js";

const EVERY = 3000;
const SHOWN_FIRST = 2;

/** What is known of each run, by id: its line in the list, its points, and the number of its colour. */
const runs = new Map();
const chosen = new Set();
const dice = new Plot({ title: "Validation Dice" });
const losses = new Plot({ title: "Loss" });
const gates = new Map();
let failing = false;

function main() {
  begin([["Pointer over a plot", "Read off the values there"]]);
  fill(find("curves"), dice.element, losses.element);
  find("loss").addEventListener("change", draw);
  find("log").addEventListener("change", () => {
    losses.logarithmic = find("log").checked;
    draw();
  });
  update();
}

/** Ask for what is new, draw it, and do so again after a while; a hidden page asks for nothing. */
async function update() {
  try {
    if (!document.hidden) {
      await fetchList();
      await Promise.all([...chosen].map(fetchPoints));
      draw();
      if (failing) clearError();
      failing = false;
    }
  } catch (error) {
    if (!failing) showError(error);
    failing = true;
  }
  setTimeout(update, EVERY);
}

async function fetchList() {
  const listed = await ask("/api/runs").catch(orNothing);
  if (listed === null) return;
  const isFirst = runs.size === 0;
  for (const facts of listed) {
    const run = runs.get(facts.id) ?? { points: [], colour: colourOf(runs.size) };
    runs.set(facts.id, { ...run, facts });
  }
  if (isFirst) {
    const order = [...listed].sort((a, b) => (b.state === "running") - (a.state === "running"));
    for (const { id } of order.slice(0, SHOWN_FIRST)) chosen.add(id);
  }
  showList();
  const active = listed.filter(({ state }) => state === "running").length;
  const text = listed.length === 0 ? "No run there yet." : `${listed.length} ${listed.length === 1 ? "run" : "runs"}, ${active} in progress.`;
  if (find("updated").textContent !== text) find("updated").textContent = text;
}

/** Without --runs the service has no list: that is no error, so it is said beside the empty list. */
function orNothing(error) {
  if (error.status !== 404) throw error;
  find("updated").textContent = `${error.message}: ${error.remedy}`;
  return null;
}

/** Get the points that a run logged since the last time; a run that began again is read from its start. */
async function fetchPoints(id) {
  const run = runs.get(id);
  const last = run.points.at(-1)?.iteration ?? -1;
  const answer = await ask(`/api/runs/${encodeURIComponent(id)}?after=${last}`);
  run.points = answer.iteration < last ? [] : [...run.points, ...answer.points];
}

/** Make the list once, then change its texts only, so that the focus stays where it is. */
function showList() {
  const list = find("list");
  if (list.children.length !== runs.size) {
    fill(list, [...runs].map(([id, { colour }]) => {
      const box = make("input", { type: "checkbox", checked: chosen.has(id) });
      box.addEventListener("change", async () => {
        box.checked ? chosen.add(id) : chosen.delete(id);
        await fetchPoints(id).catch(showError);
        draw();
      });
      const swatch = make("span", { class: "swatch", "aria-hidden": "true" });
      swatch.style.backgroundColor = colour;
      return make("li", {}, make("label", {}, box, make("span", { class: "what" }, swatch, id, make("small")), make("span")));
    }));
  }
  [...runs.values()].forEach(({ facts }, index) => {
    const item = list.children[index];
    const best = facts.best_dice == null ? "" : `, best Dice ${facts.best_dice.toFixed(3)}`;
    const done = `${facts.iteration.toLocaleString("en")} of ${facts.iterations.toLocaleString("en")}`;
    item.querySelector("small").textContent = facts.error ?? `${facts.network}, ${facts.method}: ${done}${best}`;
    item.querySelector("label").lastElementChild.className = `state ${facts.state}`;
    item.querySelector("label").lastElementChild.textContent = facts.state;
  });
}

function draw() {
  const shown = [...chosen].map((id) => ({ id, ...runs.get(id) }));
  const names = [...new Set(shown.flatMap(({ points }) => points.slice(-20).flatMap((point) => Object.keys(point.losses ?? {}))))];
  const select = find("loss");
  if (names.length && names.join() !== [...select.options].map(({ value }) => value).join()) {
    const before = select.value;
    fill(select, names.map((name) => make("option", { value: name }, name)));
    select.value = names.includes(before) ? before : names.includes("total") ? "total" : names[0];
  }
  const line = ({ id, points, colour }, value) => ({
    name: id,
    colour,
    points: points.map((point) => [point.iteration, value(point) ?? NaN]),
  });
  dice.show(shown.map((run) => line(run, (point) => point.dice)));
  losses.show(shown.map((run) => line(run, (point) => point.losses?.[select.value])));
  showGates(shown);
}

function showGates(shown) {
  for (const id of gates.keys()) if (!chosen.has(id)) gates.delete(id);
  for (const { id, points } of shown) {
    if (!gates.has(id)) gates.set(id, new Plot({ title: id }));
    const sites = [...new Set(points.flatMap((point) => Object.keys(point.gates ?? {})))];
    gates.get(id).show(sites.map((name) => ({
      name,
      points: points.filter((point) => point.gates?.[name]).map((point) => [point.iteration, point.gates[name].D]),
    })));
  }
  const elements = [...gates.values()].map(({ element }) => element);
  if (elements.length !== find("gates").children.length || elements.some((element) => element.parentElement === null)) {
    fill(find("gates"), elements);
  }
}

main();
