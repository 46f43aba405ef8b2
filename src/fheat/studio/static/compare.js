// Comparing a mask with a reference: the scores of each class, and the difference as an overlay.

import { bytesOf, upload } from "./api.js";
import { DIFFERENCE } from "./colours.js";
import { fill, find, make, table } from "./dom.js";

/** Send a reference for the mask of a job, show its scores in #scores, and lay the difference over the scan. */
export async function compareWith(file, job, viewer) {
  const answer = await upload(`/api/jobs/${job}/reference?name=${encodeURIComponent(file.name)}`, file);
  const classes = Object.keys(answer.scores);
  const row = ([title, measure, digits]) => [title, ...classes.map((name) => score(answer.scores[name][measure], digits))];
  const rows = measures(answer.unit).map(row);
  const columns = ["", ...classes.map((name) => name.replaceAll("_", " "))];
  const colours = DIFFERENCE.map(({ name, colour }) => {
    const swatch = make("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.backgroundColor = colour;
    return make("li", {}, swatch, name);
  });
  fill(find("scores"), table(`Mask against ${file.name}`, columns, rows), make("ul", { class: "keys" }, colours));
  await viewer.lay("difference", await bytesOf(answer.difference), { entries: DIFFERENCE, opacity: 0 });
}

/** What is shown: its title, its name in the answer, and digits. */
function measures(unit) {
  return [["Dice", "dice", 3], ["Jaccard", "jaccard", 3], [`95 % Hausdorff (${unit})`, "hd95", 2], [`Mean surface (${unit})`, "asd", 2]];
}

/** Write a score; where a class is empty on one side, distances do not exist. */
function score(value, digits) {
  return Number.isFinite(value) ? value.toFixed(digits) : "–";
}
