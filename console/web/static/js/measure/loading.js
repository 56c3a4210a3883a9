// Input: what the loader can do, what the model can do, what both do together, and which one limits.

import { h } from "../ui/dom.js";
import { figure, percent, perSecond, size } from "../ui/format.js";
import { bars } from "../ui/bars.js";
import { badge } from "../ui/parts.js";
import { rowsTable } from "./generic.js";
import { section, shownBy } from "./figures.js";
import { mid, num, objects, text } from "./value.js";

const FIRST = ["limit", "ceiling_samples_s", "model_samples_s", "together_samples_s", "wait_share", "au", "remedy"];
const PARTS = [["ceiling_samples_s", "Input alone", ""], ["model_samples_s", "Model alone", "second"], ["together_samples_s", "Together", "third"]];
const MOST = 40;

export function input(app, result) {
  const rows = objects(result.rows);
  return shownBy([
    section("Who limits", rows.slice(0, MOST).map((r) => h("div", { class: "panel" },
      h("h3", {}, under(r)),
      bars(`Samples per second, ${under(r)}`, PARTS.map(([field, name, tone]) => ({ name, tone, value: mid(r[field]), text: mid(r[field]) === null ? "not measured" : `${figure(mid(r[field]))} samples/s` }))),
      h("p", {}, badge(text(r.limit) || "unknown", r.limit === "compute" ? "good" : r.limit ? "warn" : "quiet"), ` ${verdict(r)}`),
      r.remedy ? h("p", {}, text(r.remedy)) : ""))),
    rowsTable("Every run", rows, { first: FIRST }),
  ], [], ["rows"]);
}

function under(r) {
  const [disk, memory] = [num(r.io_limit_bps), num(r.memory_bytes)];
  const limits = [disk ? `disk at most ${perSecond(disk)}` : "", memory ? `${size(memory)} of memory` : ""].filter(Boolean);
  return limits.join(", ") || text(r.label) || "no limits";
}

function verdict(r) {
  const said = [
    mid(r.wait_share) === null ? "" : `a step waits ${percent(mid(r.wait_share))} of its time for its batch`,
    mid(r.au) === null ? "" : `the accelerator is in use ${percent(mid(r.au))} of it`,
  ].filter(Boolean);
  return said.join("; ");
}
