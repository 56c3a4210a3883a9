// A job's checkpoints: how safe each step is, and what a restart would load.

import { get, part, post, remove } from "../api.js";
import { confirm, attempt } from "../ui/dialog.js";
import { h, keep, renew } from "../ui/dom.js";
import { moment, seconds, size } from "../ui/format.js";
import { badge, button, problemBox } from "../ui/parts.js";
import { Poll } from "../ui/poll.js";
import { Table } from "../ui/table.js";

/** Servers may fall silent without a change of the job; everything else the stream tells. */
const AGAIN_MS = 30000;
const VERIFY_S = 600;
const TONES = { partial: "quiet", written: "warn", protected: "good", persistent: "good", dropped: "bad" };
/** The places of a step, and since when it is there. */
const PLACES = [
  ["local", "written_at", "on its own servers"],
  ["partner", "protected_at", "copies or parities are apart"],
  ["shared", "persistent_at", "in the store"],
];

/** The steps of one job; hidden for a job that keeps none. */
export class Checkpoints {
  #app;
  #name;
  #job = null;
  #poll;
  #view = null;
  #shown = null;
  #said = h("div", {});
  #trouble = h("div", {});
  #actions = h("div", { class: "actions" });
  #table;
  element;

  constructor(app, name) {
    this.#app = app;
    this.#name = name;
    this.#table = new Table({
      label: "Checkpoints",
      key: (s) => `${s.epoch}/${s.step}`,
      empty: "no step is written so far",
      columns: [
        { id: "step", label: "Step", value: (s) => s.step, right: true, sign: (s) => `${s.step} ${this.#loaded(s)}`, cell: (s) => (this.#loaded(s) ? h("b", { title: "a restart would load it" }, `${s.step} ◂`) : String(s.step)) },
        { id: "run", label: "Run", value: (s) => s.epoch, right: true, hide: "narrow" },
        { id: "state", label: "State", value: (s) => s.state, cell: (s) => badge(s.state, TONES[s.state]) },
        { id: "places", label: "Local, partner, shared", value: (s) => PLACES.filter(([, at]) => s[at] !== null).length, cell: dots },
        { id: "parts", label: "Parts", value: parts, right: true },
        { id: "bytes", label: "Size", value: (s) => s.bytes, right: true, cell: (s) => size(s.bytes) },
        { id: "written", label: "Written", value: (s) => s.written_at, right: true, hide: "small", cell: (s) => (s.written_at === null ? "–" : moment(s.written_at)) },
        { id: "protected", label: "Protected", value: (s) => s.protected_at, right: true, hide: "medium", cell: (s) => (s.protected_at === null ? "–" : moment(s.protected_at)) },
        { id: "persistent", label: "In the store", value: (s) => s.persistent_at, right: true, hide: "medium", cell: (s) => (s.persistent_at === null ? "–" : moment(s.persistent_at)) },
        { id: "took", label: "Took", value: (s) => s.written_s_median, right: true, hide: "medium", cell: (s) => seconds(s.written_s_median) },
        { id: "why", label: "Why", value: (s) => s.why, wrap: true },
        { id: "drop", label: "Remove", mute: true, value: () => this.#mayNot(), cell: (s) => button("Drop", () => this.#drop(s), { kind: "small", why: this.#mayNot() }) },
      ],
    });
    this.element = h("section", { "aria-label": "Checkpoints", hidden: true }, h("h2", {}, "Checkpoints"), this.#said, this.#trouble, this.#table.element, this.#actions);
    this.#poll = new Poll({
      read: () => get(`/jobs/${part(name)}/checkpoints`),
      take: (view) => this.#show(view),
      failed: (problem) => renew(this.#trouble, problemBox(problem)),
      wait: () => AGAIN_MS,
    });
  }

  /** Show the checkpoints of job `j`. */
  render(j) {
    this.#job = j;
    this.element.hidden = !j.checkpoint;
    if (!j.checkpoint) return;
    keep(this.#actions, [this.#mayNot()], () => [button("Verify all parts", () => this.#verify(), { kind: "small", why: this.#mayNot() })]);
    const news = safety(j);
    if (news === this.#shown) return;
    this.#shown = news;
    this.#poll.soon();
  }

  stop() {
    this.#poll.stop();
  }

  #mayNot() {
    return this.#app.mayNot("jobs:change", this.#job?.project ?? null);
  }

  #loaded(s) {
    return this.#view !== null && s.restorable && s.step === this.#view.restore_step;
  }

  #show(view) {
    this.#view = view;
    renew(this.#trouble);
    this.#table.items = view.steps;
    const loads = view.restore_step === null ? "starts at step 0" : `loads step ${view.restore_step}`;
    renew(this.#said,
      h("p", {}, `A restart ${loads}${view.restore_why ? `: ${view.restore_why}` : ""}. Rule ${view.rule}, ${view.scheme}, ${size(view.space_bytes)} a rank.`),
      view.unprotected_why ? h("p", {}, badge("not protected", "warn"), ` ${view.unprotected_why}`) : "",
      view.silent.length ? h("p", {}, badge("no answer", "warn"), ` from ${view.silent.join(", ")}`) : "",
      view.known ? "" : h("p", { class: "muted" }, "not every server has said what it holds so far"),
      view.ignored.length ? h("p", { class: "muted" }, `not a step by this rule: ${view.ignored.join("; ")}${view.naming ? `. The rule takes ${view.naming}.` : ""}`) : "");
  }

  async #verify() {
    const found = await attempt(() => post(`/jobs/${part(this.#name)}/checkpoints/verify`, undefined, VERIFY_S));
    if (!found) return;
    this.#app.notice(found.damaged.length ? `${found.damaged.length} of ${found.parts} parts are damaged` : `${found.parts} parts, ${size(found.bytes)}: all as they were written`, found.damaged.length ? "bad" : "");
    this.#poll.soon();
  }

  #drop(s) {
    const newest = s.step === this.#view.steps.find((one) => one.complete)?.step;
    confirm(
      `Drop step ${s.step} of ${this.#name}?`,
      h("p", {}, `${newest ? "It is the newest complete one: a restart will lose its steps. " : ""}Its parts, copies and parities are removed. This cannot be undone.`),
      "Drop the step",
      async () => {
        this.#show(await remove(`/jobs/${part(this.#name)}/checkpoints/${s.step}?force=${newest}`));
      },
      { kind: "danger" },
    );
  }
}

/** What the stream tells of a job's checkpoints and its recovery: other text, other answers. */
export const safety = (j) => JSON.stringify([j.recovery, j.state, j.epoch, j.conditions.find((c) => c.type === "Protected") ?? null]);

const parts = (s) => `${s.parts.filter((p) => p.held_by.length || p.parity_by.length || p.stored).length}/${s.parts.length}`;

/** One dot a place: full where the step is. */
function dots(s) {
  const there = PLACES.filter(([, at]) => s[at] !== null).map(([name]) => name);
  return h("span", { class: "dots", role: "img", "aria-label": there.join(", ") || "nowhere" }, PLACES.map(([name, at, text]) => h("span", { class: s[at] === null ? "dot" : "dot full", title: `${name}: ${s[at] === null ? "not " : ""}${text}` })));
}
