// Plan: what a regroup would change, its cost for each job, its gain and its bound; then its
// execution, phase by phase.

import { part, post } from "../api.js";
import { attempt, confirm } from "../ui/dialog.js";
import { h, keep, show } from "../ui/dom.js";
import { NONE, age, moment, percent, plural, seconds, speedup } from "../ui/format.js";
import { badge, button, jobLink, problemBox, tile } from "../ui/parts.js";
import { batches, progress } from "./progress.js";

export function plan(app, params) {
  const { data } = app;
  const trouble = h("div", {});
  const result = h("div", { class: "stack" });
  const run = h("div", {});
  const rollout = h("div", {});
  let busy = false;
  let offered = false;

  const jobField = h("select", { name: "job" });
  const objective = h("select", { name: "objective" }, h("option", { value: "pauses" }, "fewest pauses"), h("option", { value: "moves" }, "fewest moves"));
  const maxJobs = h("input", { type: "number", min: 0, placeholder: "any", name: "max_jobs_paused" });
  const maxMoves = h("input", { type: "number", min: 0, placeholder: "any", name: "max_moves" });
  const limit = h("input", { type: "number", min: 0.1, max: 600, step: "any", value: "10", name: "time_limit_s", required: true });
  const force = h("input", { type: "checkbox", name: "force" });
  const maxDark = h("input", { type: "number", min: 1, placeholder: "the site's", name: "max_dark", title: "in batches with at most so many endpoints dark at once" });
  const maxPauses = h("input", { type: "number", min: 1, max: 100, placeholder: "the site's", name: "max_pauses", title: "of a job, by the batches" });
  const park = h("select", { name: "park" }, h("option", { value: "" }, "as the site"), h("option", { value: "yes" }, "may stay dark"), h("option", { value: "no" }, "light up again"));
  const go = button("Make a plan", () => {}, { kind: "primary", type: "submit", why: app.mayNot("plans:make") });
  const form = h(
    "form",
    { class: "toolform", onsubmit: make },
    field("For", jobField),
    field("Then prefer", objective),
    field("Jobs paused ≤", maxJobs),
    field("Moves ≤", maxMoves),
    field("Dark at once ≤", maxDark),
    field("Pauses ≤", maxPauses),
    field("Idle endpoints", park),
    field("Solver seconds", limit),
    h("label", { class: "check", title: "pinned jobs stay pinned" }, force, h("span", {}, "Ignore cool-downs")),
    go,
  );
  const element = h("section", { class: "view plan" }, h("header", { class: "toolbar" }, h("h1", {}, "Plan")), h("div", { class: "page" }, form, trouble, rollout, run, result));

  function field(label, input) {
    return h("label", {}, h("span", {}, label), input);
  }

  function choices() {
    // Keep the user's choice, "all jobs" included.
    const chosen = offered ? jobField.value : (params.get("job") ?? app.planFor ?? "");
    offered = true;
    const option = (name, text) => h("option", { value: name, selected: name === chosen }, text);
    const holding = data.lists.jobs.filter((j) => j.endpoints.length && !j.finished_at).map((j) => j.name);
    const waiting = data.lists.jobs.filter((j) => j.state === "pending" || j.state === "waiting").map((j) => j.name);
    const gone = chosen && ![...holding, ...waiting].includes(chosen) ? [chosen] : [];
    keep(jobField, [chosen, holding, waiting], () => [option("", "all jobs"), [...holding, ...gone].map((name) => option(name, name)), waiting.map((name) => option(name, `room for ${name}`))]);
  }

  async function make(event) {
    event?.preventDefault();
    if (busy) return;
    busy = go.disabled = true;
    const number = (input) => (input.value === "" ? null : Number(input.value));
    const asked = {
      job: jobField.value || null,
      objective: objective.value,
      max_jobs_paused: number(maxJobs),
      max_moves: number(maxMoves),
      max_dark: number(maxDark),
      max_pauses: number(maxPauses),
      park: park.value === "" ? null : park.value === "yes",
      time_limit_s: Number(limit.value),
      force: force.checked,
    };
    const began = Date.now();
    const tell = () => show(trouble, h("p", { class: "muted", role: "status" }, `Planning … ${Math.round((Date.now() - began) / 1000)} s so far; the search takes ${asked.time_limit_s} s at most`));
    tell();
    const telling = setInterval(tell, 1000);
    const turn = app.asking();
    try {
      const made = await post("/plans", asked, asked.time_limit_s);
      if (turn()) app.setPlan(made, asked.job);
      show(trouble);
    } catch (problem) {
      show(trouble, problemBox(problem));
    } finally {
      clearInterval(telling);
    }
    busy = go.disabled = false;
  }

  function apply() {
    const made = app.plan;
    const whose = made.jobs_paused.map((name) => data.lists.jobs.find((j) => j.name === name)).filter(Boolean);
    confirm(
      "Apply this plan?",
      [
        h("p", {}, `${plural(made.moves.length, "endpoint")} will change aggregator${made.batches ? ` in ${plural(made.batches.batches, "batch", "batches")}` : `: ${plural(made.circuits.break.length, "circuit")} to break, ${made.circuits.make.length} to make`}.`),
        whose.length ? h("p", {}, "Paused for the dark time: ", whose.map((j) => [jobLink(app.looks, j.name), ` (project ${j.project}) `])) : h("p", {}, "No job is paused."),
        h("p", {}, `Predicted dark time: ${seconds(made.predicted_dark_time_s)}. If light does not arrive, the old circuits are put back.`),
        h("p", { class: "muted" }, `You act as ${app.who.name} (${app.who.roles.join(", ")}); this is recorded.`),
      ],
      "Apply",
      async () => {
        if (made.batches) app.rolling(await post("/rollouts", { plan: made }));
        else app.started(await post("/transactions", { plan: made }));
        app.setPlan(null);
      },
    );
  }

  function render() {
    const transaction = app.transaction;
    const { id, state, phase, waiting_for: waits, finished_at: end } = transaction ?? {};
    keep(run, [id, state, phase, waits, end], () => (transaction ? progress(app, transaction, () => abort(transaction)) : ""));
    const rolled = app.rollout;
    keep(rollout, [rolled?.id, rolled?.state, rolled?.done], () => (rolled ? batches(app, rolled, () => stop(rolled)) : ""));
    const made = app.plan;
    keep(result, [made?.id, made && made.epoch !== data.epoch, Boolean(transaction)], () => outcome(made, transaction));
  }

  function outcome(made, transaction) {
    if (!made) {
      return transaction ? "" : h("p", { class: "empty" }, "A plan changes nothing. Make one to see which circuits would move, how long each job would be dark, and what that gains.");
    }
    if (!made.moves.length) {
      const left = made.excess_span_before;
      return h("p", { class: "empty" }, left ? `Nothing to gain within these limits: excess span stays ${left}.` : "Nothing to gain: every job has the least possible span.");
    }
    return [stats(made), worth(app, made), cost(app, made), gains(app, made), changes(made), footer(made)];
  }

  function abort(transaction) {
    return attempt(() => post(`/transactions/${part(transaction.id)}/abort`), "rolling back");
  }

  function stop(view) {
    return attempt(async () => app.rolling(await post(`/rollouts/${part(view.id)}/abort`)), "no further batch begins");
  }

  function footer(made) {
    const old = made.epoch !== data.epoch ? ", the fabric has changed since: it can be applied if nothing that it depends on has changed" : "";
    const refused = made.budgets.find((b) => b.verdict === "refused");
    const why = app.mayNot("plans:apply") || made.batches?.refused || (refused ? `job ${refused.job} does not tolerate it` : "");
    return h("footer", { class: "applybar" },
      h("span", { class: "muted" }, why || `Plan ${made.id} at epoch ${made.epoch}${old}`),
      h("a", { class: "button", href: "#/topology" }, "Show on the topology"),
      button("Apply …", apply, { kind: "primary", why }));
  }

  return {
    title: "Plan",
    element,
    lists: ["jobs"],
    mounted() {
      choices();
      render();
      if (params.get("job") && !app.mayNot("plans:make") && (!app.plan || app.planFor !== params.get("job"))) make();
    },
    update(topic) {
      if (topic === "sample") return;
      if (topic === "lists" && document.activeElement !== jobField) choices();
      render();
    },
  };
}

