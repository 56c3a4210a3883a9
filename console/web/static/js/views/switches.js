// Optical switches: device data, ports with power and alarms, circuits, and quarantined objects.

import { get, part, post } from "../api.js";
import { groups } from "../topology/model.js";
import { attempt, confirm } from "../ui/dialog.js";
import { h, keep, renew } from "../ui/dom.js";
import { dbm, moment } from "../ui/format.js";
import { badge, button, emulatedBadge, facts, jobLink } from "../ui/parts.js";
import { Table } from "../ui/table.js";

const READ_MS = 5000;

export function switches(app, _, chosen) {
  const { data } = app;
  let timer = 0;
  let reading = false;
  let trouble = "";
  const choices = h("nav", { class: "choices", "aria-label": "Switches" });
  const card = h("div", { class: "panel" });
  const name = h("h2", {});
  const ports = new Map();
  const faults = h("div", {});
  const heading = h("h2", {});
  const table = new Table({
    label: "Ports",
    key: (p) => p.id,
    empty: "no ports are known",
    columns: [
      { id: "port", label: "Port", value: (p) => p.port, cell: (p) => h("code", {}, p.id) },
      { id: "leads", label: "Leads to", value: (p) => p.far },
      { id: "peer", label: "Circuit to", value: (p) => p.peer, cell: (p) => (p.peer ? h("code", {}, p.peer) : "–") },
      { id: "state", label: "State", value: (p) => p.state, cell: (p) => (p.state ? badge(p.state) : "–") },
      { id: "job", label: "Job", value: (p) => p.job, cell: (p) => (p.job ? jobLink(app.looks, p.job) : "–") },
      { id: "in", label: "Light in", value: (p) => p.power_in_dbm, right: true, cell: (p) => dbm(p.power_in_dbm) },
      { id: "out", label: "Light out", value: (p) => p.power_out_dbm, right: true, cell: (p) => dbm(p.power_out_dbm) },
      { id: "alarm", label: "Alarms and faults", value: (p) => p.fault, wrap: true, cell: (p) => (p.fault ? badge(p.fault, "bad") : "–") },
    ],
  });
  const element = h(
    "section",
    { class: "view switches" },
    h("header", { class: "toolbar" }, h("h1", {}, "Switches"),
      h("input", { type: "search", id: "search", placeholder: "Filter ports", "aria-label": "Filter ports", oninput: (e) => (table.filter = e.target.value) })),
    h("div", { class: "page" },
      choices,
      h("div", { class: "columns" }, h("section", {}, name, card), h("section", {}, h("h2", {}, "Out of use"), h("div", { class: "panel" }, faults))),
      h("section", {}, heading, table.element)),
  );

  const current = () => data.lists.switches.find((s) => s.name === chosen) ?? data.lists.switches[0];

  function choice(s) {
    return h("a", { class: "choice", href: `#/switches/${encodeURIComponent(s.name)}`, "aria-current": s === current() ? "page" : null },
      h("b", {}, s.name), badge(s.connected ? "connected" : "away"), h("span", { class: "muted" }, `${s.circuits} circuits`));
  }

  function about(s) {
    const alarms = ports.get(s.name)?.alarms ?? [];
    return facts([
      ["state", h("span", {}, badge(s.connected ? "connected" : "away"), data.health?.emulated.includes(`switch/${s.name}`) ? emulatedBadge() : "")],
      s.error && ["error", s.error],
      trouble && s.connected && ["last reading", trouble],
      ["device", [s.vendor, s.model].filter(Boolean).join(" ") || "–"],
      ["serial", s.serial || "–"],
      ["firmware", s.firmware || "–"],
      ["circuits", `${s.circuits} ours${s.foreign_circuits ? `, ${s.foreign_circuits} foreign` : ""}`],
      ["address", s.url ? h("code", {}, s.url) : "–"],
      ["alarms", alarms.length ? h("span", {}, alarms.map((a) => h("p", { class: "line" }, badge(a.severity, "bad"), ` ${a.object ? `${a.object}: ` : ""}${a.text}`))) : "none"],
    ]);
  }

  function repair(s) {
    return button("Repair", () => confirm(`Repair ${s.name}?`, h("p", {}, "The controller reads its circuit map again and restores all circuits that jobs need."), "Repair", () => post(`/switches/${part(s.name)}/repair`).then(() => data.touch())), { kind: "small", why: app.mayNot("fabric:change") });
  }

  function rows(s) {
    const circuits = new Map();
    for (const c of data.lists.circuits.filter((one) => one.switch === s.name)) {
      circuits.set(c.a, { ...c, peer: c.b });
      circuits.set(c.b, { ...c, peer: c.a });
    }
    const health = new Map((ports.get(s.name)?.ports ?? []).map((p) => [p.port, p.health]));
    const light = new Map(data.lists.power.filter((p) => p.switch === s.name).map((p) => [p.port, p]));
    const alarms = new Map(groups(ports.get(s.name)?.alarms ?? [], (a) => a.object).map(({ name: object, members }) => [object, members.map((a) => a.text)]));
    const jobOf = new Map(data.lists.endpoints.map((e) => [e.name, e.job]));
    const out = new Map(data.lists.quarantine.map((q) => [q.object, q.reason]));
    const row = (id, far, object) => {
      const port = id.slice(s.name.length + 1);
      const circuit = circuits.get(port);
      const seen = light.get(port);
      const bad = [out.get(object), health.get(port) === "failed" ? "failed" : "", ...(alarms.get(port) ?? [])].filter(Boolean).join("; ");
      return { id, port, far, peer: circuit?.peer ?? "", state: circuit?.state ?? "dark", job: jobOf.get(circuit?.endpoint) ?? "", power_in_dbm: seen?.power_in_dbm, power_out_dbm: seen?.power_out_dbm, fault: bad };
    };
    const here = (fiber) => fiber.startsWith(`${s.name}/`);
    return [
      ...data.lists.endpoints.filter((e) => here(e.fiber)).map((e) => row(e.fiber, e.name, e.name)),
      ...data.lists.aggregators.flatMap((a) => a.ports.filter((p) => p.kind === "fiber" && here(p.far)).map((p) => row(p.far, `${a.name}/${p.port}`, `${a.name}/${p.port}`))),
    ];
  }

  function render() {
    const s = current();
    const all = data.lists.switches;
    keep(choices, all.map((one) => [one.name, one.connected, one.circuits]), () => (all.length > 1 ? all.map(choice) : ""));
    if (!s) return;
    keep(name, s.name, () => [s.name, " ", repair(s)]);
    renew(card, about(s));
    renew(heading, `Ports of ${s.name}`);
    table.items = rows(s);
    const not = app.mayNot("fabric:change");
    keep(faults, data.lists.quarantine, () => data.lists.quarantine.length
      ? data.lists.quarantine.map((q) => h("p", { class: "line" }, badge(q.object, "bad"), ` ${q.reason}, since ${moment(q.since)} `, button("Put back into use", () => attempt(() => post(`/quarantine/${q.object}/release`).then(() => data.touch()), `${q.object} is back in use`), { kind: "small", why: not })))
      : h("p", { class: "muted" }, "nothing: every port and endpoint may be used"));
  }

  async function read() {
    const s = current();
    if (!s?.connected || reading) return;
    reading = true;
    data.touch(["power"]);
    try {
      ports.set(s.name, await get(`/switches/${part(s.name)}/ports`));
      trouble = "";
    } catch (problem) {
      // The last reading stays until the next one succeeds.
      trouble = problem.message;
    }
    reading = false;
    render();
  }

  return {
    title: "Switches",
    element,
    lists: ["switches", "circuits", "endpoints", "aggregators", "quarantine", "power"],
    mounted() {
      render();
      read();
      timer = setInterval(read, READ_MS);
    },
    update: (topic) => topic !== "sample" && topic !== "events" && render(),
    destroy: () => clearInterval(timer),
  };
}
