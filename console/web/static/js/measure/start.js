// The form that starts a measurement. The controller checks everything; the form only helps.

import { post } from "../api.js";
import { h, show } from "../ui/dom.js";
import { complain, notice, open } from "../ui/dialog.js";
import { button, problemBox } from "../ui/parts.js";

const TYPES = {
  links: "links: latency and bandwidth of every pair",
  collectives: "collectives: as nccl-tests",
  scaling: "scaling: intensity and number of GPUs",
  storage: "storage: throughput of a volume",
  input: "input: does the loader or the model limit",
};
/** The main settings of each type: label, how its text is read, and an example. All others by name. */
const SETTINGS = {
  links: {
    sizes: ["Sizes in bytes", list, "1 64 4k 1m"],
    repetitions: ["Repetitions", figure, "5"],
    together: ["Disjoint pairs at the same time", yes],
    all: ["All pairs also on large sites", yes],
  },
  collectives: {
    operations: ["Operations", list, "all_reduce"],
    sizes: ["Sizes in bytes", list, "4k..4m, or a list: 4k 1m"],
    placements: ["Placements", list, "reordered local hybrid remote"],
    iterations: ["Iterations", figure, "20"],
  },
  scaling: {
    x: ["Repeated blocks of the network", list, "1 2 4 8 16 32"],
    batches: ["Global batches", list, "as the type has them"],
    ranks: ["Ranks", list, "1 2 4"],
    quick: ["Quick: fewer runs", yes],
  },
  storage: {
    volume: ["Volume", word, "its name", true],
    workers: ["Workers", list, "1 2 4 8 16 32 64"],
    io_bytes: ["Sizes of a request", list, "4k 64k 1m"],
    rw: ["Access", list, "read"],
    io_limits: ["Limits of the disk, bytes per second", list, "none"],
  },
  input: {
    volume: ["Volume", word, "its name", true],
    loader: ["Loader", word, "builtin"],
    decode_ms: ["Decoding a sample, ms", figure, "5"],
    step_ms: ["A step of the model, ms", figure, "100"],
    io_limits: ["Limits of the disk, bytes per second", list, "none"],
  },
};
const UNITS = { k: 2 ** 10, m: 2 ** 20, g: 2 ** 30 };

export function startDialog(app) {
  const trouble = h("div", {});
  const preview = h("div", { "aria-live": "polite" });
  const idle = app.data.lists.endpoints.filter((e) => e.state === "idle").length;
  const type = h("select", { name: "type", onchange: () => ask() }, Object.entries(TYPES).map(([value, label]) => h("option", { value }, label)));
  const endpoints = h("input", { name: "endpoints", placeholder: `all that are idle: ${idle} now`, autocomplete: "off", spellcheck: "false" });
  const project = h("input", { name: "project", value: "default", pattern: "[a-z0-9\\-]{1,63}", required: true });
  const seed = h("input", { name: "seed", type: "number", min: 0, step: 1, value: "1", required: true });
  const more = h("textarea", { name: "more", rows: 2, placeholder: "one NAME=VALUE per line; the value is text or JSON", spellcheck: "false" });
  const own = h("div", { class: "grid" });
  let fields = {};
  const go = button("Start", () => {}, { kind: "primary", type: "submit" });
  const form = h("form", { class: "stack form", onsubmit: (event) => send(event, false) },
    h("div", { class: "grid" }, labelled("Type", type), labelled("Endpoints in rank order", endpoints), labelled("Project of its jobs", project), labelled("Seed", seed)),
    own, labelled("Other settings", more),
    h("p", { class: "muted" }, "It takes idle endpoints only; no running job is moved."),
    preview, trouble,
    h("footer", {}, button("Cancel", () => close()), button("Show the jobs", () => send(null, true), { title: "Start nothing" }), go));
  ask();
  const close = open("Measure", form);
  type.focus();

  function ask() {
    fields = Object.fromEntries(Object.entries(SETTINGS[type.value]).map(([name, [, read, example, required]]) =>
      [name, read === yes ? h("input", { type: "checkbox", name }) : h("input", { name, placeholder: example, required: Boolean(required), autocomplete: "off", spellcheck: "false" })]));
    show(own, Object.entries(fields).map(([name, field]) => labelled(SETTINGS[type.value][name][0], field, field.type === "checkbox" ? "check" : null)));
    show(preview);
  }

  function request(dry_run) {
    const given = Object.entries(fields).map(([name, field]) => [name, SETTINGS[type.value][name][1](field)]).filter(([, value]) => value !== null);
    return {
      type: type.value,
      endpoints: endpoints.value.split(/[\s,]+/).filter(Boolean),
      settings: { ...Object.fromEntries(given), ...others(more.value) },
      seed: Number(seed.value),
      project: project.value,
      dry_run,
    };
  }

  async function send(event, dry) {
    event?.preventDefault();
    show(trouble);
    if (dry && !form.reportValidity()) return;
    go.disabled = true;
    try {
      const made = await post("/measurements", request(dry));
      if (dry) show(preview, runs(made));
      else {
        close();
        notice(`${made.id} is ${made.state}`);
        location.hash = `#/measurements/${encodeURIComponent(made.id)}`;
      }
    } catch (problem) {
      if (form.isConnected) show(trouble, problemBox(problem));
      else complain(problem);
    }
    go.disabled = false;
  }
}

function runs(m) {
  return h("div", { class: "panel" }, h("p", {}, `${m.runs.length} ${m.runs.length === 1 ? "job" : "jobs"} on ${m.endpoints.join(" ")}`),
    m.runs.slice(0, 20).map((run) => h("p", { class: "line" }, h("span", { class: "muted" }, run.label || "a job"), ` ${run.endpoints.join(" ")}`)),
    m.runs.length > 20 ? h("p", { class: "muted" }, `and ${m.runs.length - 20} more`) : "");
}

const labelled = (label, field, kind = null) => h("label", { class: kind }, h("span", {}, label), field);

function word({ value }) {
  return value.trim() || null;
}

function figure({ value }) {
  return value.trim() === "" ? null : Number(value);
}

function yes({ checked }) {
  return checked || null;
}

/** "4k 1m": a list of sizes, figures or words; "4k..4m" stays as it is. */
function list({ value }) {
  if (value.includes("..")) return value.trim();
  const found = value.split(/[\s,]+/).filter(Boolean).map((one) => {
    const [, digits, unit = ""] = /^(\d+)([kmg]?)$/i.exec(one) ?? [];
    return digits === undefined ? one : Number(digits) * (UNITS[unit.toLowerCase()] ?? 1);
  });
  return found.length ? found : null;
}

/** Settings of lines NAME=VALUE. */
const others = (lines) => Object.fromEntries(lines.split("\n").filter((line) => line.includes("=")).map((line) => {
  const cut = line.indexOf("=");
  return [line.slice(0, cut).trim(), read(line.slice(cut + 1).trim())];
}));

function read(value) {
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}
