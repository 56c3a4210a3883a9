// Predictions of step times, and what was measured when their homes came true.

import { whole } from "../api.js";
import { h, renew } from "../ui/dom.js";
import { exact, moment, percent, range } from "../ui/format.js";
import { badge, jobLink, problemBox } from "../ui/parts.js";
import { Poll } from "../ui/poll.js";
import { Table } from "../ui/table.js";

const AGAIN_MS = 30_000;
const TONES = { open: "busy", met: "good", expired: "quiet" };

/** A table of predictions, of one job if one is named; reads them again by itself. */
export class Predictions {
  #poll;
  #table;
  #trouble = h("div", {});

  constructor(app, job = null) {
    this.#table = new Table({
      label: "Predictions",
      key: (p) => p.id,
      empty: "nothing was predicted yet: a plan that moves the light of a running job makes a prediction, and What if on its page",
      columns: [
        { id: "id", label: "Id", value: (p) => p.id },
        ...(job ? [] : [{ id: "job", label: "Job", value: (p) => p.job, cell: (p) => jobLink(app.looks, p.job) }]),
        { id: "cause", label: "From", value: (p) => p.cause },
        { id: "state", label: "State", value: (p) => p.state, cell: (p) => badge(p.state, TONES[p.state]) },
        { id: "made", label: "Made", value: (p) => p.made_at, mute: true, right: true, cell: (p) => moment(p.made_at) },
        { id: "before", label: "Step before", value: (p) => p.step_before_s, right: true, hide: "compact", cell: (p) => exact(p.step_before_s) },
        { id: "step", label: "Predicted", value: (p) => p.step_s?.low, right: true, sign: (p) => range(p.step_s, exact), cell: (p) => range(p.step_s, exact) },
        { id: "measured", label: "Measured", value: (p) => p.measured_s, right: true, cell: (p) => exact(p.measured_s) },
        { id: "error", label: "Error", value: (p) => p.error, right: true, cell: (p) => (p.error === null ? "–" : `${(100 * p.error).toFixed(1)} %`) },
        { id: "basis", label: "Rests on", value: (p) => p.basis.join("; "), wrap: true },
      ],
    });
    if (job) this.#table.element.classList.add("short");
    this.list = this.#table.element;
    this.element = h("div", { class: "stack" }, this.#trouble, this.list);
    this.#poll = new Poll({
      read: () => whole("/predictions"),
      take: ({ items }) => {
        const mine = items.filter((p) => !job || p.job === job).sort((one, other) => other.made_at - one.made_at);
        renew(this.#trouble, errors(mine));
        this.#table.items = mine;
      },
      failed: (problem) => renew(this.#trouble, job ? h("p", { class: "muted" }, problem.message) : problemBox(problem)),
      wait: () => AGAIN_MS,
    });
  }

  /** Read now, and from then on. */
  start() {
    this.#poll.now();
  }

  stop() {
    this.#poll.stop();
  }
}

/** How right the predictions were that met a measurement. */
function errors(items) {
  const known = items.map((p) => p.error).filter((error) => error !== null).sort((one, other) => one - other);
  if (!known.length) return "";
  const half = known.length >> 1;
  const median = known.length % 2 ? known[half] : (known[half - 1] + known[half]) / 2;
  return h("p", { class: "muted" }, `${known.length} met what was measured: error ${percent(median)} in the median, ${percent(known.at(-1))} at worst`);
}

/** The page of all predictions. */
export function predictionsPage(app, segments) {
  const predictions = new Predictions(app);
  return {
    title: "Predictions",
    element: h("section", { class: "view" }, h("header", { class: "toolbar" }, h("h1", {}, "Predictions"), segments), h("div", { class: "page" }, predictions.element)),
    lists: [],
    mounted: () => predictions.start(),
    update: () => {},
    destroy: () => predictions.stop(),
  };
}
