// What all pages share: header, colour scheme, messages, and the help dialog with the shortcuts.

import { Refusal } from "./api.js";
import { find, fill, make } from "./dom.js";

const PAGES = [
  ["/", "Segment"],
  ["/runs", "Runs"],
  ["/allocation", "Allocation"],
  ["/dataset", "Dataset"],
];
const SCHEMES = { system: "Auto", light: "Light", dark: "Dark" };

/** Build the header of a page. `help` is what the dialog lists: pairs of keys, or gestures, and what they do. */
export function begin(help = []) {
  const here = location.pathname;
  const links = PAGES.map(([path, name]) =>
    make("a", { href: path, "aria-current": path === here ? "page" : false }, name),
  );
  const dialog = helpDialog(help);
  const asking = make("button", { type: "button", class: "quiet", "aria-label": "Help and shortcuts" }, "?");
  asking.addEventListener("click", () => dialog.showModal());
  fill(
    find("head"),
    make("a", { class: "skip", href: "#main" }, "Skip to the content"),
    make("a", { class: "brand", href: "/" }, "fheat ", make("span", {}, "studio")),
    make("nav", { "aria-label": "Pages" }, links),
    make("div", { class: "tools" }, schemeButton(), asking),
  );
  document.body.append(dialog);
  addEventListener("unhandledrejection", (event) => showError(event.reason));
  document.addEventListener("keydown", (event) => {
    if (event.key === "?" && !isTyping(event.target) && !dialog.open) dialog.showModal();
  });
}

/** Return whether keys go into a field. */
export function isTyping(target) {
  return target instanceof HTMLElement && target.matches("input:not([type=checkbox]):not([type=radio]), select, textarea");
}

function schemeButton() {
  const root = document.documentElement;
  const names = Object.keys(SCHEMES);
  const button = make("button", { type: "button", class: "quiet scheme" });
  const show = () => {
    const name = root.dataset.theme ?? "system";
    fill(button, make("span", { class: "disc", "aria-hidden": "true" }), SCHEMES[name]);
    button.setAttribute("aria-label", `Colour scheme: ${SCHEMES[name].toLowerCase()}. Change it`);
  };
  button.addEventListener("click", () => {
    const next = names[(names.indexOf(root.dataset.theme ?? "system") + 1) % names.length];
    if (next === "system") delete root.dataset.theme;
    else root.dataset.theme = next;
    try {
      localStorage.setItem("fheat.theme", next);
    } catch {
      // Storage may be forbidden: then the choice lasts as long as the page.
    }
    show();
  });
  show();
  return button;
}

function helpDialog(help) {
  const rows = [...help, ["?", "This list"], ["Tab, Shift + Tab", "Next and previous control"], ["Esc", "Close this list"]];
  const dialog = make(
    "dialog",
    { "aria-labelledby": "help-title" },
    make("h2", { id: "help-title" }, "Keys and gestures"),
    make("dl", {}, rows.map(([keys, meaning]) => [make("dt", {}, keys), make("dd", {}, meaning)])),
    make("form", { method: "dialog" }, make("button", { class: "primary" }, "Close")),
  );
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  return dialog;
}

/** Show what went wrong with its remedy, read aloud at once. It stays until it is closed or something succeeds. */
export function showError(error) {
  const remedy = error instanceof Refusal ? error.remedy : "load this page again; if it stays, report it";
  const close = make("button", { type: "button", class: "quiet", "aria-label": "Close the message" }, "×");
  close.addEventListener("click", clearError);
  fill(
    find("messages"),
    make("div", { class: "message" }, make("p", {}, make("strong", {}, error.message), make("span", { class: "remedy" }, remedy ? `What to do: ${remedy}` : "")), close),
  );
  if (!(error instanceof Refusal)) console.error(error);
}

/** Remove the message. */
export function clearError() {
  find("messages").replaceChildren();
}

/** Run an action of the user; what it throws is shown. Returns whether it succeeded. */
export async function attempt(action) {
  try {
    await action();
    return true;
  } catch (error) {
    showError(error);
    return false;
  }
}
