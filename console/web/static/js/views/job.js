// One job: its ranks, throughput and busy share of each container with markers where light moved,
// its conditions, events and output.

import { Findings } from "../advice/findings.js";
import { Predictions } from "../advice/predictions.js";
import { WhatIf } from "../advice/whatif.js";
import { get, part, post } from "../api.js";
import { Communication } from "../comms/panel.js";
import { Checkpoints } from "../survival/checkpoints.js";
import { Recoveries } from "../survival/recoveries.js";
import { attempt, confirm } from "../ui/dialog.js";
import { h, keep, renew } from "../ui/dom.js";
import { age, bytes, clock, moment, percent, plural, rate, seconds } from "../ui/format.js";
import { Chart } from "../ui/chart.js";
import { badge, bar, button, facts, jobMark, spreadBars, tile } from "../ui/parts.js";
import { Table } from "../ui/table.js";
import { History } from "./history.js";
import { gpuCharts } from "./readings.js";
import { lastLines } from "./output.js";

const LINES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"];
const MARKERS = { RegroupStarted: "regroup", RegroupCommitted: "committed", RegroupRolledBack: "rolled back", JobStarted: "start", JobCompleted: "end", JobFailed: "failed", JobCancelled: "cancelled" };
/** A live page shows those that are `live`; a record shows all that were measured. */
const CHARTS = [
  { field: "rx_bps", label: "Received by each container", format: rate, live: true },
  { field: "tx_bps", label: "Sent by each container", format: rate },
  { field: "utilisation", label: "Busy share of each GPU", format: percent, top: 1, live: true },
  ...gpuCharts,
];
const LOG_LINES = 200;
const CHART_RANKS = 16;

const limits = (j) => [j.cpu && plural(j.cpu, "core"), j.memory_bytes && bytes(j.memory_bytes), j.io_bps && `${bytes(j.io_bps)}/s per disk`].filter(Boolean).join(", ");

/** How a job's checkpoints are kept. */
const keeps = (c) => [
  c.complete,
  `${bytes(c.local.size_bytes)} of ${c.local.where} a rank`,
  `${plural(c.local.keep, "step")} kept`,
  c.copies.scheme === "single" ? "no copies" : `${c.copies.scheme}, apart by ${c.copies.apart}`,
  c.shared && `every ${c.shared.every}th to ${c.shared.store}`,
].filter(Boolean).join(", ");

/** What another engine says of its job, and what light did for it. */
const engineFacts = (e) => [
  [e.engine, `job ${e.id}${e.title ? `, ${e.title}` : ""}${e.attempt ? `, restarted ${plural(e.attempt, "time")}` : ""}`],
  e.leaves && ["accepts", `at most ${plural(e.leaves, "aggregator")}`],
  e.answered && ["light", e.answered],
  !e.freezes && ["during a regroup", "runs on: its processes cannot be frozen"],
  e.problems.length && ["not understood", e.problems.join("; ")],
];

