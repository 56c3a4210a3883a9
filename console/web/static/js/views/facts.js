// Facts about one object, for the panel beside the drawing and for the page of an object.

import { part, remove } from "../api.js";
import { nameOf } from "../data.js";
import { Suppose } from "../advice/suppose.js";
import { Drainer } from "../survival/drain.js";
import { Mover } from "./attach.js";
import { gpuFacts, readingFacts } from "./readings.js";
import { confirm } from "../ui/dialog.js";
import { h, renew } from "../ui/dom.js";
import { age, bytes, moment, percent, plural, rate } from "../ui/format.js";
import { badge, button, emulatedBadge, facts as list, jobLink, spreadBars } from "../ui/parts.js";

const MOST = 12;
const SHARED = { site: "all jobs", project: "the jobs of a project", job: "the ranks of a job" };
const link = (kind, name) => h("a", { href: `#/objects/${kind}/${encodeURIComponent(name)}` }, name);
const yes = (value) => badge(value ? "connected" : "away");
const linked = (kind, names) =>
  names.length ? h("span", { class: "names" }, names.slice(0, MOST).map((name) => link(kind, name)), names.length > MOST ? `and ${names.length - MOST} more` : "") : "–";
const jobs = (app, names) => (names.length ? h("span", { class: "names" }, names.map((name) => jobLink(app.looks, name))) : "–");

const ABOUT = {
  endpoints: (app, e) => {
    const row = app.data.live.endpoints.get(e.name) ?? e;
    return [
      ["state", h("span", {}, badge(e.state), e.emulated ? emulatedBadge() : "")],
      e.reason && ["reason", e.reason],
      ["job", e.job ? h("span", {}, jobLink(app.looks, e.job), ` rank ${e.rank}`) : "–"],
      ["home", e.home ? link("aggregators", e.home) : "dark"],
      ["port", e.port ?? "–"],
      ["fiber", h("code", {}, e.fiber)],
      ["server", link("nodes", e.server)],
      ["model", `${e.model} (${e.kind}, ${bytes(e.memory_bytes)})`],
      ["receives", rate(row.rx_bps)],
      ["sends", rate(row.tx_bps)],
      ["busy", percent(row.utilisation)],
      ...gpuFacts(e),
      ["address", h("code", {}, `${e.ip} ${e.mac}`)],
    ];
  },
  aggregators: (app, a) => [
    ["state", yes(a.connected)],
    ["ports", `${a.used} of ${a.size} in use, ${a.free} free`],
    ["jobs", jobs(app, a.jobs)],
    ["endpoints", linked("endpoints", a.endpoints)],
    ["faulty ports", a.ports.filter((p) => p.quarantined).map((p) => `${a.name}/${p.port}`).join(" ") || "none"],
    ["datapath", h("code", {}, a.dpid)],
    a.model && ["model", a.model],
    a.metadata_bits != null && ["metadata", `${a.metadata_bits} bits, ${a.tables ?? "?"} tables`],
    ...readingFacts("aggregator", a.readings),
    ...a.ports.flatMap((p) => readingFacts("port", p.readings).map(([label, text]) => [`${label}, port ${p.port}`, text])),
    ["", h("a", { class: "button", href: `#/topology?focus=aggregator/${encodeURIComponent(a.name)}` }, "Show only this")],
  ],
  switches: (_, s) => [
    ["state", yes(s.connected)],
    s.error && ["error", s.error],
    ["device", [s.vendor, s.model].filter(Boolean).join(" ") || "–"],
    ["circuits", `${s.circuits} ours, ${s.foreign_circuits} foreign`],
    ["ports", `${s.ports} cabled`],
    ...readingFacts("switch", s.readings),
    ["address", h("code", {}, s.url)],
    ["", h("a", { class: "button", href: `#/switches/${encodeURIComponent(s.name)}` }, "Ports and circuits")],
  ],
  circuits: (app, c) => [
    ["state", badge(c.state)],
    ["switch", link("switches", c.switch)],
    ["ports", h("code", {}, `${c.a} – ${c.b}`)],
    ["endpoint", c.endpoint ? link("endpoints", c.endpoint) : "–"],
    ["aggregator", c.aggregator ? `${c.aggregator}/${c.aggregator_port}` : "–"],
    ["name", c.name || "–"],
    ["owner", c.owner || "–"],
  ],
  nodes: (app, n) => [
    ["state", badge(n.reachable ? "connected" : "away")],
    ["agent", h("code", {}, n.agent)],
    ["endpoints", linked("endpoints", n.endpoints)],
    ["jobs", jobs(app, n.jobs)],
    ["containers", String(n.containers)],
    ...readingFacts("server", n.readings),
    ["", h("a", { class: "button", href: `#/topology?focus=server/${encodeURIComponent(n.name)}` }, "Show only this")],
  ],
  jobs: (app, j) => [
    ["state", badge(j.state)],
    j.reason && ["reason", j.reason],
    ["spread", spreadBars(j.spread)],
    ["age", age(Date.now() / 1000 - j.submitted_at)],
    ["", h("a", { class: "button", href: `#/jobs/${encodeURIComponent(j.name)}` }, "Open the job")],
  ],
  containers: (app, c) => [
    ["state", badge(c.state)],
    ["job", jobLink(app.looks, c.job)],
    ["rank", String(c.rank)],
    ["endpoint", link("endpoints", c.endpoint)],
    ["server", link("nodes", c.server)],
    ["started", c.started_at ? moment(c.started_at) : "–"],
    ["exit code", c.exit_code ?? "–"],
    ["busy", h("span", {}, percent(c.utilisation), c.source === "emulated" ? emulatedBadge() : "")],
    ["memory", bytes(c.memory_bytes)],
    ...gpuFacts(c),
    ["id", h("code", {}, c.container_id)],
  ],
  volumes: (app, v) => [
    ["state", h("span", {}, badge(v.problem ? "no" : "yes", v.problem ? "warn" : "good"), ` ${v.problem || "usable"}`)],
    ["server", link("nodes", v.server)],
    ["jobs", v.mode === "rw" ? "may write" : "may read"],
    ["projects", v.projects.join(" ") || "all"],
    ["shared by", SHARED[v.per]],
    ["space", `${bytes(v.free_bytes)} free of ${bytes(v.total_bytes)}`],
    ["file system", v.filesystem || "–"],
    ["quotas", v.quota || "–"],
    ...v.data.slice(0, MOST).map((d) => [d.job ?? d.project, leftData(app, v, d)]),
    v.data.length > MOST && ["", `and ${v.data.length - MOST} more: lightloom get volumes`],
  ],
};

