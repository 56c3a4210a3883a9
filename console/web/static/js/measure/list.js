// The measurements that the controller keeps, newest first.

import { whole } from "../api.js";
import { h, renew } from "../ui/dom.js";
import { age, moment } from "../ui/format.js";
import { badge, button, problemBox } from "../ui/parts.js";
import { Poll } from "../ui/poll.js";
import { Table } from "../ui/table.js";
import { startDialog } from "./start.js";

/** While the stream tells what changes, and while it does not. */
const LIVE_MS = 15_000;
const BUSY_MS = 2000;
const IDLE_MS = 10_000;
const MOST_NAMES = 8;

export const unfinished = (m) => m.state === "pending" || m.state === "running";

/** "12 of 40, pair 3": how far it is. */
export const progressText = (m) => (m.progress ? [`${m.progress.done} of ${m.progress.total}`, m.progress.text].filter(Boolean).join(", ") : "");

/** Whether the result may be relied on. */
export const validBadge = (m) => (m.valid === true ? badge("valid", "good") : m.valid === false ? badge("invalid", "bad") : "");

export const list = (app, segments) => {
  let items = [];
  const table = new Table({
    label: "Measurements",
    key: (m) => m.id,
    empty: "nothing was measured yet",
    fits: true,
    onOpen: (m) => (location.hash = `#/measurements/${encodeURIComponent(m.id)}`),
    columns: [
      { id: "id", label: "Id", value: (m) => m.id, cell: (m) => h("a", { href: `#/measurements/${encodeURIComponent(m.id)}` }, m.id) },
      { id: "type", label: "Type", value: (m) => m.type },
      { id: "state", label: "State", value: (m) => m.state, cell: (m) => badge(m.state) },
      { id: "valid", label: "Valid", value: (m) => (m.valid === null ? "" : m.valid ? "valid" : "invalid"), cell: (m) => validBadge(m) || "–" },
      { id: "progress", label: "Progress", value: progressText, mute: true, hide: "compact" },
      { id: "endpoints", label: "Endpoints", value: (m) => some(m.endpoints), hide: "small" },
      { id: "user", label: "By", value: (m) => m.user, hide: "medium" },
      { id: "when", label: "Submitted", value: (m) => m.submitted_at, mute: true, right: true, cell: (m) => moment(m.submitted_at) },
      { id: "took", label: "Took", value: (m) => took(m), mute: true, right: true, hide: "compact", cell: (m) => age(took(m)) },
      { id: "reason", label: "Reason", value: (m) => m.invalid_because.join("; ") || m.reason, wrap: true },
    ],
  });
  const trouble = h("div", {});
  const start = button("Measure …", () => startDialog(app), { kind: "primary", why: app.mayNot("measurements:make") });
  const element = h("section", { class: "view" },
    h("header", { class: "toolbar" }, h("h1", {}, "Measurements"), segments,
      h("input", { type: "search", id: "search", placeholder: "Filter", "aria-label": "Filter measurements", oninput: (e) => (table.filter = e.target.value) }), start),
    trouble, table.element);
  const poll = new Poll({
    read: () => whole("/measurements"),
    take: (found) => {
      items = found.items.sort((one, other) => other.submitted_at - one.submitted_at);
      renew(trouble, "");
      table.items = items;
    },
    failed: (problem) => renew(trouble, problemBox(problem)),
    wait: () => (app.data.connection === "live" ? LIVE_MS : items.some(unfinished) ? BUSY_MS : IDLE_MS),
  });
  return {
    title: "Measurements",
    element,
    lists: ["endpoints"],
    mounted: () => poll.now(),
    update: (topic) => (topic === "measurement" || topic === "connection") && poll.soon(),
    destroy: () => poll.stop(),
    keys: { n: () => app.mayNot("measurements:make") || startDialog(app) },
  };
};

const took = (m) => (m.started_at ? (m.finished_at ?? Date.now() / 1000) - m.started_at : null);

const some = (names) => (names.length > MOST_NAMES ? `${names.slice(0, MOST_NAMES).join(" ")} and ${names.length - MOST_NAMES} more` : names.join(" "));
