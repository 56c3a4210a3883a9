// Moving one endpoint's light by hand: to another aggregator, or to none.

import { part, post, rehearse } from "../api.js";
import { attempt, confirm } from "../ui/dialog.js";
import { h, keep, renew } from "../ui/dom.js";
import { badge, button } from "../ui/parts.js";

const DARK = "";

/** Why the user may not move endpoint `e`, "" when they may. */
export const whyNot = (app, e) =>
  app.mayNot("fabric:change") || (app.data.lists.aggregators.some((a) => e.fiber.startsWith(`${a.name}/`)) ? "it is hard-wired" : "");

/** Why endpoint `e` cannot move to aggregator `a`, "" when it can. */
export const whyNotTo = (e, a) =>
  a.name === e.home ? `${e.name} is under ${a.name} already` : a.free > 0 ? "" : `${a.name} has no free port`;

/** Ask, then move the endpoint `name` to an aggregator, or to none (null). */
export function askMove(app, name, to) {
  const e = app.data.find("endpoints", name);
  const warnings = h("div", { role: "status" });
  if (e?.job) warn(app, name, to, warnings);
  confirm(
    to ? `Move ${name} to ${to}?` : `Darken ${name}?`,
    [h("p", {}, e?.job ? `Job ${e.job} is interrupted for the dark time, and may end up spread.` : "It is idle: no job is affected."), warnings],
    to ? "Move" : "Darken",
    async () => app.started(await post(`/endpoints/${part(name)}/attachment`, { aggregator: to })),
  );
}

/** Say in the open question what the move makes worse; the move itself says why it is refused. */
async function warn(app, name, to, there) {
  const found = await attempt(() => rehearse("/allocation", { site: app.data.site.name, homes: { [name]: to } }));
  renew(there, (found?.warnings ?? []).map((text) => h("p", {}, badge("warning", "warn"), ` ${text}`)));
}

/** A field and a button that move an endpoint; updates keep the choice. */
export class Mover {
  #app;
  #name = "";
  #field = h("select", {});

  constructor(app) {
    this.#app = app;
    this.element = h("div", { class: "mover" });
  }

  /** Show endpoint `e`; disabled for users who may not move it. */
  show(e) {
    const why = whyNot(this.#app, e);
    const others = this.#app.data.lists.aggregators.filter((a) => !whyNotTo(e, a));
    keep(this.element, [e.name, why], () => this.#made(e.name, why));
    // Do not change an open list of choices.
    if (document.activeElement === this.#field && this.#name === e.name) return;
    const chosen = this.#name === e.name ? this.#field.value : null;
    this.#name = e.name;
    keep(this.#field, [e.name, Boolean(e.home), others.map((a) => [a.name, a.free])], () => [
      others.map((a) => h("option", { value: a.name }, `${a.name} (${a.free} free)`)),
      e.home ? h("option", { value: DARK }, "dark") : "",
    ]);
    if ([...this.#field.options].some((option) => option.value === chosen)) this.#field.value = chosen;
  }

  #made(name, why) {
    this.#field = h("select", { "aria-label": `Move ${name} to`, disabled: Boolean(why) });
    return [this.#field, button("Move …", () => askMove(this.#app, name, this.#field.value || null), { kind: "small", why })];
  }
}
