// A job's record in one file, as `lightloom report` writes it: the console's own pages of the job and
// of measurements, whose requests are answered from the record. Nothing leaves the file.

import { detail } from "../measure/detail.js";
import { h, show } from "../ui/dom.js";
import { figure, moment, seconds } from "../ui/format.js";
import { Looks } from "../ui/palette.js";
import { Table } from "../ui/table.js";
import { job } from "../views/job.js";

const record = JSON.parse(document.getElementById("record").textContent);
const root = document.getElementById("app");
const dark = matchMedia("(prefers-color-scheme: dark)");

globalThis.fetch = async (url) => {
  const [path, query] = url.replace(/^\/api\/v1/, "").split("?");
  const found = answer(decodeURIComponent(path), new URLSearchParams(query));
  return found === undefined
    ? new Response(JSON.stringify({ code: "not_found", detail: "not part of this record" }), { status: 404 })
    : new Response(found);
};
// Ages are those of the moment in which the record was written.
Date.now = () => 1000 * record.written_at;

function answer(path, query) {
  if (path !== `/jobs/${record.job}/logs`) return JSON.stringify(record.answers[path]);
  const rank = query.get("rank");
  return record.output.filter((line) => rank === null || line.rank === Number(rank)).map((line) => JSON.stringify(line)).join("\n");
}

/** What a page needs of the console around it. */
const app = {
  record,
  looks: new Looks(),
  supposed: new Map(),
  mayNot: (verb) => (verb === "logs:read" ? "" : "this is a record"),
  notice() {},
  data: {
    connection: "live",
    events: record.events,
    known: new Set(["jobs"]),
    lists: { jobs: [record.answers[`/jobs/${record.job}`]], endpoints: [], aggregators: [], power: [] },
    live: { jobs: new Map(), endpoints: new Map() },
  },
};

const moves = new Table({
  label: "Moves of light",
  key: (t) => t.id,
  empty: "none",
  columns: [
    { id: "time", label: "Time", value: (t) => t.started_at, cell: (t) => moment(t.started_at) },
    { id: "id", label: "Transaction", value: (t) => t.id },
    { id: "cause", label: "Cause", value: (t) => t.cause },
    { id: "moves", label: "Moves", value: (t) => t.moves.map((m) => `${m.endpoint}: ${m.from ?? "dark"} to ${m.to ?? "dark"}`).join(", "), wrap: true },
    { id: "dark", label: "Dark time", value: (t) => Math.max(0, ...Object.values(t.dark_time_s)), right: true, cell: (t) => seconds(Math.max(0, ...Object.values(t.dark_time_s))) },
    { id: "result", label: "Result", value: (t) => `${t.state}: ${t.result || t.error}`, wrap: true },
  ],
});
moves.items = record.moves;

const views = [job(app, null, record.job), ...record.measurements.map((id) => detail(app, id))];

function paint() {
  document.documentElement.dataset.theme = dark.matches ? "dark" : "light";
  for (const view of views) view.update("theme");
}

show(root,
  views[0].element,
  h("section", { class: "page" }, h("h2", {}, "Moves of light"), moves.element),
  views.slice(1).map((view) => view.element),
  record.unread.length ? h("section", { class: "page" }, h("h2", {}, "Not read"), h("ul", {}, record.unread.map((one) => h("li", {}, one)))) : "",
  h("footer", { class: "page muted" }, `Written by lightloom at ${record.written}. Samples of ${figure(record.answers["/series"].interval_s)} s each.`));
// Links lead to pages of the console, which are not here.
root.addEventListener("click", (event) => event.target.closest("a") && event.preventDefault());
dark.addEventListener("change", paint);
for (const view of views) view.mounted();
paint();
