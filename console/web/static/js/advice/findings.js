// What limits a job, or the site, and what helps: the largest gain first.

import { get } from "../api.js";
import { h, renew } from "../ui/dom.js";
import { percent, range } from "../ui/format.js";
import { badge, jobLink, problemBox } from "../ui/parts.js";
import { Poll } from "../ui/poll.js";

const AGAIN_MS = 10_000;
const MOST = 100;
const TONES = { none: "good", compute: "good", unknown: "quiet" };

/** Findings about one job, or about all without a name; reads them again by itself. */
export class Findings {
  #app;
  #job;
  #poll;
  element = h("div", { class: "stack" });

  constructor(app, job = null) {
    this.#app = app;
    this.#job = job;
    this.#poll = new Poll({
      read: () => get("/advice", { job }),
      take: (advice) => renew(this.element, this.#parts(advice)),
      failed: (problem) => renew(this.element, job ? h("p", { class: "muted" }, problem.message) : problemBox(problem)),
      wait: () => AGAIN_MS,
    });
  }

  start() {
    this.#poll.now();
  }

  stop() {
    this.#poll.stop();
  }

  #parts({ limit, findings, unknown }) {
    return [
      limit ? h("p", {}, "Limited by ", badge(limit, TONES[limit] ?? "warn")) : "",
      findings.slice(0, MOST).map((one) => this.#finding(one)),
      findings.length > MOST ? h("p", { class: "muted" }, `and ${findings.length - MOST} more: lightloom advise`) : "",
      findings.length ? "" : h("p", { class: "muted" }, "nothing to improve was found"),
      unknown.length ? h("div", { class: "panel" }, h("h3", {}, "Not known"), h("ul", {}, unknown.slice(0, MOST).map((one) => h("li", {}, one)))) : "",
    ];
  }

  #finding(one) {
    return h("div", { class: "panel finding" },
      h("p", {}, badge(one.limit, TONES[one.limit] ?? "warn"), " ", this.#job ? "" : [jobLink(this.#app.looks, one.job), " "], h("b", {}, one.text), one.gain ? h("span", { class: "gain" }, `saves ${range(one.gain, percent)} of the step`) : ""),
      one.evidence.length ? h("ul", { class: "muted" }, one.evidence.slice(0, 20).map((line) => h("li", {}, line))) : "",
      one.remedy ? h("p", {}, one.remedy) : "",
      one.command ? h("pre", { class: "logs", tabindex: "0", "aria-label": "Command" }, one.command) : "");
  }
}

/** The page of all findings. */
export function findingsPage(app, segments) {
  const findings = new Findings(app);
  return {
    title: "Advice",
    element: h("section", { class: "view" }, h("header", { class: "toolbar" }, h("h1", {}, "Advice"), segments), h("div", { class: "page" }, findings.element)),
    lists: [],
    mounted: () => findings.start(),
    update: () => {},
    destroy: () => findings.stop(),
  };
}
