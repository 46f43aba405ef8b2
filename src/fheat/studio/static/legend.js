// The legend of a mask: one line per class with its colour, its volume, and a box that shows or hides it.

import { fill, make } from "./dom.js";

/** Write a volume with a sensible number of digits. */
export function millilitres(value) {
  return `${value.toFixed(value < 10 ? 2 : 1)} ml`;
}

/**
 * Show entries in an element. `volumes` are millilitres by class, `corrected` those after the brush or null; `onChange`
 * is called when the user changes a colour or hides a class.
 */
export function showLegend(element, entries, volumes, corrected, onChange) {
  const rows = entries.map((entry) => {
    const box = make("input", { type: "checkbox", checked: entry.shown, "aria-label": `Show ${entry.name}` });
    const colour = make("input", { type: "color", value: entry.colour, "aria-label": `Colour of ${entry.name}` });
    box.addEventListener("change", () => {
      entry.shown = box.checked;
      onChange();
    });
    colour.addEventListener("input", () => {
      entry.colour = colour.value;
      onChange();
    });
    const amount = make("span", { class: "amount" }, millilitres(volumes[entry.key] ?? 0));
    if (corrected !== null) {
      amount.append(make("br"), make("small", { class: "note" }, `corrected ${millilitres(corrected[entry.value])}`));
    }
    return make("li", {}, box, colour, make("span", { class: "name" }, entry.name), amount);
  });
  fill(element, make("ul", { class: "legend" }, rows));
}