function stats(made) {
  const proof = made.optimal
    ? "proven: no plan does better"
    : `no plan beats excess span ${made.bound.excess_span}, ${made.bound.running_moves} running moves, ${made.bound.paused_gpus} paused GPUs`;
  return h("div", { class: "stats" },
    tile("Excess span", `${made.excess_span_before} → ${made.excess_span_after}`, proof),
    tile("Moves", String(made.moves.length), `${made.running_moves} of running jobs`),
    tile("Dark time", seconds(made.predicted_dark_time_s), made.predicted_link_up_s ? `predicted, ${seconds(made.predicted_link_up_s)} for link-up, ${made.link_up_source}` : "predicted, the longest switch"),
    tile("Paused", plural(made.paused_gpus, "GPU"), made.jobs_paused.join(", ") || "no job"),
    made.batches && !made.batches.refused ? tile("Batches", String(made.batches.batches), `at most ${plural(made.batches.largest, "endpoint")} dark at once${often(made.batches)}`) : "",
    tile("Flows", `+${made.flows.add} −${made.flows.delete}`, "on all aggregators"),
    tile("Solver", seconds(made.solver_seconds), made.optimal ? "to the proven optimum" : "up to its time limit"));
}

/** Which jobs are paused more than once. */
function often(cut) {
  const jobs = Object.entries(cut.pauses).filter(([, n]) => n > 1).map(([job, n]) => `${job} ${n} times`);
  return jobs.length ? `; paused ${jobs.join(", ")}` : "";
}

