// Light theme, dark theme, or the system's; the browser stores the choice.

export const THEMES = {
  auto: { label: "system", icon: "sun", next: "light" },
  light: { label: "light", icon: "sun", next: "dark" },
  dark: { label: "dark", icon: "moon", next: "auto" },
};

const listeners = new Set();
const system = matchMedia("(prefers-color-scheme: dark)");
system.addEventListener("change", applyTheme);

/** Call `f` after each change of the theme; returns a function that ends that. */
export function onTheme(f) {
  listeners.add(f);
  return () => listeners.delete(f);
}

/** Switch to the next theme. */
export function nextTheme() {
  localStorage.setItem("theme", THEMES[localStorage.getItem("theme") ?? "auto"].next);
  applyTheme();
}

/** Set the attribute that the style sheets read. */
export function applyTheme() {
  const wanted = localStorage.getItem("theme") ?? "auto";
  document.documentElement.dataset.theme = wanted === "auto" ? (system.matches ? "dark" : "light") : wanted;
  for (const f of listeners) f();
}
