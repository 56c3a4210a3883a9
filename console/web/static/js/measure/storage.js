// Storage: throughput and CPU against workers, throughput and the 99th percentile against size.

import { exact, figure, perSecond, size } from "../ui/format.js";
import { Curve } from "../ui/curve.js";
import { rowsTable } from "./generic.js";
import { row, shownBy } from "./figures.js";
import { grouped, mid, num, objects, text } from "./value.js";

const FIRST = ["workers", "io_bytes", "rw", "path", "bytes_per_s", "iops", "latency_s", "cpu_cores", "server_cpu_cores", "cached_share", "io_limit_bps", "memory_bytes"];

export function storage(app, result) {
  const rows = objects(result.rows).map((r) => ({ ...r, limits: [num(r.io_limit_bps), num(r.memory_bytes)] }));
  const several = new Set(rows.map((r) => r.endpoint)).size > 1;
  const under = (r) => [several ? text(r.endpoint) : "", text(r.rw), r.path === "posix" ? "" : text(r.path), r.limits[0] ? `at most ${perSecond(r.limits[0])}` : "", r.limits[1] ? `${size(r.limits[1])} of memory` : ""].filter(Boolean).join(", ");
  const workers = { label: "Workers", format: figure, log: true };
  const sizes = { label: "Size of a request", format: size, log: true };
  const charts = [
    [new Curve({ label: "Throughput against workers", x: workers, y: { label: "Throughput", format: perSecond } }), bySize, "workers", (r) => mid(r.bytes_per_s)],
    [new Curve({ label: "CPU against workers", x: workers, y: { label: "Cores", format: figure } }), bySize, "workers", (r) => mid(r.cpu_cores)],
    [new Curve({ label: "Throughput against size", x: sizes, y: { label: "Throughput", format: perSecond, log: true } }), byWorkers, "io_bytes", (r) => mid(r.bytes_per_s)],
    [new Curve({ label: "99th percentile against size", x: sizes, y: { label: "Latency", format: exact, log: true } }), byWorkers, "io_bytes", (r) => num(r.latency_s?.p99)],
  ];
  function bySize(r) {
    return [size(num(r.io_bytes)), under(r)].filter(Boolean).join(", ");
  }
  function byWorkers(r) {
    return [`${num(r.workers) ?? "?"} workers`, under(r)].filter(Boolean).join(", ");
  }
  for (const [chart, key, x, y] of charts) {
    chart.show([...grouped(rows, key)].map(([label, members]) => ({ label, points: members.map((r) => ({ x: num(r[x]), y: y(r) })).sort((one, other) => one.x - other.x) })));
  }
  const drawn = charts.map(([chart]) => chart);
  return shownBy([row(...drawn), rowsTable("Every run", result.rows, { first: FIRST })], drawn, ["rows"]);
}
