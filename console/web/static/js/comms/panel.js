// What a job communicates: operations and sizes, how it overlaps with computing, and each rank's recorder.

import { get, part } from "../api.js";
import { h, keep, renew, say, show } from "../ui/dom.js";
import { age, exact, figure, percent, perSecond, size } from "../ui/format.js";
import { bars, strip } from "../ui/bars.js";
import { HeatMap } from "../ui/heatmap.js";
import { badge, bar, facts, tile } from "../ui/parts.js";
import { Poll } from "../ui/poll.js";
import { Table } from "../ui/table.js";
import { OVERLAP, RECORDERS, SOURCES, TIMING } from "./definitions.js";
import { bySize, operations, sizesByRank } from "./sums.js";

const AGAIN_MS = 5000;
const MOST_BARS = 40;
const MOST_RANKS = 16;
const SPANS = [["", "the whole run"], ["300", "the last 5 minutes"], ["3600", "the last hour"]];
const FIGURES = { avg_s: ["Mean duration", exact], total_s: ["Time in all", exact], calls: ["Calls", figure] };

export class Communication {
  #job;
  #poll;
  #view = null;
  #warned = false;
  #since = "";
  #over;
  #op = "";
  #what = "avg_s";
  #stats = h("div", { class: "stats" });
  #strip = h("div", {});
  #notes = h("div", {});
  #charts = h("div", { class: "charts" });
  #everyRank = new Fold();
  #recorders = new Fold();
  #heat = new HeatMap({ label: "Size (top) and rank (left)", rows: "ranks", columns: "sizes" });
  #picks = h("div", { class: "toolform" });
  #body;
  #operations = operationTable();
  #sizes = sizeTable();

