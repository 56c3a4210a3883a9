// Collectives: the columns of nccl-tests, and bus bandwidth against size for each placement.

import { h } from "../ui/dom.js";
import { perSecond, size } from "../ui/format.js";
import { Curve } from "../ui/curve.js";
import { choice, row, section, shownBy } from "./figures.js";
import { Table } from "../ui/table.js";
import { grouped, num, objects, text } from "./value.js";

const WAYS = { out_of_place: "out of place", in_place: "in place" };

export function collectives(app, result) {
  const rows = objects(result.rows).map((r, i) => ({ ...r, i, size: num(r.size) }));
  const runs = grouped(rows, runOf);
  const curve = new Curve({ label: "Bus bandwidth", x: { label: "Size", format: size, log: true }, y: { label: "busbw", format: perSecond } });
  curve.show([...runs].map(([label, members]) => ({
    label,
    points: members.map((r) => ({ x: r.size, y: best(r, "bus_bw") })).sort((one, other) => one.x - other.x),
  })));
  const table = ncclTable();
  const pick = choice("Placement and operation", [...runs.keys()].map((name) => [name, name]), (name) => (table.items = runs.get(name) ?? []));
  table.items = runs.values().next().value ?? [];
  return shownBy([
    row(curve),
    section("As nccl-tests prints it", h("div", { class: "toolform" }, pick.element), table.element,
      h("p", { class: "muted" }, "time is of one operation, mean over ranks; algbw = size / time; busbw = algbw × the operation's factor, so that it compares with a link; #wrong counts elements of one verified operation.")),
  ], [curve], ["rows"]);
}

/** What distinguishes the runs of a result. */
const runOf = (r) => [text(r.placement), text(r.operation), num(r.ranks) ? `${r.ranks} ranks` : "", num(r.group) ? `group ${r.group}` : ""].filter(Boolean).join(" · ") || "all";

/** A figure of one half of a row: out of place or in place. */
const half = (r, way, field) => num(r[way]?.[field]);

/** The figure of the half that was measured. */
const best = (r, field) => half(r, "out_of_place", field) ?? half(r, "in_place", field);

function ncclTable() {
  const plain = (id, label, value) => ({ id, label, value, right: true });
  const micro = (v) => (v === null ? "–" : (v * 1e6).toFixed(v < 1e-3 ? 2 : 1));
  const giga = (v) => (v === null ? "–" : (v / 1e9).toFixed(v < 1e8 ? 4 : 2));
  const columns = (way) => [
    { id: `${way}-time`, label: `Time, µs (${WAYS[way]})`, value: (r) => half(r, way, "time_s"), right: true, cell: (r) => micro(half(r, way, "time_s")) },
    { id: `${way}-alg`, label: "algbw, GB/s", value: (r) => half(r, way, "alg_bw"), right: true, cell: (r) => giga(half(r, way, "alg_bw")) },
    { id: `${way}-bus`, label: "busbw, GB/s", value: (r) => half(r, way, "bus_bw"), right: true, cell: (r) => giga(half(r, way, "bus_bw")) },
    { id: `${way}-wrong`, label: "#wrong", value: (r) => half(r, way, "nwrong"), right: true, cell: (r) => wrong(half(r, way, "nwrong")) },
  ];
  const table = new Table({
    label: "nccl-tests",
    key: (r) => r.i,
    columns: [
      plain("size", "Size, B", (r) => r.size),
      plain("count", "Count", (r) => num(r.count)),
      { id: "type", label: "Type", value: (r) => text(r.type) },
      { id: "redop", label: "Redop", value: (r) => text(r.redop), hide: "small" },
      { ...plain("root", "Root", (r) => num(r.root)), hide: "small" },
      ...columns("out_of_place"),
      ...columns("in_place"),
      { ...plain("max", "Slowest rank, µs", (r) => num(r.time_max_s)), cell: (r) => micro(num(r.time_max_s)) },
      { ...plain("share", "Of its slowest link", (r) => num(r.link_share)), cell: (r) => (num(r.link_share) === null ? "–" : `${Math.round(100 * r.link_share)} %`) },
      { id: "note", label: "Note", value: (r) => [r.disturbed ? "disturbed" : "", text(r.note), text(r.reason)].filter(Boolean).join("; "), wrap: true },
    ],
  });
  table.element.classList.add("short");
  return table;
}

const wrong = (n) => (n === null ? "N/A" : n ? h("b", { class: "bad" }, String(n)) : "0");
