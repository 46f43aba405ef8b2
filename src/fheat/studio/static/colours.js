// Colours of classes and overlays, as NiiVue's tables.

// Told apart with the common kinds of colour blindness, and against grey.
const PALETTE = ["#e8543f", "#3fa7f5", "#f5b82e", "#35c48d", "#c77dff", "#ff8fab", "#8bd450", "#00c2d1", "#ff9f68", "#b8a1ff"];

export const ONLY_MASK = "#f08a24";
export const ONLY_REFERENCE = "#3fa7f5";
export const BOTH = "#4cc38a";
export const LABEL = "#35c48d";

/** Return the entries of a legend: name to read, name of the class, value, colour, and whether it is shown; by value. */
export function entriesOf(classes) {
  return Object.entries(classes)
    .sort(([, a], [, b]) => a - b)
    .map(([key, value], index) => ({ name: key.replaceAll("_", " "), key, value, colour: PALETTE[index % PALETTE.length], shown: true }));
}

/** The entries of a difference between mask and reference. */
export const DIFFERENCE = [
  { name: "only in the mask", value: 1, colour: ONLY_MASK, shown: true },
  { name: "only in the reference", value: 2, colour: ONLY_REFERENCE, shown: true },
  { name: "in both", value: 3, colour: BOTH, shown: true },
];

/** Return a table of colours for NiiVue. Value 0 must be in it, else NiiVue shifts all others. */
export function lookup(entries) {
  const all = [{ name: "", value: 0, colour: "#000000", shown: false }, ...entries];
  const channel = (start) => all.map(({ colour }) => parseInt(colour.slice(start, start + 2), 16));
  return {
    R: channel(1),
    G: channel(3),
    B: channel(5),
    A: all.map(({ shown }) => (shown ? 255 : 0)),
    I: all.map(({ value }) => value),
    labels: all.map(({ name }) => name),
  };
}
