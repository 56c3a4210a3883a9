// Every object in a list, by kind, with the ids and columns of `lightloom get KIND -o wide`.

import { nameOf } from "../data.js";
import { h } from "../ui/dom.js";
import { age, bytes, percent, rate, spread } from "../ui/format.js";
import { badge, jobLink } from "../ui/parts.js";
import { Table } from "../ui/table.js";
import { Facts, SINGULAR } from "./facts.js";
import { readingColumns } from "./readings.js";

const plain = (id, label = id, extra = {}) => ({ id, label: label[0].toUpperCase() + label.slice(1), value: (o) => value(o[id]), ...extra });
const figure = (id, label, write) => ({ id, label, value: (o) => o[id], right: true, cell: (o) => write(o[id]) });
const state = { id: "state", label: "State", value: (o) => o.state, cell: (o) => badge(o.state) };
const up = (id) => ({ id, label: "State", value: (o) => (o[id] ? "connected" : "away"), cell: (o) => badge(o[id] ? "connected" : "away") });
/** The latest sample of an object, by kind; the list is older, it is read only after a change. */
const SAMPLED = {
  jobs: (live, j) => live.jobs.get(j.name),
  endpoints: (live, e) => live.endpoints.get(e.name),
  containers: (live, c) => (c.state === "running" || c.state === "paused" ? ofContainer(live.endpoints.get(c.endpoint), c) : undefined),
};
const ofContainer = (row, c) => (row?.job === c.job && row.rank === c.rank ? row : undefined);
const FIGURES = [["rx_bps", "Receives", rate], ["tx_bps", "Sends", rate], ["utilisation", "Busy", percent]];
const rates = ({ data }, kind) => FIGURES.map(([id, label, write]) => {
  const latest = (o) => (SAMPLED[kind](data.live, o) ?? o)[id];
  return { id, label, value: latest, right: true, cell: (o) => write(latest(o)) };
});
const lasted = (since) => (since ? age(Date.now() / 1000 - since) : "–");
const since = (id) => ({ id, label: "Age", value: (o) => (o[id] ? -o[id] : null), right: true, sign: (o) => lasted(o[id]), cell: (o) => lasted(o[id]) });
const value = (v) => (Array.isArray(v) ? v.join(" ") : v === "" ? null : typeof v === "boolean" ? (v ? "yes" : "no") : v);

/** Lists with figures that samples do not carry (memory, temperature, space) are read again at this interval. */
const READ_MS = 5000;
const MEASURED = Object.entries({ aggregators: "aggregator", nodes: "server", switches: "switch" });
const READ_AGAIN = new Set(["containers", "volumes", ...MEASURED.filter(([, of]) => readingColumns(of).length).map(([kind]) => kind)]);

