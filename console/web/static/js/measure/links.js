// Links: a heat map of every pair, bandwidth against size for each group, and what stands out.

import { h, renew } from "../ui/dom.js";
import { dbm, exact, perSecond, size } from "../ui/format.js";
import { Curve } from "../ui/curve.js";
import { HeatMap } from "../ui/heatmap.js";
import { Table } from "../ui/table.js";
import { rowsTable } from "./generic.js";
import { choice, row, section, shownBy } from "./figures.js";
import { distinct, grouped, interval, mid, num, objects, text, texts } from "./value.js";

const QUANTITIES = { bandwidth: ["Bandwidth", perSecond], latency_s: ["Latency", exact] };
const MOST_ANOMALIES = 50;

export function links(app, result) {
  const rows = objects(result.rows).map((r) => ({ ...r, from: text(r.from), to: text(r.to), size: num(r.size) }));
  const sizes = distinct(rows.map((r) => r.size));
  const names = byHome(result, rows);
  const heat = new HeatMap({ label: "From each endpoint (left) to each (top)", rows: "senders", columns: "receivers" });
  const against = {
    bandwidth: new Curve({ label: "Bandwidth by group", x: { label: "Size", format: size, log: true }, y: { label: "Bandwidth", format: perSecond } }),
    latency_s: new Curve({ label: "Latency by group", x: { label: "Size", format: size, log: true }, y: { label: "Latency", format: exact, log: true } }),
  };
  const pairs = pairTable();
  let at = sizes.at(-1) ?? null;
  let what = rows.some((r) => mid(r.bandwidth) !== null) ? "bandwidth" : "latency_s";

  const pickSize = choice("Size", sizes.map((one) => [one, size(one)]), (value) => draw(Number(value), what));
  const pickWhat = choice("Figure", Object.entries(QUANTITIES).map(([id, [label]]) => [id, label]), (value) => draw(at, value));
  if (at !== null) pickSize.field.value = String(at);
  pickWhat.field.value = what;

  function draw(newSize, newWhat) {
    [at, what] = [newSize, newWhat];
    const cells = new Map(rows.filter((r) => r.size === at).map((r) => [`${r.from}\n${r.to}`, r]));
    const write = QUANTITIES[what][1];
    heat.show({
      rows: names,
      columns: names,
      format: write,
      groups: new Map(objects(result.groups).filter((g) => g.size === at).map((g) => [g.id, texts(g.classes).join(", ")])),
      cell: (from, to) => {
        const r = cells.get(`${from}\n${to}`);
        return r ? { value: mid(r[what]), group: num(r.group), text: cellText(r, what, write) } : null;
      },
    });
    pairs.items = [...cells.values()];
  }

  draw(at, what);
  for (const [field, chart] of Object.entries(against)) chart.show(lines(result, rows, field));
  const anomalies = objects(result.anomalies).slice(0, MOST_ANOMALIES);
  const standing = h("div", { class: "stack" });
  const lists = () => renew(standing, anomalies.length ? anomalies.map((one) => anomaly(app, one)) : h("p", { class: "muted" }, "nothing: every pair is as the others of its class"));
  lists();
  const shown = shownBy([
    section("Every pair", h("div", { class: "toolform" }, pickSize.element, pickWhat.element), heat.element),
    row(against.bandwidth, against.latency_s),
    section("What stands out", standing),
    rowsTable("Fits: time = α + size / β", result.fits, { first: ["class", "alpha_s", "beta", "n_half", "residual"] }),
    section("The pairs at this size", pairs.element),
    rowsTable("Groups", result.groups, { first: ["size", "id", "center", "pairs", "classes"] }),
  ], [heat, against.bandwidth, against.latency_s], ["rows", "groups", "anomalies", "fits"]);
  return { ...shown, lists };
}

/** Endpoints by their aggregator, in the order of the result. */
function byHome(result, rows) {
  const names = result.endpoints.length ? [...result.endpoints] : distinct(rows.flatMap((r) => [r.from, r.to]));
  const homes = distinct(names.map((name) => result.homes[name] ?? ""));
  return names.sort((one, other) => homes.indexOf(result.homes[one] ?? "") - homes.indexOf(result.homes[other] ?? ""));
}

