// Engine: another scheduler that owns the jobs of some endpoints: contact, topology, its set-up,
// and what light did for its jobs.

import { get } from "../api.js";
import { attempt } from "../ui/dialog.js";
import { h, show } from "../ui/dom.js";
import { moment, seconds } from "../ui/format.js";
import { badge, button, facts, jobLink } from "../ui/parts.js";
import { Table } from "../ui/table.js";

const AGAIN_MS = 2000;
const GRADES = { ok: "good", warning: "warn", fault: "bad" };

export function engine(app) {
  let view = null;
  let turn = 0;
  let timer = 0;
  const known = (name) => app.data.lists.jobs.some((j) => j.name === name);
  const name = (a) => (known(a.job) ? jobLink(app.looks, a.job) : a.job);
  const took = (key) => ({ id: key, label: key.replace("_s", ""), value: (a) => a[key], right: true, cell: (a) => seconds(a[key]) });
  const answers = (label, empty, parts) => new Table({
    label,
    key: (a) => `${a.job} ${a.at}`,
    empty,
    columns: [
      { id: "job", label: "Job", value: (a) => a.job, sign: (a) => `${a.job} ${known(a.job)}`, cell: name },
      { id: "at", label: "At", value: (a) => -a.at, hide: "compact", cell: (a) => moment(a.at) },
      { id: "moves", label: "Moves", value: (a) => a.moves, right: true },
      ...parts.map(took),
      { id: "text", label: "What was done", value: (a) => a.text, wrap: true },
    ],
  });
  const allocations = answers("Allocations", "no job got endpoints yet", ["engine_s", "plan_s", "light_s"]);
  const helped = answers("Waiting jobs", "no waiting job was helped yet", ["plan_s", "light_s", "publish_s"]);
  const checks = new Table({
    label: "Set-up",
    key: (c) => c.subject,
    empty: "not examined yet",
    columns: [
      { id: "subject", label: "Subject", value: (c) => c.subject },
      { id: "grade", label: "State", value: (c) => c.grade, cell: (c) => badge(c.grade, GRADES[c.grade]) },
      { id: "found", label: "Found", value: (c) => c.found, wrap: true },
      { id: "mend", label: "Mend", value: (c) => c.mend, wrap: true },
    ],
  });
  const about = h("div", { class: "panel" });
  const element = h("section", { class: "view" },
    h("header", { class: "toolbar" }, h("h1", {}, "Engine"), h("span", { class: "spacer" }), button("Examine its set-up", examine)),
    h("div", { class: "page" },
      about,
      h("section", {}, h("h2", {}, "Allocations"), allocations.element),
      h("section", {}, h("h2", {}, "Waiting jobs"), helped.element),
      h("section", {}, h("h2", {}, "Set-up"), checks.element)));

  function render() {
    if (!view) return;
    const contact = view.up ? "" : `: ${view.detail}`;
    show(about, facts([
      ["engine", `${view.kind} ${view.version}`],
      ["contact", h("span", {}, badge(view.up ? "up" : "away", view.up ? "good" : "bad"), ` since ${moment(view.since)} by ${view.transport}${contact}`)],
      ["endpoints", String(view.endpoints)],
      ["jobs", `${view.jobs} with endpoints, ${view.waiting} waiting${view.left_out ? `, ${view.left_out} not watched` : ""}`],
      ["isolation", view.isolation],
      ["topology", topology(view.published)],
      view.slowest_s !== null && ["slowest answer", seconds(view.slowest_s)],
      view.missing.length && ["missing", view.missing.join("; ")],
    ]));
    allocations.items = view.allocations;
    helped.items = view.helped;
  }

  async function read() {
    const mine = ++turn;
    const found = await get("/engine");
    if (mine !== turn) return;
    view = found;
    render();
  }

  async function examine() {
    const found = await attempt(() => get("/engine/check"));
    if (found) checks.items = found.checks;
  }

  return {
    title: "Engine",
    element,
    lists: ["jobs"],
    mounted: () => {
      attempt(read);
      timer = setInterval(() => read().catch(() => {}), AGAIN_MS);
    },
    update: (topic) => topic === "lists" && render(),
    destroy: () => {
      turn += 1;
      clearInterval(timer);
    },
  };
}

function topology(published) {
  if (!published) return "not published";
  if (published.error) return h("span", {}, badge("not published", "bad"), ` ${published.error}`);
  if (!published.at) return "not published yet";
  const took = published.took_s === null ? "" : `, in ${seconds(published.took_s)}`;
  return `epoch ${published.epoch}, read back ${moment(published.at)}${took}`;
}
