// Takes a server, an aggregator or an optical switch out of use, and puts it back.

import { get, part, post, remove } from "../api.js";
import { confirm } from "../ui/dialog.js";
import { h, keep } from "../ui/dom.js";
import { age } from "../ui/format.js";
import { badge, button } from "../ui/parts.js";

const AGAIN_MS = 5000;
const WORDS = { nodes: ["node", "server"], aggregators: ["aggregator", "aggregator"], switches: ["switch", "optical switch"] };

/** What is drained of one object, and its buttons; hidden for kinds that cannot be drained. */
export class Drainer {
  #app;
  #kind = "";
  #name = "";
  #read = -Infinity;
  #drains = [];
  element = h("div", { class: "drain", role: "group", "aria-label": "Maintenance", hidden: true });

  constructor(app) {
    this.#app = app;
  }

  /** Show an object; the drains are read again every few seconds. */
  show(kind, name) {
    this.element.hidden = !(kind in WORDS);
    if (this.element.hidden) return;
    const other = kind !== this.#kind || name !== this.#name;
    [this.#kind, this.#name] = [kind, name];
    this.#render();
    if (other || performance.now() - this.#read >= AGAIN_MS) this.#look();
  }

  async #look() {
    this.#read = performance.now();
    try {
      this.#drains = (await get("/drains")).items;
    } catch {
      return; // shown as before; the page says that the controller is away
    }
    this.#render();
  }

  #render() {
    const [kind, name, why] = [this.#kind, this.#name, this.#app.mayNot("fabric:change")];
    const drain = this.#drains.find((one) => one.object === `${WORDS[kind][0]}/${name}`) ?? null;
    const jobs = Object.entries(drain?.jobs ?? {});
    keep(this.element, [kind, name, why, drain?.state, jobs], () => (drain
      ? [
        h("p", {}, badge(drain.state, drain.state === "drained" ? "warn" : "busy"), ` for ${age(Date.now() / 1000 - drain.since)}`),
        jobs.length ? h("ul", {}, jobs.map(([job, waits]) => h("li", {}, `${job} waits for ${waits}`))) : "",
        jobs.length ? button("Do not wait …", () => this.#ask(true), { kind: "small", why }) : "",
        button("Put back into use", () => this.#undrain(), { kind: "small", why }),
      ]
      : [button("Drain …", () => this.#ask(false), { kind: "small", why, title: "take it out of use for maintenance" })]));
  }

  #ask(now) {
    const [kind, name] = [this.#kind, this.#name];
    confirm(
      now ? `Drain ${name} now?` : `Drain ${name}?`,
      h("p", {}, now
        ? "Jobs leave it at once and go on from their newest checkpoint; steps after it are lost. Jobs that may not be restarted end as failed."
        : `Nothing new is placed on this ${WORDS[kind][1]}. Its jobs leave it once a checkpoint is protected; jobs without checkpoints start elsewhere if they may be restarted, else they stay until their end.`),
      now ? "Drain now" : "Drain",
      async () => this.#put(await post(`/${kind}/${part(name)}/drain`, { now })),
      { kind: now ? "danger" : "primary" },
    );
  }

  #undrain() {
    const [kind, name] = [this.#kind, this.#name];
    confirm(
      `Put ${name} back into use?`,
      h("p", {}, "Jobs may be placed on it from now on."),
      "Put it back",
      async () => {
        const ended = await remove(`/${kind}/${part(name)}/drain`);
        this.#drains = this.#drains.filter((one) => one.object !== ended.object);
        this.#render();
      },
    );
  }

  #put(view) {
    this.#drains = [...this.#drains.filter((one) => one.object !== view.object), view];
    this.#read = performance.now();
    this.#render();
  }
}