function cellText(r, what, write) {
  const [low, high] = interval(r[what]);
  const value = mid(r[what]);
  const said = value === null ? `not measured${r.reason ? `: ${text(r.reason)}` : ""}` : `${write(value)}${low === null ? "" : ` (95 %: ${write(low)} … ${write(high)})`}`;
  return `${r.from} to ${r.to}, ${text(r.class) || "no class"}: ${said}${num(r.group) === null ? "" : `, group ${r.group}`}`;
}

/** A line per group over all sizes; groups of different sizes are the same if they hold the same classes. */
function lines(result, rows, field) {
  const named = new Map(objects(result.groups).map((g) => [`${g.size} ${g.id}`, texts(g.classes).sort().join(", ") || `group ${g.id}`]));
  const known = rows.filter((r) => mid(r[field]) !== null && r.size !== null);
  const found = grouped(known, (r) => named.get(`${r.size} ${r.group}`) ?? (text(r.class) || "all pairs"));
  return distinct([...found.keys()]).map((label) => [label, found.get(label)]).map(([label, members]) => ({
    label,
    points: [...grouped(members, (r) => r.size)].map(([x, same]) => {
      const [low, high] = [0, 1].map((end) => median(same.map((r) => interval(r[field])[end])));
      return { x, y: median(same.map((r) => mid(r[field]))), low, high };
    }).sort((one, other) => one.x - other.x),
  }));
}

function median(values) {
  const known = values.filter((v) => v !== null).sort((one, other) => one - other);
  if (!known.length) return null;
  const half = known.length >> 1;
  return known.length % 2 ? known[half] : (known[half - 1] + known[half]) / 2;
}

function pairTable() {
  const figure = (id, label, write) => ({ id, label, value: (r) => mid(r[id]), right: true, cell: (r) => (mid(r[id]) === null ? "–" : write(mid(r[id]))) });
  const band = (id, label, write) => ({ id: `${id}-ci`, label, value: (r) => interval(r[id])[0], right: true, hide: "small", cell: (r) => (interval(r[id])[0] === null ? "–" : interval(r[id]).map(write).join(" … ")) });
  const table = new Table({
    label: "Pairs",
    key: (r) => `${r.from} ${r.to}`,
    columns: [
      { id: "from", label: "From", value: (r) => r.from },
      { id: "to", label: "To", value: (r) => r.to },
      { id: "class", label: "Class", value: (r) => text(r.class) },
      { id: "group", label: "Group", value: (r) => num(r.group), right: true },
      figure("bandwidth", "Bandwidth", perSecond),
      band("bandwidth", "95 %", perSecond),
      figure("latency_s", "Latency", exact),
      band("latency_s", "95 %", exact),
      { id: "reason", label: "Reason", value: (r) => text(r.reason), wrap: true },
    ],
  });
  table.element.classList.add("short");
  return table;
}

/** One anomaly, with the light of the endpoints that it names. */
function anomaly(app, one) {
  const ratio = num(one.ratio);
  const named = texts(one.objects).length ? texts(one.objects) : [text(one.object)];
  const endpoints = app.data.lists.endpoints.filter((e) => named.some((name) => name.split(/[^A-Za-z0-9._-]+/).includes(e.name))).slice(0, 4);
  return h("div", { class: "panel anomaly" },
    h("p", {}, h("b", {}, text(one.object) || named.join(", ")), ` ${text(one.kind)}`, ratio === null ? "" : `: ${ratio.toFixed(2)} times its class`, Array.isArray(one.sizes) && one.sizes.length ? ` at ${one.sizes.slice(0, 12).map((s) => size(num(s))).join(", ")}` : ""),
    one.evidence ? h("p", { class: "muted" }, text(one.evidence)) : "",
    endpoints.map((e) => h("p", {}, h("a", { href: `#/objects/endpoints/${encodeURIComponent(e.name)}` }, e.name), `, ${e.home ?? "dark"}: ${light(app, e)}`)));
}

/** The light at the optical ports of an endpoint and of the aggregator's port that it leads to. */
function light(app, e) {
  const seen = app.data.lists.power.filter((p) => p.far === e.name || p.far === e.port);
  return seen.length ? seen.map((p) => `${p.switch} ${p.port} in ${dbm(p.power_in_dbm)}, out ${dbm(p.power_out_dbm)}`).join("; ") : "no light is measured at its ports";
}
