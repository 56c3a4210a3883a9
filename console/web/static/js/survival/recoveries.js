// What became of a job that lost ranks: every recovery with its phases, and what they cost.

import { get, part } from "../api.js";
import { h, renew } from "../ui/dom.js";
import { figure, moment, percent, plural, seconds } from "../ui/format.js";
import { badge, facts } from "../ui/parts.js";
import { Poll } from "../ui/poll.js";
import { safety } from "./checkpoints.js";
import { timeline } from "./phases.js";

const AGAIN_MS = 30000;
const MOST = 20;
const happened = (cause, what) => (cause === "drain" ? `${what} drained` : cause === "program" ? `a rank on ${what} failed` : `${what} lost`);
const HOW = { swap: "a spare took the place", again: "started again where it was", queue: "back to the queue", shrink: "went on with fewer ranks", ended: "the job ended" };
const TONES = { swap: "good", again: "good", queue: "warn", shrink: "warn", ended: "bad" };

/** A job's recoveries, the latest first; hidden while it has lost no rank. */
export class Recoveries {
  #poll;
  #shown = null;
  #list = h("div", { class: "stack" });
  element = h("section", { "aria-label": "Recoveries", hidden: true }, h("h2", {}, "Recoveries"), this.#list);

  constructor(name) {
    this.#poll = new Poll({
      read: () => get(`/jobs/${part(name)}/recoveries`),
      take: (view) => this.#show(view),
      failed: () => {}, // a controller may keep none; the next answer shows them
      wait: () => AGAIN_MS,
    });
  }

  /** Show those of job `j`; read again when the stream tells of a change. */
  render(j) {
    const news = safety(j);
    if (news === this.#shown) return;
    this.#shown = news;
    this.#poll.soon();
  }

  stop() {
    this.#poll.stop();
  }

  #show({ ettr, gpu_hours_lost: lost, recoveries }) {
    this.element.hidden = !recoveries.length;
    const causes = Object.entries(lost).sort((one, other) => other[1] - one[1]);
    renew(this.#list,
      h("p", { class: "legend" },
        `ETTR ${ettr === null ? "not known" : percent(ettr)}; GPU-hours lost: ${causes.map(([cause, hours]) => `${cause} ${figure(hours)}`).join(", ") || "none"} `,
        h("span", { class: "key own" }, "lightloom"), h("span", { class: "key program" }, "the program's own")),
      recoveries.slice(-MOST).reverse().map(one),
      recoveries.length > MOST ? h("p", { class: "muted" }, `and ${recoveries.length - MOST} more: lightloom recoveries`) : "");
  }
}

function one(r) {
  const swaps = Object.entries(r.swaps).map(([dead, spare]) => `${spare} for ${dead}`).join(", ");
  const where = r.step_written === null ? "" : `step ${r.step_written} written last, went on from ${r.step_restored ?? "the start"}${r.steps_lost === null ? "" : `: ${plural(r.steps_lost, "step")} lost`}`;
  return h("article", { class: "panel", "aria-label": `Recovery ${r.number}` },
    h("h3", {}, `${r.number}. ${happened(r.cause, r.objects.join(", ") || r.cause)} `, badge(r.finished_at === null ? "under way" : HOW[r.how] ?? r.how, r.finished_at === null ? "busy" : TONES[r.how])),
    timeline(r),
    facts([
      ["when", moment(r.failed_at)],
      swaps && ["spare", swaps],
      where && ["steps", where],
      r.total_s !== null && ["to the first new step", `${seconds(r.total_s)}${r.own_s === null ? "" : `, ${seconds(r.own_s)} of it lightloom's`}`],
      r.why && ["why", r.why],
    ]));
}