  /** Without `over` there is one span only, the whole run. */
  constructor(job, { over = true } = {}) {
    this.#job = job;
    this.#over = over;
    this.#body = h("div", { class: "stack" },
      this.#stats, this.#strip, this.#everyRank.element, this.#notes,
      h("h3", {}, "Operations"), this.#operations.element,
      this.#picks, this.#charts, this.#heat.element,
      h("h3", {}, "Operations and sizes"), this.#sizes.element,
      this.#recorders.element);
    this.element = h("div", { class: "stack" });
    this.#poll = new Poll({
      read: () => get(`/jobs/${part(this.#job)}/comms`, { since_s: this.#since || null }),
      take: (view) => {
        this.#view = view;
        if (!this.#body.isConnected) show(this.element, this.#body);
        this.#render();
      },
      // What was read stays: the frame says when the controller is away.
      failed: (problem) => this.#view || renew(this.element, h("p", { class: "muted" }, problem.message)),
      wait: () => AGAIN_MS,
    });
  }

  /** Read now, and from then on. */
  start() {
    this.#poll.now();
  }

  /** Draw again with the current theme. */
  redraw() {
    this.#heat.redraw();
  }

  destroy() {
    this.#poll.stop();
    this.#heat.destroy();
  }

  #render() {
    const v = this.#view;
    const rows = v.rows;
    this.#showOverlap(v);
    renew(this.#notes, this.#explained(v));
    this.#operations.items = operations(rows);
    this.#sizes.items = rows.map((row, i) => ({ ...row, i }));
    this.#showPicks(rows);
    this.#showSizes(rows.filter((row) => !this.#op || row.op === this.#op));
    this.#showRanks(v.rank_rows.filter((row) => !this.#op || row.op === this.#op));
    this.#showRecorders(v.ranks);
  }

  #showOverlap(v) {
    const o = v.overlap;
    renew(this.#stats,
      tile("Recorded", badge(v.record, v.record === "off" ? "quiet" : "good"), v.updated_at ? `run ${v.epoch}, ${age(Math.max(0, Date.now() / 1000 - v.updated_at))} ago` : `run ${v.epoch}, not read yet`),
      o ? [
        tile("Step", exact(o.step_s), `${o.steps} steps, ${o.rank === null ? "slowest rank" : `rank ${o.rank}`}`),
        tile("Communication", exact(o.comm_s), `${percent(o.step_s ? o.comm_s / o.step_s : null)} of the step`),
        tile("Exposed", exact(o.exposed_s), `${percent(o.step_s ? o.exposed_s / o.step_s : null)} of the step`),
        tile("Overlap", percent(o.overlap), "see the definition"),
        tile("A step sends", size(o.bytes_per_step), o.calls_per_step === null ? "" : `${figure(o.calls_per_step)} calls`),
      ] : "",
      v.efficiency === null ? "" : tile("Efficiency", percent(v.efficiency), "bus bandwidth, of what these links were measured to give"));
    const ranks = v.overlap_ranks.slice(0, MOST_RANKS);
    renew(this.#strip, o ? strip("The slowest rank's step", lengths(o)) : "");
    const left = v.overlap_ranks.length - ranks.length;
    this.#everyRank.show("Every rank's step", v.overlap_ranks.length > 1 ? [
      ranks.map((one) => [h("h3", {}, `Rank ${one.rank}`), strip(`Rank ${one.rank}'s step`, lengths(one))]),
      left ? h("p", { class: "muted" }, `and ${left} more ranks: lightloom comms ${v.job} --rank N`) : "",
    ] : []);
  }

  #explained(v) {
    const sources = [...new Set(v.rows.map((row) => row.source))];
    const timings = [...new Set(v.rows.map((row) => row.timing))];
    return facts([
      v.overlap && ["overlap", `${OVERLAP[v.overlap.definition] ?? v.overlap.definition}`],
      sources.length && ["source", sources.map((one) => SOURCES[one] ?? one).join("; ")],
      timings.length && ["durations", timings.map((one) => TIMING[one] ?? one).join("; ")],
      ...v.notes.slice(0, 20).map((note) => ["note", note]),
      !v.rows.length && ["figures", "none yet"],
    ]);
  }

  #showPicks(rows) {
    const ops = [...new Set(rows.map((row) => row.op))].sort();
    if (this.#op && !ops.includes(this.#op)) this.#op = "";
    keep(this.#picks, [ops, this.#op, this.#what, this.#since], () => [
      pick("Operation", [["", "all"], ...ops.map((op) => [op, op])], this.#op, (value) => this.#set(() => (this.#op = value))),
      pick("Heat map of", Object.entries(FIGURES).map(([id, [label]]) => [id, label]), this.#what, (value) => this.#set(() => (this.#what = value))),
      this.#over ? pick("Over", SPANS, this.#since, (value) => {
        this.#since = value;
        this.#poll.now();
      }) : "",
    ]);
  }

  /** The recorders that do not record, with the reason; all if all do. */
  #showRecorders(ranks) {
    const bad = ranks.filter((r) => r.recorder !== "recording");
    const listed = bad.length ? bad : ranks;
    const shown = listed.slice(0, MOST_RANKS);
    this.#recorders.show(`Recorders: ${ranks.length - bad.length} of ${ranks.length} ranks record`, !ranks.length ? [] : [
      shown.map((r) => h("p", { class: "line" }, `rank ${r.rank} · ${r.endpoint} `, badge(r.recorder, RECORDERS[r.recorder]), ` ${about(r)}`)),
      listed.length > shown.length ? h("p", { class: "muted" }, `and ${listed.length - shown.length} more`) : "",
    ]);
    if (bad.length && !this.#warned) this.#recorders.element.open = true;
    this.#warned = bad.length > 0;
  }

  #set(change) {
    change();
    this.#render();
  }

  /** DeepIntrospect's two charts: count, and latency with its extremes, by message size. */
  #showSizes(rows) {
    const sums = bySize(rows);
    const shown = sums.slice(0, MOST_BARS);
    const left = sums.length - shown.length;
    const more = left ? h("p", { class: "muted" }, `and ${left} more sizes in the table below`) : "";
    renew(this.#charts, shown.length ? [
      h("figure", { class: "chart" }, h("figcaption", {}, "Calls by size"), bars("Calls by size", shown.map((one) => ({ name: sizeName(one.bytes), value: one.calls, text: figure(one.calls) }))), more),
      h("figure", { class: "chart" }, h("figcaption", {}, "Latency by size: mean, least to most"), bars("Latency by size", shown.map((one) => ({ name: sizeName(one.bytes), value: one.avg_s, low: one.min_s, high: one.max_s, tone: "second", text: `${exact(one.avg_s)} (${exact(one.min_s)} … ${exact(one.max_s)})` }))), more),
    ] : "");
  }

  #showRanks(rows) {
    const { ranks, sizes, cells } = sizesByRank(rows);
    this.#heat.element.hidden = !rows.length;
    if (!rows.length) return;
    const [label, write] = FIGURES[this.#what];
    const names = new Map(sizes.map((bytes) => [sizeName(bytes), bytes]));
    this.#heat.show({
      rows: ranks,
      columns: [...names.keys()],
      format: write,
      cell: (rank, name) => {
        const cell = cells.get(`${rank} ${names.get(name)}`);
        return cell ? { value: cell[this.#what], text: `rank ${rank}, ${name}: ${label.toLowerCase()} ${write(cell[this.#what])}, ${figure(cell.calls)} calls` } : null;
      },
    });
  }
}

