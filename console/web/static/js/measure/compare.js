// Compare: the change of training time by placement, with the predictions as marks, and what to choose.

import { h } from "../ui/dom.js";
import { change, exact, range } from "../ui/format.js";
import { bars } from "../ui/bars.js";
import { rowsTable } from "./generic.js";
import { section, shownBy } from "./figures.js";
import { mid, num, objects, text, texts } from "./value.js";

const FIRST = ["placement", "span", "crossings", "ring_rate", "predicted_step_s", "step_s", "measured_step_s", "error", "change", "util", "uplink_bytes_s", "moves", "leaves", "reasons"];

export function compare(app, result) {
  const rows = objects(result.rows);
  const { summary } = result;
  const recommended = text(summary.recommended);
  const ring = texts(summary.plan?.endpoints);
  const measured = (r) => mid(r.measured_step_s) ?? mid(r.step_s) ?? mid(r.measured_s);
  const predicted = (r) => within(r.predicted_step_s ?? r.predicted_s);
  const base = rows.find((r) => text(r.placement) === "local") ?? rows[0];
  const local = base ? measured(base) ?? middle(predicted(base)) : null;
  const relative = (value) => (value === null || !local ? null : (value - local) / local);
  const drawn = rows.slice(0, 40).map((r) => {
    // A row that was not measured has the change of its prediction.
    const own = measured(r) === null ? null : num(r.change) ?? relative(measured(r));
    const expected = predicted(r);
    const mark = expected && local ? { low: relative(expected.low), high: relative(expected.high) } : null;
    return {
      name: `${text(r.placement)}${text(r.placement) === recommended ? " (recommended)" : ""}`,
      value: own ?? (mark ? (mark.low + mark.high) / 2 : null),
      tone: own === null ? "quiet" : text(r.placement) === recommended ? "third" : "",
      text: own === null ? "not measured" : `${change(own)}, ${exact(measured(r))}`,
      mark: mark && { ...mark, text: ` predicted ${range(mark, change)}, ${range(expected, exact)}` },
    };
  });
  return shownBy([
    section(`Change of training time${base ? ` from ${text(base.placement)}` : ""}`, h("div", { class: "panel" }, bars("Change of training time by placement", drawn), h("p", { class: "muted" }, "bars are measured; frames are what was predicted"))),
    section("Recommendation", h("div", { class: "panel" },
      h("p", {}, h("b", {}, recommended || "open"), summary.because ? `: ${[texts(summary.because).join("; ") || text(summary.because)].join("")}` : ""),
      ring.length ? h("p", { class: "muted" }, `then submit with: --endpoints ${ring.join(",")} --rank-order placed`) : "")),
    rowsTable("Placements", rows, { first: FIRST }),
  ], [], ["rows", "summary"]);
}

/** An interval {low, high}; a figure is an interval without width. */
function within(value) {
  if (num(value) !== null) return { low: value, high: value };
  return num(value?.low) !== null && num(value?.high) !== null ? value : null;
}

const middle = (interval) => (interval ? (interval.low + interval.high) / 2 : null);
