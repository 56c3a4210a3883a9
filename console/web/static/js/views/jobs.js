// Jobs: the queue with reasons, running jobs with their spread and throughput.

import { h, keep } from "../ui/dom.js";
import { age, percent, rate } from "../ui/format.js";
import { badge, bar, button, jobLink, spark, spreadBars } from "../ui/parts.js";
import { Table } from "../ui/table.js";
import { submitDialog } from "./submit.js";

const ENDED = new Set(["completed", "failed", "cancelled"]);
const QUEUED = new Set(["pending", "waiting"]);
const ORDER = { starting: 0, running: 0, pausing: 0, paused: 0, pending: 1, waiting: 1 };

export function jobs(app) {
  const { data, looks } = app;
  let which = "all";
  const live = (j) => data.live.jobs.get(j.name) ?? j;
  const table = new Table({
    label: "Jobs",
    key: (j) => j.name,
    empty: "no jobs yet",
    fits: true,
    onOpen: (j) => (location.hash = `#/jobs/${encodeURIComponent(j.name)}`),
    columns: [
      { id: "name", label: "Name", value: (j) => j.name, cell: (j) => jobLink(looks, j.name) },
      { id: "state", label: "State", value: (j) => (j.transaction ? "moving" : j.state), cell: (j) => badge(j.transaction ? "moving" : j.state) },
      { id: "gpus", label: "GPUs", value: (j) => j.count, right: true },
      { id: "spread", label: "Spread", value: (j) => Object.entries(j.spread).flat().join(" "), cell: (j) => spreadBars(j.spread) },
      { id: "excess", label: "Excess", value: (j) => (j.endpoints.length ? j.excess_span : null), right: true, cell: (j) => (j.endpoints.length ? (j.excess_span ? badge(`+${j.excess_span}`, "warn") : "0") : "–") },
      { id: "ring", label: "Ring", value: (j) => (j.endpoints.length ? j.ring_crossings : null), right: true, hide: "medium" },
      { id: "rate", label: "Receives", value: (j) => live(j).rx_bps, right: true, hide: "compact", cell: (j) => rate(live(j).rx_bps) },
      { id: "spark", label: "2 min", value: () => "", hide: "medium", sign: (j) => `${data.live.time} ${j.name}`, cell: (j) => spark(data.sparks.get(j.name), looks.of(j.name).colour) },
      { id: "busy", label: "Busy", value: (j) => live(j).utilisation, hide: "small", cell: (j) => bar(live(j).utilisation, percent(live(j).utilisation)) },
      { id: "age", label: "Age", value: (j) => -j.submitted_at, right: true, hide: "compact", sign: (j) => age((j.finished_at ?? now()) - j.submitted_at), cell: (j) => age((j.finished_at ?? now()) - j.submitted_at) },
      { id: "project", label: "Project", value: (j) => (j.engine ? `${j.project} ${j.engine.title}` : j.project), hide: "medium" },
      { id: "reason", label: "Reason", value: (j) => reason(j), wrap: true },
    ],
  });
  const counts = h("div", { class: "segments", role: "group", "aria-label": "Which jobs" });
  const element = h(
    "section",
    { class: "view" },
    h("header", { class: "toolbar" }, h("h1", {}, "Jobs"), counts,
      h("input", { type: "search", id: "search", placeholder: "Filter", "aria-label": "Filter jobs", oninput: (e) => (table.filter = e.target.value) }),
      button("Submit a job", () => submitDialog(app), { kind: "primary", why: app.mayNot("jobs:submit") })),
    table.element,
  );

  const GROUPS = {
    all: () => true,
    running: (j) => !ENDED.has(j.state) && !QUEUED.has(j.state),
    queued: (j) => QUEUED.has(j.state),
    ended: (j) => ENDED.has(j.state),
  };

  function render() {
    const sizes = Object.entries(GROUPS).map(([name, test]) => [name, data.lists.jobs.filter(test).length]);
    keep(counts, [which, sizes], () => sizes.map(([name, n]) =>
      h("button", { type: "button", class: "segment", "aria-pressed": String(which === name), onclick: () => pick(name) }, `${name[0].toUpperCase()}${name.slice(1)} `, h("b", {}, String(n)))));
    table.items = data.lists.jobs
      .filter(GROUPS[which])
      .sort((one, other) => (ORDER[one.state] ?? 2) - (ORDER[other.state] ?? 2) || order(one, other));
  }

  function pick(name) {
    which = name;
    render();
  }

  return {
    title: "Jobs",
    element,
    lists: ["jobs"],
    mounted: render,
    update: (topic) => (topic === "lists" || topic === "sample") && render(),
    keys: { n: () => app.mayNot("jobs:submit") || submitDialog(app) },
  };
}

/** Waiting and running jobs in the order of arrival; ended jobs with the latest first. */
function order(one, other) {
  return ENDED.has(one.state) && ENDED.has(other.state)
    ? other.submitted_at - one.submitted_at
    : one.submitted_at - other.submitted_at;
}

function reason(j) {
  if (j.wait) return `${j.wait.position} of ${j.wait.queued} waiting: ${j.wait.reason}`;
  return j.reason || (j.transaction ? `regroup ${j.transaction} in progress` : "");
}

const now = () => Date.now() / 1000;