function simple(heads, rows) {
  return h("div", { class: "scroll" }, h("table", { class: "rows folds" },
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, i) => h("td", { "data-label": heads[i] }, cell)))))));
}

/** Whether it is worth it, which job it makes room for, and which jobs it leaves alone. */
function worth(app, made) {
  const lines = [];
  const w = made.worth;
  if (w) {
    const word = { yes: "worth it", open: "not known yet", no: "not worth it" }[w.verdict];
    lines.push(h("p", {}, badge(word, { yes: "good", open: "warn", no: "bad" }[w.verdict]), ` ${w.reason}`));
  }
  if (made.makes_room_for) lines.push(h("p", {}, "Makes room for ", jobLink(app.looks, made.makes_room_for)));
  for (const one of made.left_alone) lines.push(h("p", {}, badge("left alone"), " ", jobLink(app.looks, one.job), ` ${one.reason}`, one.until ? ` until ${moment(one.until)}` : ""));
  return lines.length ? h("section", {}, h("h2", {}, "Is it worth it?"), h("div", { class: "panel" }, lines)) : "";
}

const duration = (s) => (s < 60 ? seconds(s) : age(s));

function cost(app, made) {
  if (!made.budgets.length) return "";
  return h("section", {}, h("h2", {}, "Dark time per job"), simple(
    ["Job", "Policy", "Dark", "Tolerates", "Share", "Verdict"],
    made.budgets.map((b) => [jobLink(app.looks, b.job), b.policy, seconds(b.dark_s), b.tolerance_s === null ? "any" : seconds(b.tolerance_s),
      b.tolerance_s ? percent(b.dark_s / b.tolerance_s) : "–",
      h("span", {}, badge(b.verdict, { ok: "good", downgraded: "warn", refused: "bad" }[b.verdict]), b.reason ? ` ${b.reason}` : "")]),
  ));
}

function gains(app, made) {
  if (!made.predicted_gain.length) return "";
  return h("section", {}, h("h2", {}, "Predicted gain"), simple(
    ["Job", "Span", "Ring crossings", "Communication", "A step", "Run time saved", "If it runs another"],
    made.predicted_gain.map((g) => [jobLink(app.looks, g.job), `${g.span_before} → ${g.span_after}`, `${g.ring_crossings_before} → ${g.ring_crossings_after}`, speedup(g.communication_speedup), interval(g.step_speedup_low, g.step_speedup_high, speedup), interval(g.saved_low_s, g.saved_high_s, duration), g.remaining_s ? duration(g.remaining_s) : NONE]),
  ));
}

/** A prediction: one figure, or an interval. */
function interval(low, high, write) {
  if (low === null || low === undefined) return "–";
  const [one, other] = [write(low), write(high)];
  return one === other ? one : `${one} to ${other}`;
}

function changes(made) {
  const steps = ["break", "make"].flatMap((verb) => made.circuits[verb].map((c) => [badge(verb, verb === "break" ? "bad" : "good"), c.endpoint, h("code", {}, `${c.switch}/${c.a} – ${c.b}`), `${c.aggregator}/${c.aggregator_port}`]));
  return h("div", { class: "columns" },
    h("section", {}, h("h2", {}, "Moves"), simple(["Endpoint", "From", "To"], made.moves.map((m) => [m.endpoint, m.from ?? "dark", m.to ?? "dark"]))),
    h("section", {}, h("h2", {}, "Circuits"), simple(["", "Endpoint", "Ports", "Aggregator port"], steps)));
}
