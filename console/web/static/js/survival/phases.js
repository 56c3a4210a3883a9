// The phases of a recovery on a time line: what lightloom does, and what the program needs.

import { h } from "../ui/dom.js";
import { seconds } from "../ui/format.js";

const BEFORE = ["detect", "decide"];
const AFTER = ["start", "import", "first_step"];
const PROGRAM = new Set(["import", "first_step"]);

/** The known phases: {name, begins, takes, own}, seconds since the failure. Fetching runs beside stopping and light; what is not known of the program's own part is one phase, up to the first step. */
export function phases(recovery) {
  const found = [];
  const follow = (name, begins) => {
    const takes = recovery[`${name}_s`] ?? null;
    if (takes === null) return begins;
    found.push({ name: name.replace("_", " "), begins, takes, own: !PROGRAM.has(name) });
    return begins + takes;
  };
  const decided = BEFORE.reduce((at, name) => follow(name, at), 0);
  const lit = follow("light", follow("stop", decided));
  const known = AFTER.reduce((at, name) => follow(name, at), Math.max(lit, follow("fetch", decided)));
  const hidden = [...PROGRAM].filter((name) => (recovery[`${name}_s`] ?? null) === null);
  const left = (recovery.total_s ?? 0) - known;
  if (hidden.length && left > 0) {
    found.push({ name: hidden.length === PROGRAM.size ? "program" : hidden.join(", ").replace("_", " "), begins: known, takes: left, own: false });
  }
  return found;
}

/** One bar a phase, over the time from the failure to the first new step. */
export function timeline(recovery) {
  const shown = phases(recovery);
  const end = Math.max(...shown.map((one) => one.begins + one.takes), 0);
  if (!end) return h("p", { class: "muted" }, "no phase has ended so far");
  const share = (s) => `${((s / end) * 100).toFixed(2)}%`;
  return h("ol", { class: "phases", "aria-label": "Phases" }, shown.map((one) =>
    h("li", { title: `from ${seconds(one.begins)} on` },
      h("span", {}, one.name),
      h("span", { class: "lane", "aria-hidden": "true" }, h("span", { class: one.own ? "own" : "program", style: { "margin-left": share(one.begins), width: share(one.takes) } })),
      h("span", { class: "figure" }, seconds(one.takes)))));
}
