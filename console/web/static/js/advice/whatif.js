// What if the endpoints of a job had other homes: its step before anything moves.

import { part, post } from "../api.js";
import { h, keep, show } from "../ui/dom.js";
import { change, exact, range } from "../ui/format.js";
import { badge, button, problemBox, tile } from "../ui/parts.js";

/** Beyond, homes are written as on the command line. */
const MOST_FIELDS = 64;

export class WhatIf {
  #app;
  #job;
  #fields = new Map();
  #lines = null;
  #form = h("div", {});
  #result = h("div", { class: "stack", "aria-live": "polite" });
  #asked = () => {};

  /** `asked` is called after each prediction. */
  constructor(app, job, asked) {
    this.#app = app;
    this.#job = job;
    this.#asked = asked;
    this.element = h("div", { class: "stack" }, this.#form, this.#result);
  }

  /** Offer the homes of job `j`; what the user has chosen stays. */
  render(j) {
    const why = this.#app.mayNot("predictions:make", j.project) || (j.state === "running" ? "" : `it is ${j.state}`);
    const aggregators = this.#app.data.lists.aggregators.map((a) => a.name);
    keep(this.#form, [why, aggregators, j.ranks.map((r) => r.endpoint)], () => this.#made(j, aggregators, why));
    for (const r of j.ranks) {
      const field = this.#fields.get(r.endpoint);
      if (!field || field.dataset.home === (r.home ?? "")) continue;
      // Its light moved: "as it is" means the new home now.
      field.dataset.home = r.home ?? "";
      field.options[0].textContent = stays(r);
    }
  }

  #made(j, aggregators, why) {
    const chosen = new Map([...this.#fields].map(([name, field]) => [name, field.value]));
    this.#fields = new Map();
    this.#lines = null;
    const ask = button("Predict the step", () => this.#ask(), { kind: "primary", why });
    if (j.ranks.length > MOST_FIELDS) {
      this.#lines = h("textarea", { rows: 3, placeholder: "gpu3=as0 gpu4=as0", spellcheck: "false", "aria-label": "Homes to suppose", disabled: Boolean(why) });
      return h("div", { class: "toolform" }, h("label", {}, h("span", {}, "Homes to suppose"), this.#lines), ask);
    }
    for (const r of j.ranks) {
      const field = h("select", { disabled: Boolean(why), "data-home": r.home ?? "" }, h("option", { value: "" }, stays(r)), aggregators.map((name) => h("option", { value: name }, name)));
      if (aggregators.includes(chosen.get(r.endpoint))) field.value = chosen.get(r.endpoint);
      this.#fields.set(r.endpoint, field);
    }
    return h("div", { class: "toolform" }, j.ranks.map((r) => h("label", {}, h("span", {}, `${r.rank} · ${r.endpoint}`), this.#fields.get(r.endpoint))), ask);
  }

  /** The homes that differ from today's. */
  #homes() {
    if (this.#lines) return Object.fromEntries(this.#lines.value.split(/[\s,]+/).filter((one) => one.includes("=")).map((one) => one.split("=").map((side) => side.trim())));
    return Object.fromEntries([...this.#fields].filter(([, field]) => field.value && field.value !== field.dataset.home).map(([name, field]) => [name, field.value]));
  }

  async #ask() {
    const homes = this.#homes();
    if (!Object.keys(homes).length) {
      show(this.#result, h("p", { class: "muted" }, "choose another home for at least one endpoint"));
      return;
    }
    try {
      show(this.#result, this.#answer(await post(`/jobs/${part(this.#job)}/whatif`, { homes })));
      this.#asked();
    } catch (problem) {
      show(this.#result, problemBox(problem));
    }
  }

  #answer(w) {
    const moves = Object.entries(w.homes_after).filter(([name, home]) => home !== w.homes_before[name]);
    return [
      h("div", { class: "stats" },
        tile("Step now", exact(w.step_now_s), `ring rate ${rate(w.ring_rate_before)}`),
        tile("Step then", range(w.step_then_s, exact), `ring rate ${rate(w.ring_rate_after)}`),
        tile("Change", range(w.change, change), w.change ? (w.change.high < 0 ? "faster" : w.change.low > 0 ? "slower" : "it may be either") : "nothing is known of its steps"),
        tile("Aggregators", `${w.span_before} → ${w.span_after}`, `${moves.length} ${moves.length === 1 ? "move" : "moves"}: ${moves.slice(0, 8).map(([name, home]) => `${name} to ${home ?? "dark"}`).join(", ")}${moves.length > 8 ? " …" : ""}`)),
      h("p", {}, badge(w.possible ? "possible" : "not possible", w.possible ? "good" : "warn"), w.possible ? " the ports suffice to move them there now; nothing has moved" : " the ports do not suffice to move them there now", ` · prediction ${w.prediction}`),
      w.basis.length ? h("p", { class: "muted" }, `It rests on: ${w.basis.join("; ")}`) : "",
      w.unidentified.length ? h("p", { class: "muted" }, `It is an interval because: ${w.unidentified.join("; ")}`) : "",
    ];
  }
}

const stays = (r) => `${r.home ?? "dark"} (as it is)`;

const rate = (share) => (share === null ? "not known" : share.toFixed(2));
