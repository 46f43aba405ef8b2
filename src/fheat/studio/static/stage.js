// The elements of a viewer, which two pages have: views, canvas, position, and the contrast controls beside it.

import { fill, find, make } from "./dom.js";

const VIEWS = { all: "All", axial: "Axial", coronal: "Coronal", sagittal: "Sagittal", render: "3D" };
const CANVAS = "Scan viewer. Arrow keys, Page Up and Page Down move the crosshair.";

/** Fill #stage with a viewer and #display with its contrast controls; `empty` is said where no scan is. */
export function buildStage(empty) {
  const button = (id, text, attributes = {}) => make("button", { type: "button", id, ...attributes }, text);
  const views = Object.entries(VIEWS).map(([view, name]) =>
    make("button", { type: "button", "data-view": view, "aria-pressed": String(view === "all") }, name),
  );
  fill(
    find("stage"),
    make(
      "div",
      { class: "bar" },
      make("div", { class: "choices", role: "group", "aria-label": "View", id: "views" }, views),
      make(
        "div",
        { class: "choices", role: "group", "aria-label": "Zoom" },
        button("zoom-out", "−", { "aria-label": "Zoom out" }),
        button("zoom-in", "+", { "aria-label": "Zoom in" }),
      ),
      button("screenshot", "Screenshot", { disabled: true }),
    ),
    make(
      "div",
      { class: "canvas", id: "frame" },
      make("canvas", { id: "canvas", tabindex: 0, role: "application", "aria-label": CANVAS, "aria-describedby": "readout" }),
      make("p", { id: "empty" }, empty),
    ),
    make(
      "div",
      { class: "readout" },
      make("output", { id: "readout", "aria-live": "off" }),
      make("p", { class: "note", id: "convention" }),
    ),
  );
  const slider = (id, name) =>
    make("label", { class: "field", for: id }, `${name} `, make("output", { id: `${id}-value` }), make("input", { type: "range", id }));
  fill(
    find("display"),
    make("legend", { class: "hidden" }, "How the scan is shown"),
    make("label", { class: "field", id: "channel-field", hidden: true }, "Channel ", make("select", { id: "channel" })),
    slider("low", "Black at"),
    slider("high", "White at"),
    button("reset-window", "Reset contrast"),
    make("label", { class: "check" }, make("input", { type: "checkbox", id: "radiological", checked: true }), " Radiological view"),
  );
}
