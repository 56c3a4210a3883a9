// Usage: how long endpoints were held, by project, user or job, over the last day, week or month.

import { get } from "../api.js";
import { attempt } from "../ui/dialog.js";
import { h, keep, show } from "../ui/dom.js";
import { age, percent, seconds } from "../ui/format.js";
import { bar, jobLink, tile } from "../ui/parts.js";
import { Table } from "../ui/table.js";

const SPANS = { "24 h": 86400, "7 d": 7 * 86400, "30 d": 30 * 86400 };
const KINDS = { project: "Projects", user: "Users", job: "Jobs" };
const AGAIN_MS = 30_000;

export function usage(app) {
  let span = "24 h";
  let by = "project";
  let view = null;
  let turn = 0;
  let timer = 0;
  const known = (name) => app.data.lists.jobs.some((j) => j.name === name);
  /** What the shown lines are about: the answer to a new choice may still be under way. */
  const kind = () => view?.by ?? by;
  const about = (line) => line[kind()] || "(not known)";
  const share = (line) => (view?.total.held_s ? line.held_s / view.total.held_s : 0);
  const table = new Table({
    label: "Usage",
    key: (line) => [line.project, line.user, line.job, line.submitted_at].join(" "),
    empty: "no endpoint was held in this time",
    fits: true,
    columns: [
      { id: "about", label: "Name", value: about, cell: (line) => (kind() === "job" && known(line.job) ? jobLink(app.looks, line.job) : about(line)) },
      { id: "of", label: "Project, user", value: (line) => (kind() === "job" ? [line.project, line.user].filter(Boolean).join(", ") : ""), hide: "medium" },
      { id: "share", label: "Share", value: share, mute: true, cell: (line) => bar(share(line), percent(share(line))) },
      { id: "held", label: "Held", value: (line) => line.held_s, mute: true, right: true, cell: (line) => time(line.held_s) },
      { id: "frozen", label: "Frozen", value: (line) => line.frozen_s, mute: true, right: true, hide: "compact", cell: (line) => time(line.frozen_s) },
      { id: "dark", label: "Dark", value: (line) => line.dark_s, mute: true, right: true, hide: "compact", cell: (line) => time(line.dark_s) },
      { id: "weighted", label: "Weighted", value: (line) => line.weighted_s, mute: true, right: true, hide: "compact", cell: (line) => time(line.weighted_s) },
      { id: "jobs", label: "Jobs", value: (line) => line.jobs, mute: true, right: true },
    ],
  });
  const spans = h("div", { class: "segments", role: "group", "aria-label": "Over the last" });
  const kinds = h("div", { class: "segments", role: "group", "aria-label": "By" });
  const totals = h("div", { class: "stats" });
  const element = h("section", { class: "view" },
    h("header", { class: "toolbar" }, h("h1", {}, "Usage"), spans, kinds,
      h("input", { type: "search", id: "search", placeholder: "Filter", "aria-label": "Filter usage", oninput: (e) => (table.filter = e.target.value) })),
    totals, table.element);

  function render() {
    keep(spans, span, () => Object.keys(SPANS).map((name) => segment(name, name === span, () => { span = name; load(); })));
    keep(kinds, by, () => Object.entries(KINDS).map(([name, label]) => segment(label, name === by, () => { by = name; load(); })));
    if (!view) return;
    const { total, others } = view;
    show(totals,
      tile("Held", time(total.held_s), "endpoints times seconds"),
      tile("Frozen", time(total.frozen_s), "paused or being regrouped"),
      tile("Dark", time(total.dark_s), "light was moving"),
      tile("Weighted", time(total.weighted_s), "held times span by least span"),
      tile("Jobs", String(total.jobs), "took their first endpoints"),
      others.held_s ? tile("Not listed", time(others.held_s), "beyond the list, or kept by day") : "");
    table.items = view.lines;
  }

  async function read() {
    const mine = ++turn;
    const found = await get("/usage", { by, since: Date.now() / 1000 - SPANS[span] });
    if (mine !== turn) return;
    view = found;
    render();
  }

  function load() {
    render();
    return attempt(read);
  }

  return {
    title: "Usage",
    element,
    lists: ["jobs"],
    mounted: () => {
      load();
      // The frame says when the controller is away; what was read stays.
      timer = setInterval(() => read().catch(() => {}), AGAIN_MS);
    },
    update: (topic) => topic === "lists" && render(),
    destroy: () => {
      turn += 1;
      clearInterval(timer);
    },
  };
}

const segment = (label, chosen, onclick) =>
  h("button", { type: "button", class: "segment", "aria-pressed": String(chosen), onclick }, label);

/** Endpoint-seconds, as a duration. */
const time = (s) => (s < 120 ? seconds(s) : age(s));
