// What if some endpoints of a job had other homes, chosen one after the other on the topology: the
// step of the job before anything moves.

import { part, post } from "../api.js";
import { h, keep, show } from "../ui/dom.js";
import { change, exact, range } from "../ui/format.js";
import { badge, button, facts, problemBox } from "../ui/parts.js";

export class Suppose {
  #app;
  #about = "";
  #field = null;
  #answers = new Map();
  #form = h("div", { class: "stack" });
  #result = h("div", { class: "stack", "aria-live": "polite" });

  /** What is supposed is kept by `app`: it stays while other endpoints are chosen. */
  constructor(app) {
    this.#app = app;
    this.element = h("section", { "aria-label": "What if", hidden: true }, h("h3", {}, "What if"), this.#form, this.#result);
  }

  /** Offer homes for endpoint `e`; hidden unless it belongs to a running job. */
  show(e) {
    const job = this.#app.data.find("jobs", e.job ?? "");
    this.element.hidden = job?.state !== "running";
    if (this.element.hidden) return;
    const supposed = this.#of(job.name);
    // Those that moved there meanwhile, or are not the job's any more.
    for (const [name, home] of supposed) if (!job.ranks.some((r) => r.endpoint === name && r.home !== home)) supposed.delete(name);
    const why = this.#app.mayNot("predictions:make", job.project);
    const others = this.#app.data.lists.aggregators.map((a) => a.name).filter((name) => name !== e.home);
    keep(this.#form, [e.name, e.home, why, others, [...supposed]], () => this.#made(e, job.name, others, why));
    if (this.#about === job.name) return;
    this.#about = job.name;
    show(this.#result, this.#answers.get(job.name) ?? "");
  }

  #of(job) {
    const { supposed } = this.#app;
    if (!supposed.has(job)) supposed.set(job, new Map());
    return supposed.get(job);
  }

  #made(e, job, others, why) {
    const supposed = this.#of(job);
    this.#field = h("select", { "aria-label": `Suppose ${e.name} under`, disabled: Boolean(why), onchange: () => this.#chosen(e, job) },
      h("option", { value: "" }, `${e.home ?? "dark"} (as it is)`), others.map((name) => h("option", { value: name }, name)));
    this.#field.value = supposed.get(e.name) ?? "";
    const more = [...supposed].filter(([name]) => name !== e.name);
    return [
      h("div", { class: "mover" }, this.#field, button("Predict the step", () => this.#ask(job), { kind: "small", why: why || (supposed.size ? "" : "choose another home first") })),
      more.length ? h("p", { class: "muted" }, `also supposed: ${more.map(([name, home]) => `${name} under ${home}`).join(", ")} `, button("Forget", () => this.#forget(e, job), { kind: "small" })) : "",
    ];
  }

  #chosen(e, job) {
    if (this.#field.value) this.#of(job).set(e.name, this.#field.value);
    else this.#of(job).delete(e.name);
    this.show(e);
    document.activeElement === document.body && this.#field.focus();
  }

  #forget(e, job) {
    this.#of(job).clear();
    this.#answers.delete(job);
    show(this.#result);
    this.show(e);
  }

  async #ask(job) {
    try {
      this.#tell(job, answer(await post(`/jobs/${part(job)}/whatif`, { homes: Object.fromEntries(this.#of(job)) })));
    } catch (problem) {
      this.#tell(job, problemBox(problem));
    }
  }

  /** Another endpoint may have been chosen since. */
  #tell(job, found) {
    this.#answers.set(job, found);
    if (this.#about === job) show(this.#result, found);
  }
}

function answer(w) {
  const moves = Object.entries(w.homes_after).filter(([name, home]) => home !== w.homes_before[name]);
  return h("div", { class: "panel" }, facts([
    ["step now", exact(w.step_now_s)],
    ["step then", range(w.step_then_s, exact)],
    ["change", w.change ? `${range(w.change, change)}: ${w.change.high < 0 ? "faster" : w.change.low > 0 ? "slower" : "it may be either"}` : "nothing is known of its steps"],
    ["aggregators", `${w.span_before} → ${w.span_after}`],
    ["moves", `${moves.map(([name, home]) => `${name} to ${home ?? "dark"}`).join(", ")}; nothing has moved`],
    ["ports", h("span", {}, badge(w.possible ? "possible" : "not possible", w.possible ? "good" : "warn"))],
    w.basis.length && ["rests on", w.basis.join("; ")],
    w.unidentified.length && ["an interval because", w.unidentified.join("; ")],
    ["prediction", h("a", { href: "#/measurements/predictions" }, w.prediction)],
  ]));
}
