// Events as they happen, newest first.

import { text } from "../api.js";
import { attempt } from "../ui/dialog.js";
import { h, keep } from "../ui/dom.js";
import { moment } from "../ui/format.js";
import { badge, button } from "../ui/parts.js";
import { Table } from "../ui/table.js";

const SEVERITIES = ["all", "info", "warning", "error"];
const FORMS = { csv: ["CSV", "text/csv"], jsonl: ["JSON lines", "application/x-ndjson"] };
const PAGES = { job: (name) => `#/jobs/${name}`, endpoint: (n) => `#/objects/endpoints/${n}`, aggregator: (n) => `#/objects/aggregators/${n}`, switch: (n) => `#/switches/${n}`, node: (n) => `#/objects/nodes/${n}` };

export function events(app) {
  const { data } = app;
  let severity = "all";
  let words = "";
  const table = new Table({
    label: "Events",
    key: (e) => e.id,
    empty: "no events yet",
    columns: [
      { id: "id", label: "Id", value: (e) => e.id, right: true, hide: "narrow" },
      { id: "time", label: "Time", value: (e) => e.time, mute: true, cell: (e) => moment(e.time) },
      { id: "severity", label: "Severity", value: (e) => e.severity, cell: (e) => badge(e.severity) },
      { id: "object", label: "Object", value: (e) => e.object, cell: (e) => about(e.object) },
      { id: "reason", label: "Reason", value: (e) => e.reason },
      { id: "message", label: "Message", value: (e) => e.message, wrap: true },
      { id: "epoch", label: "Epoch", value: (e) => e.epoch, right: true, hide: "narrow" },
    ],
  });
  const segments = h("div", { class: "segments", role: "group", "aria-label": "Severity" });
  const element = h("section", { class: "view" },
    h("header", { class: "toolbar" }, h("h1", {}, "Events"), segments,
      h("input", { type: "search", id: "search", placeholder: "Filter", "aria-label": "Filter events", oninput: (e) => (table.filter = words = e.target.value) }),
      h("div", { class: "actions", role: "group", "aria-label": "Export the filtered events" },
        Object.entries(FORMS).map(([form, [label]]) => button(label, () => attempt(() => save(form)), { title: `Save the filtered events as ${label}`, why: app.mayNot("events:export") })))),
    table.element);

  function render() {
    keep(segments, severity, () => SEVERITIES.map((name) =>
      h("button", { type: "button", class: "segment", "aria-pressed": String(name === severity), onclick: () => pick(name) }, name[0].toUpperCase() + name.slice(1))));
    table.items = data.events.filter((e) => severity === "all" || e.severity === severity).reverse();
  }

  /** The controller keeps more events than this page; it filters them the same way. */
  async function save(form) {
    const found = await text("/events/export", { format: form, severity: severity === "all" ? null : severity, words: words.trim() || null });
    const file = URL.createObjectURL(new Blob([found ?? ""], { type: FORMS[form][1] }));
    h("a", { href: file, download: `events-${data.site.name}.${form}` }).click();
    URL.revokeObjectURL(file);
  }

  function pick(name) {
    severity = name;
    render();
  }

  return { title: "Events", element, lists: [], mounted: render, update: (topic) => topic === "events" && render() };
}

/** A link, if the object has a page. */
function about(object) {
  const cut = object.indexOf("/");
  const page = PAGES[object.slice(0, cut)];
  return page ? h("a", { href: page(encodeURIComponent(object.slice(cut + 1))) }, object) : object;
}
