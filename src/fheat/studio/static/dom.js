// Building and finding elements.

/** Return the element with this id; a page that has none is a fault of ours. */
export function find(id) {
  const element = document.getElementById(id);
  if (element === null) throw new Error(`the page has no element #${id}`);
  return element;
}

/** Make an element: attributes by name (`on...` are listeners, `true` and `false` are presence), then children. */
export function make(tag, attributes = {}, ...children) {
  const namespace = SVG_TAGS.has(tag) ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const element = document.createElementNS(namespace, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...present(children));
  return element;
}

const SVG_TAGS = new Set(["svg", "g", "path", "line", "rect", "circle", "text", "polyline"]);

/** Return the children that are there, from lists in lists. */
function present(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined);
}

/** Replace the content of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...present(children));
  return element;
}

/** Return a table: names of columns, rows of cells; the first cell of a row is its heading. */
export function table(caption, columns, rows) {
  const head = make("tr", {}, columns.map((name) => make("th", { scope: "col" }, name)));
  const body = rows.map(([first, ...rest]) =>
    make("tr", {}, make("th", { scope: "row" }, first), rest.map((cell) => make("td", {}, cell))),
  );
  return make(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    make("table", {}, make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, body)),
  );
}

/** Keep a value for this tab, or read it: pages of one tab share the loaded scan. */
export const tab = {
  get(name) {
    try {
      return JSON.parse(sessionStorage.getItem(`fheat.${name}`));
    } catch {
      return null;
    }
  },
  set(name, value) {
    try {
      if (value === null) sessionStorage.removeItem(`fheat.${name}`);
      else sessionStorage.setItem(`fheat.${name}`, JSON.stringify(value));
    } catch {
      // Storage may be forbidden: then every page starts empty.
    }
  },
};
