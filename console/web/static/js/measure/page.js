// Measurements: the list, one measurement, the predictions and the advice for the whole site.

import { h } from "../ui/dom.js";
import { findingsPage } from "../advice/findings.js";
import { predictionsPage } from "../advice/predictions.js";
import { detail } from "./detail.js";
import { list } from "./list.js";

const PARTS = { "": "Results", predictions: "Predictions", advice: "Advice" };
const PAGES = { "": list, predictions: predictionsPage, advice: findingsPage };

/** `part` is empty, one of the other parts, or the id of a measurement. */
export function measurements(app, _, part = "") {
  return part in PAGES ? PAGES[part](app, segments(part)) : detail(app, part);
}

const segments = (part) => h("div", { class: "segments", role: "group", "aria-label": "Part" },
  Object.entries(PARTS).map(([id, label]) => h("a", { class: "segment", href: id ? `#/measurements/${id}` : "#/measurements", "aria-current": id === part ? "page" : null }, label)));