/** A directory that a project or a job left, and the button that removes it. */
function leftData(app, volume, data) {
  const [whose, used] = [data.job ? `job ${data.job} of project ${data.project}` : `project ${data.project}`, data.used_by.length];
  const why = app.mayNot("volumes:change", data.project) || (used ? `${data.used_by[0]} uses it` : "");
  const ask = () => confirm(
    `Remove what ${whose} left in ${volume.name}?`,
    h("p", {}, `${bytes(data.bytes)} on ${volume.server} are deleted. This cannot be undone.`),
    "Remove the data",
    async () => {
      const done = await remove(`/volumes/${part(volume.name)}/data/${part(data.owner)}?server=${part(volume.server)}`);
      app.data.touch(["volumes"]);
      const left = done.directories.find((d) => d.problem);
      if (left) throw new Error(`not removed from ${left.server}: ${left.problem}`);
    },
    { kind: "danger" },
  );
  const end = data.kept_until ? `, kept for ${age(data.kept_until - Date.now() / 1000)}` : "";
  return h("span", {}, `${bytes(data.bytes)} in ${data.files ?? "unknown"} files, ${used ? `used by ${data.used_by.join(" ")}` : `last used ${data.used_at ? moment(data.used_at) : "never"}${end}`} `,
    button("Remove", ask, { kind: "small", why }));
}

/** Facts and latest events of one object; elements that did not change stay in place. */
export class Facts {
  #app;
  #list = h("div", {});
  #mover;
  #lead;
  #suppose;
  #drainer;
  #events = h("section", {});

  constructor(app) {
    this.#app = app;
    this.#mover = new Mover(app);
    this.#lead = h("div", { class: "lead", hidden: true }, h("span", {}, "move to"), this.#mover.element);
    this.#suppose = new Suppose(app);
    this.#drainer = new Drainer(app);
    this.element = h("div", { class: "stack" }, this.#list, this.#lead, this.#suppose.element, this.#drainer.element, this.#events);
  }

  /** Show one object; its lists must be loaded. */
  show(kind, name) {
    const app = this.#app;
    const item = app.data.find(kind, name);
    const known = item && kind in ABOUT;
    renew(this.#list, known ? list(ABOUT[kind](app, item)) : h("p", { class: "muted" }, `no data about ${name}`));
    this.#lead.hidden = !(known && kind === "endpoints");
    if (this.#lead.hidden) this.#suppose.element.hidden = true;
    else {
      this.#mover.show(item);
      this.#suppose.show(item);
    }
    this.#drainer.show(known ? kind : "", name);
    const about = known ? `${SINGULAR[kind]}/${nameOf(kind, item)}` : "";
    const events = app.data.events.filter((event) => event.object === about).slice(-5).reverse();
    this.#events.hidden = !events.length;
    renew(this.#events, h("h3", {}, plural(events.length, "latest event")), events.map((event) => h("p", { class: "line" }, badge(event.severity), ` ${moment(event.time)} ${event.message}`)));
  }
}

export const SINGULAR = {
  jobs: "job",
  endpoints: "endpoint",
  aggregators: "aggregator",
  switches: "switch",
  circuits: "circuit",
  containers: "container",
  nodes: "node",
  volumes: "volume",
  quarantine: "quarantine",
};
