// Scaling: step time against intensity, and efficiency against the number of ranks.

import { exact, figure, percent } from "../ui/format.js";
import { Curve } from "../ui/curve.js";
import { rowsTable } from "./generic.js";
import { row, shownBy } from "./figures.js";
import { grouped, mid, num, objects } from "./value.js";

const FIRST = ["x", "batch", "ranks", "intensity", "step_s", "compute_s", "comm_s", "exposed_s", "speedup", "efficiency", "predicted_step_s", "error"];

export function scaling(app, result) {
  const rows = objects(result.rows);
  const steps = new Curve({ label: "Step against intensity", x: { label: "Activations per parameter", format: figure, log: true }, y: { label: "Step", format: exact, log: true } });
  const gains = new Curve({ label: "Efficiency of strong scaling", x: { label: "Ranks", format: figure }, y: { label: "Speed-up / ranks", format: percent } });
  const exposed = new Curve({ label: "Exposed communication", x: { label: "Activations per parameter", format: figure, log: true }, y: { label: "Share of the step", format: percent } });
  const by = (members, x, y) => members.map((r) => ({ x: num(r[x]), y: y(r) })).sort((one, other) => one.x - other.x);
  const ranks = grouped(rows, (r) => num(r.ranks));
  steps.show([...ranks].flatMap(([n, members]) => [
    { label: `${n} ranks`, points: by(members, "intensity", (r) => mid(r.step_s)) },
    { label: `${n} ranks, predicted`, dashed: true, points: by(members, "intensity", (r) => mid(r.predicted_step_s)) },
  ]));
  gains.show([...grouped(rows, (r) => `ResNet/${num(r.x) ?? "?"}, batch ${num(r.batch) ?? "?"}`)].map(([label, members]) => ({ label, points: by(members, "ranks", (r) => num(r.efficiency)) })));
  const share = (r) => (mid(r.step_s) && mid(r.exposed_s) !== null ? mid(r.exposed_s) / mid(r.step_s) : null);
  exposed.show([...ranks].map(([n, members]) => ({ label: `${n} ranks`, points: by(members, "intensity", share) })));
  return shownBy([
    row(steps, gains, exposed),
    rowsTable("Every run", rows, { first: FIRST }),
  ], [steps, gains, exposed], ["rows"]);
}
