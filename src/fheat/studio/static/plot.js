// A small plotting module: lines over a shared horizontal axis, as SVG, with a legend that reads off values.

import { fill, make } from "./dom.js";

const SIZE = { height: 216, left: 46, right: 12, top: 8, bottom: 34 };
const FIRST_WIDTH = 560;
const MOST_POINTS = 400;
const COLOURS = ["#1593b5", "#e0662b", "#2f9e6e", "#a45bd6", "#d6a100", "#d6457a", "#5a7de0", "#7d8f2e", "#8a6d5a", "#7f8c94"];

/** Return the colour of the line with this number. */
export function colourOf(index) {
  return COLOURS[index % COLOURS.length];
}

/**
 * Return values of an axis for ticks: round ones, about `count` of them, that lie between both ends.
 *
 * On a logarithmic axis they are powers of ten, or 1, 2 and 5 times those where there are few.
 */
export function ticks(low, high, count = 5, logarithmic = false) {
  if (logarithmic) {
    const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
    const steps = last - first > 3 ? [1] : [1, 2, 5];
    const all = Array.from({ length: last - first + 1 }, (_, index) => steps.map((step) => step * 10 ** (first + index)));
    return all.flat().filter((value) => value >= low * 0.999 && value <= high * 1.001);
  }
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

/** Return at most `most` points: the means of equal shares of them. Few points stay as they are. */
export function thin(points, most = MOST_POINTS) {
  if (points.length <= most) return points;
  const share = points.length / most;
  return Array.from({ length: most }, (_, index) => {
    const part = points.slice(Math.floor(index * share), Math.floor((index + 1) * share));
    return [0, 1].map((axis) => part.reduce((sum, point) => sum + point[axis], 0) / part.length);
  });
}

/** Write a number at an axis. */
export function label(value) {
  if (value === 0) return "0";
  if (Math.abs(value) >= 10_000) return `${Number((value / 1000).toPrecision(3))}k`;
  return Math.abs(value) < 0.001 ? value.toExponential(0) : String(Number(value.toPrecision(3)));
}

export class Plot {
  /** `title` heads the plot, `across` names the horizontal axis; `range` fixes the vertical one. */
  constructor({ title, across = "iteration", range = null, logarithmic = false, colours = colourOf }) {
    Object.assign(this, { title, across, range, logarithmic, colours, lines: [], width: FIRST_WIDTH });
    this.svg = make("svg", { role: "img", "aria-label": title });
    this.keys = make("ul", { class: "keys" });
    this.element = make("figure", { class: "plot" }, make("figcaption", {}, title), this.svg, this.keys);
    this.svg.addEventListener("pointermove", (event) => this.read(event));
    this.svg.addEventListener("pointerleave", () => this.draw());
    new ResizeObserver(() => this.fit()).observe(this.element);
  }

  /** Draw as wide as there is room, so that letters have one size on every screen. */
  fit() {
    const width = Math.round(this.element.clientWidth);
    if (width === 0 || width === this.width) return;
    this.width = width;
    this.draw();
  }

  /** Show lines: names with points `[x, y]`, x ascending; points that are no numbers are left out. */
  show(lines) {
    this.lines = lines.map(({ name, points, colour }, index) => ({
      name,
      colour: colour ?? this.colours(index),
      points: thin(points.filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y) && (!this.logarithmic || y > 0))),
    }));
    this.draw();
  }

  /** Find the ends of both axes. */
  measure() {
    const all = this.lines.flatMap(({ points }) => points);
    const ends = (axis) => all.reduce(([low, high], point) => [Math.min(low, point[axis]), Math.max(high, point[axis])], [Infinity, -Infinity]);
    let [bottom, top] = this.range ?? ends(1);
    if (bottom === top) [bottom, top] = this.logarithmic ? [bottom / 2, top * 2] : [bottom - 0.5, top + 0.5];
    if (!this.range && !this.logarithmic) {
      if (bottom > 0 && bottom < 0.5 * top) bottom = 0;
      top += 0.04 * (top - bottom);
    }
    const [first, last] = ends(0);
    this.ends = { first, last: last > first ? last : first + 1, bottom, top };
  }

  x(value) {
    const { first, last } = this.ends;
    return SIZE.left + ((value - first) / (last - first)) * (this.width - SIZE.left - SIZE.right);
  }

  y(value) {
    const scale = this.logarithmic ? Math.log : (number) => number;
    const { bottom, top } = this.ends;
    const share = (scale(value) - scale(bottom)) / (scale(top) - scale(bottom));
    return SIZE.height - SIZE.bottom - share * (SIZE.height - SIZE.top - SIZE.bottom);
  }

  draw() {
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${SIZE.height}`);
    if (this.lines.every(({ points }) => points.length === 0)) {
      fill(this.svg, make("text", { x: this.width / 2, y: SIZE.height / 2, "text-anchor": "middle" }, "Nothing logged yet"));
      this.keys.replaceChildren();
      return;
    }
    this.measure();
    const { first, last, bottom, top } = this.ends;
    const floor = SIZE.height - SIZE.bottom;
    const rows = ticks(bottom, top, 5, this.logarithmic).flatMap((value) => [
      make("line", { class: "grid", x1: SIZE.left, x2: this.width - SIZE.right, y1: this.y(value), y2: this.y(value) }),
      make("text", { x: SIZE.left - 7, y: this.y(value) + 4, "text-anchor": "end" }, label(value)),
    ]);
    const columns = ticks(first, last, Math.max(2, Math.round(this.width / 90))).map((value) =>
      make("text", { x: this.x(value), y: floor + 16, "text-anchor": "middle" }, label(value)),
    );
    const curves = this.lines.map(({ points, colour }) => {
      const place = points.map(([x, y]) => `${this.x(x).toFixed(1)},${this.y(y).toFixed(1)}`);
      if (points.length > 1) return make("path", { d: `M${place.join("L")}`, stroke: colour });
      return points.length ? make("circle", { cx: this.x(points[0][0]), cy: this.y(points[0][1]), r: 3, fill: colour }) : null;
    });
    fill(
      this.svg,
      rows,
      make("line", { class: "axis", x1: SIZE.left, x2: this.width - SIZE.right, y1: floor, y2: floor }),
      columns,
      make("text", { x: this.width - SIZE.right, y: SIZE.height - 2, "text-anchor": "end" }, this.across),
      curves,
    );
    this.name(this.lines.map(({ points }) => points.at(-1)));
  }

  /** Read off the values under the pointer. */
  read(event) {
    if (!this.ends || this.lines.length === 0) return;
    const box = this.svg.getBoundingClientRect();
    const across = ((event.clientX - box.left) / box.width) * this.width;
    const { first, last } = this.ends;
    const share = (across - SIZE.left) / (this.width - SIZE.left - SIZE.right);
    const at = first + Math.min(Math.max(share, 0), 1) * (last - first);
    const nearest = this.lines.map(({ points }) =>
      points.reduce((best, point) => (best && Math.abs(best[0] - at) <= Math.abs(point[0] - at) ? best : point), null),
    );
    this.svg.querySelector(".cursor")?.remove();
    const column = this.x(at);
    this.svg.append(make("line", { class: "cursor", x1: column, x2: column, y1: SIZE.top, y2: SIZE.height - SIZE.bottom }));
    this.name(nearest, at);
  }

  /** Write the legend with a value for each line: the last one, or that under the pointer. */
  name(values, at = null) {
    const items = this.lines.map(({ name, colour }, index) => {
      const line = make("span", { class: "line", "aria-hidden": "true" });
      line.style.borderTopColor = colour;
      return make("li", {}, line, values[index] ? `${name} ${label(values[index][1])}` : name);
    });
    fill(this.keys, items, at === null ? null : make("li", {}, `at ${label(at)}`));
  }
}
