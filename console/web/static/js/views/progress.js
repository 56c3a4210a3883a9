// A transaction under way, or how it ended: its phases in order with their times.

import { h } from "../ui/dom.js";
import { plural, seconds } from "../ui/format.js";
import { badge, button } from "../ui/parts.js";

const PHASES = ["admit", "quiesce", "drain", "switch", "qualify", "route", "resume", "commit"];

/** Return the panel; `abort` asks for a rollback. */
export function progress(app, view, abort) {
  const dark = Object.values(view.dark_time_s ?? {});
  const took = (view.finished_at ?? app.data.live.time ?? view.started_at) - view.started_at;
  const facts = [
    `${plural(view.moves.length, "move")} in ${seconds(Math.max(0, took))}`,
    dark.length ? `longest dark time ${seconds(Math.max(...dark))}` : "",
    view.epoch_after !== null && view.epoch_after !== undefined ? `epoch ${view.epoch_after}` : "",
    view.quarantined_ports?.length ? `out of use: ${view.quarantined_ports.join(", ")}` : "",
  ].filter(Boolean);
  return h(
    "section",
    { class: "progress", "aria-live": "polite" },
    h("header", {}, h("h2", {}, `Transaction ${view.id}`), badge(view.state), h("span", { class: "muted" }, facts.join(" · "))),
    h("ol", { class: "phases" }, PHASES.map((name) => phase(name, view))),
    view.waiting_for ? h("p", {}, `waiting for ${view.waiting_for}`) : "",
    view.result ? h("p", {}, view.result) : "",
    view.error ? h("p", { class: "problem" }, view.error) : "",
    view.finished_at
      ? ""
      : h("footer", {}, h("span", { class: "muted" }, view.how_to_stop ?? ""), button("Roll back", abort, { why: app.mayNot("plans:apply") })),
  );
}

/** Return the panel of a plan that is carried out in batches; `abort` lets no further one begin. */
export function batches(app, view, abort) {
  const paused = Object.entries(view.pauses).filter(([, n]) => n > 1).map(([job, n]) => `${job} ${n} times`);
  const facts = [
    `${view.done} of ${plural(view.batches, "batch", "batches")} done`,
    `at most ${plural(view.max_dark, "endpoint")} dark at once`,
    paused.length ? `paused more than once: ${paused.join(", ")}` : "",
  ].filter(Boolean);
  return h(
    "section",
    { class: "progress", "aria-live": "polite" },
    h("header", {}, h("h2", {}, `Rollout ${view.id}`), badge(view.state, { committed: "good", stopped: "warn" }[view.state]), h("span", { class: "muted" }, facts.join(" · "))),
    h("progress", { max: view.batches, value: view.done, "aria-label": "Batches done" }),
    view.result ? h("p", {}, view.result) : "",
    view.finished_at
      ? ""
      : h("footer", {}, h("span", { class: "muted" }, "the batch under way ends by itself"), button("Stop after this batch", abort, { why: app.mayNot("plans:apply") || (view.state === "stopping" ? "it is stopping" : "") })),
  );
}

function phase(name, view) {
  const passed = view.phases.filter((one) => one.name === name);
  const last = passed.at(-1);
  const state = !last ? "ahead" : last.finished_at === null && !view.finished_at ? "now" : "done";
  const time = last?.finished_at ? seconds(last.finished_at - last.started_at) : "";
  return h("li", { class: state, "aria-current": state === "now" ? "step" : null }, h("span", {}, name), h("small", {}, time));
}
