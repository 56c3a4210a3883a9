// What the types share: the figures of one result, and the end of all its charts.

import { h } from "../ui/dom.js";

/**
 * What a type shows. `parts` are elements; `charts` are drawn again with the theme and removed at the
 * end; `own` names the lists of the result that the parts show already.
 */
export function shownBy(parts, charts, own) {
  return {
    parts,
    own,
    redraw: () => charts.forEach((chart) => chart.redraw()),
    destroy: () => charts.forEach((chart) => chart.destroy()),
  };
}

/** Charts side by side. */
export const row = (...charts) => h("div", { class: "charts" }, charts.map((chart) => chart.element));

/** A labelled choice among `options` ([value, label]); `onPick` gets the value. */
export function choice(label, options, onPick) {
  const field = h("select", { onchange: () => onPick(field.value) }, options.map(([value, name]) => h("option", { value: String(value) }, name)));
  return { field, element: h("label", { class: "inline" }, h("span", {}, label), field) };
}

/** A section with a heading. */
export const section = (title, ...children) => h("section", {}, h("h2", {}, title), children);