export function job(app, _, name) {
  const { data } = app;
  const { record = null } = app;
  const history = new History(name, record ? Infinity : undefined);
  const title = h("div", { class: "title" });
  const actions = h("div", { class: "actions" });
  const stats = h("div", { class: "stats" });
  const queue = h("div", {});
  const about = h("div", {});
  const events = h("div", {});
  const failed = h("div", {});
  const search = h("input", { type: "search", placeholder: "only lines with this text", "aria-label": "Text to find", maxlength: "1000" });
  const logs = h("pre", { class: "logs", tabindex: "0", "aria-label": "Output" });
  const drawn = (record ? CHARTS : CHARTS.filter((one) => one.live)).map((one) => ({ field: one.field, chart: new Chart(one) }));
  const charts = h("div", { class: "charts", hidden: true }, drawn.map(({ chart }) => chart.element));
  const communication = new Communication(name, { over: !record });
  const findings = new Findings(app, name);
  const predictions = new Predictions(app, name);
  const checkpoints = new Checkpoints(app, name);
  const recoveries = new Recoveries(name);
  const whatIf = new WhatIf(app, name, () => predictions.start());
  const ranks = new Table({
    label: "Ranks",
    key: (r) => r.rank,
    empty: "no endpoints yet",
    columns: [
      { id: "rank", label: "Rank", value: (r) => r.rank, right: true },
      { id: "endpoint", label: "Endpoint", value: (r) => r.endpoint, cell: (r) => h("a", { href: `#/objects/endpoints/${encodeURIComponent(r.endpoint)}` }, r.endpoint) },
      { id: "home", label: "Home", value: (r) => r.home ?? "dark" },
      { id: "server", label: "Server", value: (r) => r.server, hide: "narrow" },
      { id: "state", label: "State", value: (r) => r.state, cell: (r) => badge(r.state) },
      { id: "rx", label: "Receives", value: (r) => fresh(r).rx_bps, right: true, cell: (r) => rate(fresh(r).rx_bps) },
      { id: "tx", label: "Sends", value: (r) => fresh(r).tx_bps, right: true, cell: (r) => rate(fresh(r).tx_bps), hide: "narrow" },
      { id: "busy", label: "Busy", value: (r) => fresh(r).utilisation, cell: (r) => bar(fresh(r).utilisation, percent(fresh(r).utilisation)) },
      { id: "exit", label: "Exit", value: (r) => r.exit_code, right: true, hide: "narrow" },
      { id: "dark", label: "Dark time", value: (r) => r.dark_time_s, right: true, cell: (r) => seconds(r.dark_time_s) },
    ],
  });
  const element = h(
    "section",
    { class: "view" },
    h("header", { class: "toolbar" }, title, actions),
    h("div", { class: "page" },
      stats,
      queue,
      failed,
      charts,
      h("section", {}, h("h2", {}, "Ranks"), ranks.element),
      recoveries.element,
      checkpoints.element,
      h("section", { "aria-label": "Advice" }, h("h2", {}, "Advice"), findings.element),
      h("section", { "aria-label": "Communication" }, h("h2", {}, "Communication"), communication.element),
      record
        ? h("section", { "aria-label": "Predictions" }, h("h2", {}, "Predictions"), predictions.element)
        : h("section", { "aria-label": "What if" }, h("h2", {}, "What if"), whatIf.element, predictions.element),
      h("div", { class: "columns" },
        h("section", {}, h("h2", {}, "About"), h("div", { class: "panel" }, about)),
        h("section", {}, h("h2", {}, "Events"), h("div", { class: "panel" }, events))),
      h("section", {}, h("h2", {}, "Output ", search, " ", button("Read the last lines", readLogs, { kind: "small", why: app.mayNot("logs:read") })), logs)),
  );

  const fresh = (r) => data.live.endpoints.get(r.endpoint) ?? r;
  const mine = () => data.lists.jobs.find((j) => j.name === name);

  function render() {
    const j = mine();
    if (!j) {
      renew(title, h("h1", {}, name));
      renew(stats, h("p", { class: "muted" }, data.known.has("jobs") ? `job ${name} not found` : "loading …"));
      return;
    }
    const ended = Boolean(j.finished_at);
    const live = data.live.jobs.get(name) ?? j;
    renew(title, h("a", { href: "#/jobs", class: "back" }, "Jobs"), h("h1", {}, jobMark(app.looks, name), name), badge(j.transaction ? "moving" : j.state), j.recovery ? badge(`recovering: ${j.recovery}`, "busy") : "");
    renew(stats,
      tile("GPUs", String(j.count), j.project),
      tile("Spread", spreadBars(j.spread), j.endpoints.length ? (j.excess_span ? `${j.excess_span} aggregator${j.excess_span > 1 ? "s" : ""} too many` : "least possible") : ""),
      tile("Ring crossings", j.endpoints.length ? String(j.ring_crossings) : "–", "ring links between aggregators"),
      tile("Receives", rate(live.rx_bps), "all ranks"),
      tile("Busy", percent(live.utilisation), "mean of its GPUs"),
      tile("Age", age((j.finished_at ?? Date.now() / 1000) - j.submitted_at), j.restarts ? `${j.restarts} restarts` : "no restarts"));
    ranks.items = j.ranks;
    whatIf.render(j);
    checkpoints.render(j);
    recoveries.render(j);
    renew(about, facts([
      j.reason && ["reason", j.reason],
      ...(j.engine ? engineFacts(j.engine) : []),
      ["placement", `${j.locality}, ranks by ${j.rank_order}`],
      ["during a regroup", j.pinned ? "pinned: never moved" : `${j.policy}; moved ${plural(j.pauses, "time")} so far`],
      ["priority", String(j.priority)],
      ["communication", j.record === "off" ? "not recorded" : `recorded: ${j.record}`],
      j.time_limit_s && ["expected run time", `at most ${age(j.time_limit_s)}${j.time_limit_action === "end" ? "; then it is ended" : ""}`],
      Object.keys(j.secrets).length && ["secrets", Object.entries(j.secrets).map(([variable, name]) => `${variable}=${name}`).join(", ")],
      j.placement && ["least span", `${j.placement.span_reachable}, now ${j.placement.span}`],
      j.checkpoint && ["checkpoints", keeps(j.checkpoint)],
      (j.spares_asked || j.spares.length) && ["spares", `${j.spares.join(", ") || "none now"}, ${j.spares_needed ? "" : "if there are any, "}${j.spares_asked} asked for`],
      j.on_loss === "shrink" && ["without a spare", `goes on with fewer ranks, at least ${j.at_least}`],
      limits(j) && ["limits per container", limits(j)],
      j.volumes.length && ["volumes", h("code", {}, j.volumes.map((v) => `${v.volume}:${v.path}${v.read_only ? ":ro" : ""}`).join(" "))],
      ...(j.engine ? [] : [
        ["image", h("code", {}, j.image)],
        ["image digest", j.image_digest ? h("code", {}, j.image_digest) : "not known yet"],
        ["command", j.command.length ? h("code", {}, j.command.join(" ")) : "default of the image"],
      ]),
      ["submitted", `${moment(j.submitted_at)}${j.user ? ` by ${j.user}` : ""}`],
      j.started_at && ["started", `${moment(j.started_at)}, ran ${age((j.finished_at ?? Date.now() / 1000) - j.started_at)}`],
      ended && ["ended", moment(j.finished_at)],
      ...j.conditions.map((c) => [c.type.toLowerCase(), h("span", {}, badge(c.status ? "yes" : "no", c.status ? "good" : "warn"), ` ${c.message || c.reason}`)]),
    ]));
    showActions(j, ended);
    renew(queue, j.wait ? waits(j) : "");
    keep(failed, [j.failure?.epoch, j.failure?.cause, j.failure?.unread], () => (j.failure ? [failure(j.failure)] : []));
    showEvents();
  }

  function failure(f) {
    const last = h("pre", { class: "logs", tabindex: "0", "aria-label": `Last lines of rank ${f.rank}` });
    attempt(() => get(`/jobs/${part(name)}`)).then((j) => {
      last.textContent = j?.failure?.lines?.join("\n") || f.unread || "it wrote nothing";
    });
    return h("section", {}, h("h2", {}, "Why it failed"), h("div", { class: "panel" }, facts([
      ["first cause", f.cause],
      ["endpoint", f.endpoint],
      f.others && ["other ranks", f.others],
      f.unread && ["not read", f.unread],
      [`last lines of rank ${f.rank}`, last],
    ])));
  }

  function waits(j) {
    const w = j.wait;
    return h("section", {}, h("h2", {}, "Why it waits"), h("div", { class: "panel" }, facts([
      ["position", `${w.position} of ${w.queued}`],
      ["reason", w.reason],
      ["what helps", w.remedy || "–"],
      w.earliest_start && ["starts", `at ${moment(w.earliest_start)}, if the running jobs end as expected`],
      w.plan && ["make room", h("span", {}, `${plural(w.plan.moves, "move")}, ${plural(w.plan.paused_gpus, "GPU")} paused `,
        h("a", { class: "button small", href: `#/plan?job=${encodeURIComponent(name)}` }, "Plan it"))],
    ])));
  }

  function showActions(j, ended) {
    const not = j.engine ? `it belongs to ${j.engine.engine}` : app.mayNot("jobs:change", j.project);
    const paused = j.state === "paused";
    const change = (verb) => attempt(() => post(`/jobs/${part(name)}/${verb}`).then(() => data.touch()));
    keep(actions, [j.state, Boolean(j.excess_span), not], () => [
      h("a", { class: "button", href: "#/topology?job=" + encodeURIComponent(name) }, "Topology"),
      j.excess_span && !ended ? h("a", { class: "button", href: `#/plan?job=${encodeURIComponent(name)}` }, "Plan a regroup") : "",
      ended ? "" : button(paused ? "Resume" : "Pause", () => change(paused ? "resume" : "pause"), { why: not || (paused || j.state === "running" ? "" : `it is ${j.state}`) }),
      ended ? "" : button("Cancel", () => confirm(`Cancel ${name}?`, h("p", {}, "Its containers are stopped and its endpoints become free. This cannot be undone."), "Cancel the job", () => post(`/jobs/${part(name)}/cancel`).then(() => data.touch()), { kind: "danger" }), { kind: "danger", why: not }),
    ]);
  }

  function showEvents() {
    const about = data.events.filter((event) => event.object === `job/${name}`).slice(record ? 0 : -12).reverse();
    renew(events, about.length ? about.map((event) => h("p", { class: "line" }, badge(event.severity), ` ${moment(event.time)} `, h("b", {}, event.reason), ` ${event.message}`)) : h("p", { class: "muted" }, "none yet"));
  }

  function chart() {
    const { times, markers } = history;
    const shown = history.lines.slice(0, record ? Infinity : CHART_RANKS);
    charts.hidden = !shown.length;
    const marks = markers.filter((m) => concerns(m)).map((m) => ({ time: m.time, text: MARKERS[m.reason], bad: m.reason === "JobFailed" || m.reason === "RegroupRolledBack" }));
    for (const { field, chart } of drawn) {
      const lines = shown.filter((line) => line[field]).map((line, i) => ({ label: `rank ${line.rank} · ${line.endpoint}`, colour: LINES[i % LINES.length], dash: Math.floor(i / LINES.length), values: line[field] }));
      chart.element.hidden = !lines.length;
      chart.show(times, lines, marks);
    }
  }

  const concerns = (marker) => marker.reason in MARKERS && (!marker.object.startsWith("job/") || marker.object === `job/${name}`);

  async function readHistory() {
    await attempt(() => history.load());
    chart();
  }

  async function readLogs() {
    const read = await attempt(async () => lastLines(await get(`/jobs/${part(name)}`), LOG_LINES, search.value));
    if (read === null) return;
    const shown = read.map(({ time, rank, text }) => (rank === undefined ? text : `${(time ? clock(time) : "").padEnd(8)} ${String(rank).padStart(3)}  ${text}`));
    logs.textContent = shown.join("\n") || "no output";
    logs.scrollTop = logs.scrollHeight;
  }

  return {
    title: name,
    element,
    lists: ["jobs", "aggregators"],
    mounted() {
      render();
      readHistory();
      if (record) readLogs();
      for (const one of [communication, findings, predictions]) one.start();
    },
    update(topic, about) {
      if (topic === "theme") for (const one of [...drawn.map(({ chart }) => chart), communication]) one.redraw();
      if (topic === "sample") {
        history.add(about);
        chart();
      }
      if (topic === "events") history.mark(about);
      // Read the samples that came while the stream was away.
      if (topic === "connection" && data.connection === "live") readHistory();
      render();
    },
    destroy() {
      for (const one of [...drawn.map(({ chart }) => chart), communication]) one.destroy();
      for (const one of [findings, predictions, checkpoints, recoveries]) one.stop();
    },
  };
}