/** The parts of a step: computing alone, both at once, communication alone, and neither. */
function lengths(o) {
  const hidden = Math.max(0, o.comm_s - o.exposed_s);
  const alone = Math.max(0, o.compute_s - hidden);
  const rest = Math.max(0, o.step_s - alone - hidden - o.exposed_s);
  return [
    { name: "compute", value: alone, text: exact(alone), tone: "compute" },
    { name: "hidden communication", value: hidden, text: exact(hidden), tone: "hidden-part" },
    { name: "exposed communication", value: o.exposed_s, text: exact(o.exposed_s), tone: "exposed" },
    { name: "neither", value: rest, text: exact(rest), tone: "rest" },
  ];
}

/** What is known of a rank's recorder. */
const about = (r) => [
  r.reason,
  SOURCES[r.source] ?? r.source,
  r.age_s === null ? "" : `${Math.round(r.age_s)} s old`,
  r.damaged_rows ? `${figure(r.damaged_rows)} damaged rows left out` : "",
].filter(Boolean).join("; ");

const sizeName = (bytes) => (bytes ? size(bytes) : "not told");

const pick = (label, options, value, onPick) => {
  const field = h("select", { onchange: () => onPick(field.value) }, options.map(([id, name]) => h("option", { value: id, selected: id === value }, name)));
  return h("label", {}, h("span", {}, label), field);
};

function operationTable() {
  return new Table({
    label: "Operations",
    key: (o) => o.op,
    empty: "no operation was recorded",
    sort: { id: "total", down: true },
    columns: [
      { id: "op", label: "Operation", value: (o) => o.op },
      { id: "share", label: "Share of the step", value: (o) => o.share, cell: (o) => bar(o.share, percent(o.share)) },
      { id: "calls", label: "Calls", value: (o) => o.calls, right: true, cell: (o) => calls(o) },
      { id: "total", label: "Time", value: (o) => o.total_s, right: true, cell: (o) => exact(o.total_s) },
      { id: "bytes", label: "Bytes", value: (o) => o.bytes, right: true, cell: (o) => size(o.bytes) },
      { id: "sizes", label: "Sizes", value: (o) => o.sizes, right: true },
    ],
  });
}

function sizeTable() {
  const time = (id, label, extra = {}) => ({ id, label, value: (r) => r[id], right: true, cell: (r) => exact(r[id]), ...extra });
  const table = new Table({
    label: "Operations and sizes",
    key: (r) => r.i,
    empty: "nothing was recorded",
    columns: [
      { id: "op", label: "Operation", value: (r) => r.op },
      { id: "bytes", label: "Size", value: (r) => r.bytes, right: true, cell: (r) => sizeName(r.bytes) },
      { id: "tag", label: "For", value: (r) => [r.tag, r.dtype].filter(Boolean).join(" "), hide: "small" },
      { id: "calls", label: "Calls", value: (r) => r.calls, right: true, cell: (r) => calls(r) },
      { id: "share", label: "Of the step", value: (r) => r.share, right: true, cell: (r) => percent(r.share) },
      time("avg_s", "Mean"),
      time("p50_s", "Median", { hide: "small" }),
      time("min_s", "Least", { hide: "small" }),
      time("max_s", "Most", { hide: "small" }),
      { id: "busbw", label: "busbw", value: (r) => r.busbw, right: true, cell: (r) => perSecond(r.busbw) },
      time("transfer_s", "Transfer", { hide: "medium" }),
      time("skew_s", "Waits for the last rank", { hide: "medium" }),
      { id: "coverage", label: "Observed", value: (r) => r.coverage, right: true, hide: "medium", cell: (r) => percent(r.coverage) },
    ],
  });
  table.element.classList.add("short");
  return table;
}

/** "1,200", "≈ 1,200" where calls are sampled or estimated. */
const calls = ({ calls: n, exact: all }) => `${all ? "" : "≈ "}${figure(n)}`;

/** A part that the user folds and unfolds; updates leave it as it is. */
class Fold {
  #title = h("summary", {});
  #inside = h("div", { class: "panel" });

  constructor() {
    this.element = h("details", { hidden: true }, this.#title, this.#inside);
  }

  /** Show these parts under a title; nothing without parts. */
  show(title, parts) {
    this.element.hidden = !parts.length;
    say(this.#title, title);
    renew(this.#inside, parts);
  }
}
