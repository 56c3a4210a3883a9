// Small parts that several views use.

import { h, svg } from "./dom.js";
import { sparkPath } from "./chart.js";

const ICONS = {
  topology: "M4 6h5m6 12h5M9 6c5 0 1 12 6 12M4 18h5m6-12h5M9 18c5 0 1-12 6-12",
  jobs: "M4 5h16M4 10h16M4 15h10M4 20h7",
  plan: "M5 19l5-5m4-4l5-5m-6 0h6v6M5 13v6h6",
  switches: "M4 4h16v16H4zM4 12h16M9 8h.01M9 16h.01M14 8h2M14 16h2",
  measurements: "M3 16 16 3l5 5L8 21zM7 12l2 2M10 9l3 3M13 6l2 2",
  events: "M12 4a6 6 0 0 1 6 6v4l2 3H4l2-3v-4a6 6 0 0 1 6-6zM10 20h4",
  objects: "M4 5h7v6H4zM13 5h7v6h-7zM4 13h7v6H4zM13 13h7v6h-7z",
  engine: "M4 8h16v8H4zM8 4v4M16 4v4M8 16v4M16 16v4M8 12h.01M12 12h.01M16 12h.01",
  usage: "M5 20V11M12 20V4M19 20v-6M3 20h18",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6 19 19M19 5l-1.4 1.4M6.4 17.6 5 19",
  moon: "M20 14.5A8 8 0 0 1 9.5 4 8 8 0 1 0 20 14.5z",
  help: "M9 9a3 3 0 1 1 4 2.8c-.7.3-1 .8-1 1.7M12 17h.01M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z",
  fit: "M4 9V4h5M15 4h5v5M20 15v5h-5M9 20H4v-5",
  plus: "M12 5v14M5 12h14",
  minus: "M5 12h14",
  close: "M6 6l12 12M18 6L6 18",
  exit: "M10 5H5v14h5M14 8l4 4-4 4M18 12H9",
};

/** A line icon; decoration only. */
export const icon = (name) =>
  svg("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));

/** A job's mark: its colour and shape. */
export function jobMark(looks, job) {
  const look = looks.of(job);
  return h("span", { class: `mark ${look.shape}`, style: { "--mark": look.colour }, "aria-hidden": "true" });
}

/** A job's mark and name, leading to its page. */
export const jobLink = (looks, job) =>
  h("a", { class: "job", href: `#/jobs/${encodeURIComponent(job)}` }, jobMark(looks, job), h("span", {}, job));

const TONES = {
  running: "good", committed: "good", completed: "good", ok: "good", connected: "good", tuned: "good",
  pending: "quiet", waiting: "quiet", starting: "busy", pausing: "busy", paused: "warn", moving: "busy", rolling_back: "warn",
  failed: "bad", cancelled: "quiet", rolled_back: "warn", quarantined: "bad", unreachable: "bad", lost: "bad", dark: "warn",
  reserved: "quiet", draining: "busy", drained: "warn", held: "warn", flapping: "warn", unready: "warn",
  error: "bad", warning: "warn", info: "quiet", degraded: "warn", idle: "quiet", busy: "good", away: "bad",
};

/** A word with a colour tone: a state or a severity. */
export const badge = (word, tone = TONES[word] ?? "quiet") => h("span", { class: `badge ${tone}` }, word.replaceAll("_", " "));

/** Marks an emulated object. */
export const emulatedBadge = () => h("span", { class: "badge emulated", title: "emulated, not real hardware" }, "emulated");

/** How a job's endpoints are spread over aggregators, as proportional bars with figures. */
export function spreadBars(spread) {
  const parts = Object.entries(spread ?? {}).sort((one, other) => other[1] - one[1]);
  if (!parts.length) return h("span", { class: "muted" }, "–");
  const first = parts.slice(0, 4);
  const rest = parts.slice(4).reduce((sum, [, n]) => sum + n, 0);
  return h(
    "span",
    { class: "spread" },
    first.map(([name, n]) => h("span", { class: name === "dark" ? "part dark" : "part" }, `${name}:${n}`)),
    rest ? h("span", { class: "part" }, `+${rest}`) : "",
  );
}

/** A line chart of the last two minutes. */
export function spark(values, colour) {
  return svg(
    "svg",
    { class: "spark", viewBox: "0 0 84 22", "aria-hidden": "true" },
    svg("path", { d: sparkPath(values ?? [], 84, 22), stroke: colour }),
  );
}

/** A share as a bar with its figure. */
export function bar(share, text) {
  const full = share === null || share === undefined ? 0 : Math.min(1, share);
  return h("span", { class: "bar" }, h("span", { class: "track" }, h("span", { class: "fill", style: { width: `${(full * 100).toFixed(0)}%` } })), h("span", { class: "figure" }, text));
}

/** A figure with its name. */
export const tile = (label, value, note = "") =>
  h("div", { class: "stat" }, h("span", { class: "label" }, label), h("span", { class: "value" }, value), note ? h("span", { class: "note" }, note) : "");

/** An error as the controller reports it: message, object and hint. */
export function problemBox(problem) {
  return h(
    "div",
    { class: "problem", role: "alert" },
    h("strong", {}, problem.message),
    problem.object ? h("span", { class: "muted" }, problem.object) : "",
    problem.hint ? h("span", {}, `Hint: ${problem.hint}`) : "",
  );
}

/** A list of names and values. */
export const facts = (pairs) =>
  h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value ?? "–")]));

/** A button. `why` disables it and is its tooltip; it ignores presses while it handles one. */
export function button(text, onclick, { kind = "", why = "", title = "", type = "button" } = {}) {
  const element = h("button", { type, class: `button ${kind}`, disabled: Boolean(why), title: why || title || null }, text);
  let busy = false;
  const press = async (event) => {
    if (busy) return;
    busy = true;
    element.setAttribute("aria-busy", "true");
    try {
      await onclick(event);
    } finally {
      busy = false;
      element.removeAttribute("aria-busy");
    }
  };
  if (!why) element.addEventListener("click", press);
  return element;
}