const COLUMNS = {
  jobs: (app) => [plain("name"), state, plain("count", "GPUs", { right: true }), { id: "spread", label: "Spread", value: (j) => spread(j.spread) }, plain("span", "span", { right: true }), plain("project"), plain("locality"), plain("policy"), plain("endpoints", "ranks", { wrap: true }), ...rates(app, "jobs"), plain("restarts", "restarts", { right: true }), plain("reason", "reason", { wrap: true })],
  endpoints: (app) => [plain("name"), state, plain("home"), plain("port"), { id: "job", label: "Job", value: (e) => e.job, cell: (e) => (e.job ? jobLink(app.looks, e.job) : "–") }, plain("rank", "rank", { right: true }), plain("server"), plain("model"), plain("fiber"), plain("ip", "IP"), plain("mac", "MAC"), figure("memory_bytes", "Memory", bytes), plain("emulated"), ...rates(app, "endpoints"), plain("reason", "reason", { wrap: true })],
  aggregators: () => [plain("name"), up("connected"), plain("size", "ports", { right: true }), plain("used", "used", { right: true }), plain("free", "free", { right: true }), plain("jobs", "jobs", { wrap: true }), plain("endpoints", "endpoints", { wrap: true }), plain("dpid", "datapath"), ...readingColumns("aggregator")],
  switches: () => [plain("name"), up("connected"), plain("vendor"), plain("model"), plain("ports", "ports", { right: true }), plain("circuits", "circuits", { right: true }), plain("foreign_circuits", "foreign", { right: true }), ...readingColumns("switch"), plain("serial"), plain("firmware"), plain("url", "address"), plain("error", "error", { wrap: true })],
  circuits: () => [plain("switch"), plain("a", "A"), plain("b", "B"), state, plain("endpoint"), plain("aggregator"), plain("aggregator_port", "port", { right: true }), plain("name"), plain("owner")],
  containers: (app) => [plain("name"), state, plain("job"), plain("rank", "rank", { right: true }), plain("endpoint"), plain("server"), plain("exit_code", "exit", { right: true }), since("started_at"), ...rates(app, "containers"), figure("memory_bytes", "Memory", bytes), ...readingColumns("gpu", "gpu"), plain("source"), { id: "container_id", label: "Id", value: (c) => c.container_id.slice(0, 12) }],
  nodes: () => [plain("name"), up("reachable"), plain("agent"), plain("endpoints", "endpoints", { wrap: true }), plain("jobs", "jobs", { wrap: true }), plain("containers", "containers", { right: true }), ...readingColumns("server")],
  volumes: () => [plain("server"), plain("name"), plain("mode"), plain("per"), figure("free_bytes", "Free", bytes), figure("total_bytes", "Size", bytes), plain("filesystem", "file system"), plain("quota"), plain("projects", "projects", { wrap: true }), { id: "data", label: "Directories", value: (v) => v.data.length, right: true }, plain("problem", "problem", { wrap: true })],
};

export function objects(app, _, kind = "endpoints", chosen = "") {
  const { data } = app;
  let name = chosen;
  let read = performance.now();
  const known = kind in COLUMNS ? kind : "endpoints";
  const segments = h("div", { class: "segments", role: "group", "aria-label": "Kind" },
    Object.keys(COLUMNS).map((one) => h("a", { class: "segment", href: `#/objects/${one}`, "aria-current": one === known ? "page" : null }, one[0].toUpperCase() + one.slice(1))));
  const count = h("span", { class: "muted" });
  const facts = new Facts(app);
  const heading = h("h2", {});
  const drawer = h("aside", { class: "drawer", hidden: true, "aria-live": "polite" },
    h("header", {}, heading, h("a", { class: "button plain", "aria-label": "Close", href: `#/objects/${known}` }, "✕")), facts.element);
  const table = new Table({
    label: known,
    key: (o) => nameOf(known, o),
    columns: COLUMNS[known](app),
    empty: `no ${known}`,
    onOpen: (o) => (location.hash = `#/objects/${known}/${encodeURIComponent(nameOf(known, o))}`),
  });
  const search = h("input", { type: "search", id: "search", placeholder: "Filter: words in any column", "aria-label": `Filter ${known}`, oninput: (e) => filter(e.target.value) });
  const element = h("section", { class: "view objects" },
    h("header", { class: "toolbar" }, h("h1", {}, "Objects"), segments, search, count),
    h("div", { class: "stage list" }, table.element, drawer));

  function filter(text) {
    table.filter = text;
    counted();
  }

  function counted() {
    const all = data.lists[known].length;
    count.textContent = table.count === all ? `${all}` : `${table.count} of ${all}`;
  }

  function render() {
    table.items = data.lists[known];
    counted();
    drawer.hidden = !name;
    if (!name) return;
    heading.textContent = `${SINGULAR[known]}/${name}`;
    facts.show(known, name);
  }

  /** Show another object of the same list; the filter and the scroll position stay. */
  function moved(other = "endpoints", object = "") {
    if (other !== kind) return false;
    name = object;
    render();
    return true;
  }

  function update(topic) {
    const figures = topic === "sample" && known in SAMPLED;
    if (topic === "sample" && READ_AGAIN.has(known) && performance.now() - read >= READ_MS) {
      read = performance.now();
      data.touch([known]);
    }
    if (figures || topic === "lists" || topic === "events") render();
  }

  return { title: known[0].toUpperCase() + known.slice(1), element, lists: known === "endpoints" ? ["endpoints", "aggregators"] : [known], mounted: render, moved, update };
}
