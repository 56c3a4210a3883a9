// Horizontal bars with an interval and a mark. They are a list: every figure is also text.

import { h } from "./dom.js";

/** The smallest part of a strip, as a share. */
const LEAST = 1e-3;

/**
 * Bars over one scale that includes 0. `rows`: {name, value, text, low?, high?, mark?: {low, high, text},
 * tone?}; a value that is null has no bar. `low` and `high` draw a whisker, `mark` a prediction.
 */
export function bars(label, rows) {
  const figures = rows.flatMap((row) => [row.value, row.low, row.high, row.mark?.low, row.mark?.high]).filter(Number.isFinite);
  const low = Math.min(0, ...figures);
  const high = Math.max(0, ...figures);
  const at = (value) => `${((100 * (value - low)) / (high - low || 1)).toFixed(2)}%`;
  const across = (from, to) => ({ left: at(Math.min(from, to)), width: `${((100 * Math.abs(to - from)) / (high - low || 1)).toFixed(2)}%` });
  const known = (...values) => values.every(Number.isFinite);
  return h("ul", { class: "bars", "aria-label": label }, rows.map((row) =>
    h("li", {},
      h("span", { class: "name", title: row.name }, row.name),
      h("span", { class: "lane", "aria-hidden": "true" },
        known(row.value) ? h("i", { class: `fill ${row.tone ?? ""}`, style: across(0, row.value) }) : "",
        known(row.low, row.high) ? h("i", { class: "whisker", style: across(row.low, row.high) }) : "",
        row.mark && known(row.mark.low, row.mark.high) ? h("i", { class: "predicted", style: across(row.mark.low, row.mark.high) }) : ""),
      h("span", { class: "figure" }, row.text, row.mark?.text ? h("small", {}, row.mark.text) : ""))));
}

/** One bar of parts that add up: `parts` {name, value, text, tone}. Parts too short to see are left out. */
export function strip(label, parts) {
  const known = parts.filter((part) => Number.isFinite(part.value) && part.value > 0);
  const total = known.reduce((sum, part) => sum + part.value, 0);
  const shown = known.filter((part) => part.value >= LEAST * total);
  if (!total) return "";
  return h("div", { class: "strip", role: "group", "aria-label": label },
    h("div", { class: "lane", "aria-hidden": "true" }, shown.map((part) => h("i", { class: part.tone, style: { width: `${((100 * part.value) / total).toFixed(2)}%` } }))),
    h("p", { class: "marks" }, shown.map((part) => h("span", {}, h("i", { class: part.tone, "aria-hidden": "true" }), `${part.name} ${part.text}`))));
}
