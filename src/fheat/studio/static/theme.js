// Applies the chosen colour scheme before the page is drawn. A plain script in the head, so that nothing flashes.
(() => {
  try {
    const chosen = localStorage.getItem("fheat.theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage may be forbidden: then the scheme of the system holds.
  }
})();
