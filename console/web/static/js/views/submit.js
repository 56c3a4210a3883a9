// The form that queues a job. The controller checks everything; the form only helps.

import { get, post } from "../api.js";
import { h, show } from "../ui/dom.js";
import { complain, notice, open } from "../ui/dialog.js";
import { button, problemBox } from "../ui/parts.js";

/** What the form says of a field's choices, the first one first; "" leaves the choice to the controller. */
const WORDS = {
  locality: {
    preferred: "preferred: the smallest span that the current circuits allow",
    regroup: "regroup: move light before it starts, if that helps",
    strict: "strict: the smallest span, or wait",
    any: "any: ignore the fabric",
  },
  rank_order: { aggregator: "by aggregator: the ring crosses rarely", placed: "as placed" },
  policy: {
    pause: "pause: all ranks are frozen during the dark time",
    live: "live: keeps running during the dark time",
    restart: "restart: all ranks are stopped and started again",
  },
  restart: { never: "never", "on-failure": "up to three times", "on-failure:10": "up to ten times" },
  time_limit_action: { "": "as the site has set", end: "end the job", ignore: "ignore it: the limit is an estimate" },
  record: {
    "": "as the site has set",
    counts: "counts: calls, sizes and durations",
    full: "full: TensorFlow's profiler in windows, too",
    off: "off",
  },
  complete: {
    rename: "files or folders that are moved into place when whole",
    dcp: "PyTorch's distributed checkpoints (dcp)",
    orbax: "Orbax",
    keras: "BackupAndRestore of Keras",
  },
  on_loss: { wait: "wait for as many endpoints", shrink: "go on with fewer" },
  where: { memory: "memory", disk: "disk of its server" },
  scheme: {
    "": "partner; none for one rank",
    partner: "partner: each part whole on another server",
    xor: "xor: parities of sets of ranks",
    single: "single: no copies",
  },
  apart: { server: "another server", aggregator: "another server and aggregator" },
  replicas: { distinct: "each rank has its own part", identical: "any rank's part is the whole state" },
};
const LABELS = {
  name: "Name",
  count: "GPUs",
  project: "Project",
  locality: "Placement",
  rank_order: "Order of its ranks",
  policy: "During a regroup",
  priority: "Priority",
  time_limit_s: "Expected run time, minutes at most",
  time_limit_action: "At the end of that time",
  restart: "Restart when a rank dies",
  record: "Record its communication",
  size_bytes: "Checkpoints of a rank, GiB",
  complete: "Checkpoints are whole by",
  store: "Store of checkpoints",
  spares: "Spares",
  on_loss: "Without a spare",
  where: "They are in",
  scheme: "Copies",
  apart: "A copy is on",
  replicas: "Parts of ranks",
  at_least: "Ranks with which it goes on at least",
  image: "Image",
  cpu: "Cores per container, at most",
  memory_bytes: "Memory per container, GiB at most",
  io_bps: "Disk per container, MB/s at most",
  env: "Secrets of the project, as variables",
  volumes: "Volumes",
  command: "Command",
};
const HINTS = {
  name: "generated",
  time_limit_s: "unknown",
  size_bytes: "keep none",
  store: "none, or VOLUME:10 for every 10th",
  spares: "none; 1? if there is one",
  image: "the site's default image",
  cpu: "no limit",
  memory_bytes: "no limit",
  io_bps: "no limit",
  env: "one a line: WANDB_API_KEY=wandb",
  volumes: "one NAME:PATH or NAME:PATH:ro per line, such as imagenet:/data",
  command: "one argument per line; empty runs the image's command",
};
const GIB = 2 ** 30;
/** Numbers that people write in another unit than requests. */
const UNITS = { time_limit_s: 60, size_bytes: GIB, memory_bytes: GIB, io_bps: 1e6 };
/** Rows of the fields that are texts of several lines. */
const ROWS = { env: 2, volumes: 2, command: 3 };
/** Fields of the part that is closed at first. */
const SELDOM = ["where", "scheme", "apart", "replicas", "at_least"];
/** Fields that stand in a file or on the command line; a checkpoint is asked for by its parts. */
const ELSEWHERE = [
  "pinned", "preemptible", "endpoints", "model", "min_memory_bytes", "dark_tolerance_s", "checkpoint_grace_s", "pull", "checkpoint",
  "spares_needed",
];

/** Types of fields that the form shows although it has no words for them. */
const PLAIN = ["string", "integer", "number", "boolean"];

let schema;

export async function submitDialog(app) {
  const content = h("div", {}, "…");
  const close = open("Submit a job", content);
  try {
    schema ??= (await get("/openapi.json")).components.schemas;
    if (content.isConnected) fill(app, content, close);
  } catch (problem) {
    show(content, problemBox(problem));
  }
}

function fill(app, content, close) {
  const parts = ["SharedCheckpoints", "CheckpointCopies", "LocalCheckpoints", "CheckpointRequest", "JobRequest"];
  const known = Object.assign({}, ...parts.map((name) => schema[name].properties));
  const kinds = Object.fromEntries(Object.entries(known).map(([id, property]) => [id, resolved(property)]));
  const more = Object.keys(schema.JobRequest.properties).filter((id) => !(id in LABELS) && !ELSEWHERE.includes(id) && PLAIN.includes(kinds[id].type));
  const ids = [...Object.keys(LABELS), ...more];
  const fields = Object.fromEntries(ids.map((id) => [id, field(id, kinds[id], app)]));
  const trouble = h("div", {});
  const grid = (some) => h("div", { class: "grid" }, some.map((id) => h("label", { class: ROWS[id] ? "full" : null }, h("span", {}, LABELS[id] ?? known[id].title), fields[id])));
  const go = button("Submit", () => {}, { kind: "primary", type: "submit" });
  const form = h(
    "form",
    { class: "stack form", onsubmit: submit },
    grid(ids.filter((id) => !SELDOM.includes(id))),
    h("details", {}, h("summary", {}, "More about checkpoints"), grid(SELDOM)),
    trouble,
    h("footer", {}, button("Cancel", () => close()), go),
  );
  show(content, form);
  fields.name.focus();

  async function submit(event) {
    event.preventDefault();
    go.disabled = true;
    const said = Object.fromEntries(ids.map((id) => [id, read(id, kinds[id], fields[id].value)]));
    const own = ids.filter((id) => id in schema.JobRequest.properties && (said[id] !== null || kinds[id].nullable));
    const body = {
      ...Object.fromEntries(own.map((id) => [id, said[id]])),
      spares: Number(fields.spares.value.replace("?", "")),
      spares_needed: !fields.spares.value.endsWith("?"),
      env: variables(fields.env.value),
      volumes: lines(fields.volumes).map(volume),
      command: lines(fields.command),
      checkpoint: checkpoint(said),
    };
    try {
      const job = await post("/jobs", body);
      close();
      notice(`${job.name} is ${job.state}`);
      app.data.touch(["jobs", "endpoints", "containers"]);
    } catch (problem) {
      go.disabled = false;
      if (form.isConnected) show(trouble, problemBox(problem));
      else complain(problem);
    }
  }
}

/** What the schema says of a property, with what it refers to. */
function resolved(property) {
  const some = property.anyOf?.find((one) => one.type !== "null") ?? property;
  return { ...property, ...some, ...schema[some.$ref?.split("/").pop()], nullable: "anyOf" in property };
}

/** The input of a field: choices, limits and default are those of the schema. */
function field(id, kind, app) {
  const projects = app.who.projects.filter((name) => name !== "*");
  const words = WORDS[id] ?? (kind.enum ? {} : kind.type === "boolean" ? { [kind.default]: "as usual" } : null);
  const usual = { name: id, placeholder: HINTS[id], autocomplete: "off", required: kind.default !== undefined && !(id in HINTS) };
  if (id === "project" && projects.length) return h("select", { name: id }, projects.map((name) => h("option", {}, name)));
  if (ROWS[id]) return h("textarea", { ...usual, rows: ROWS[id], required: false, spellcheck: "false" });
  if (words) {
    const others = kind.enum ?? (kind.type === "boolean" ? ["true", "false"] : []);
    const all = new Set([...(kind.nullable ? [""] : []), ...Object.keys(words), ...others]);
    return h("select", { name: id }, [...all].map((value) => h("option", { value, selected: value === kind.default }, words[value] ?? value)));
  }
  if (id === "spares" || id === "store") return h("input", { ...usual, pattern: id === "spares" ? "[0-9]{1,2}\\??" : null });
  if (kind.type === "string") return h("input", { ...usual, pattern: kind.pattern?.replaceAll("-]", "\\-]"), value: kind.default ?? "" });
  const value = id === "count" ? 2 : id in HINTS ? "" : kind.default ?? "";
  const step = kind.type === "number" || id in UNITS ? "any" : null;
  return h("input", { ...usual, type: "number", min: kind.minimum, max: kind.maximum && !(id in UNITS) ? kind.maximum : null, step, value, required: usual.required || id === "count" });
}

/** A field's value as a request has it; null for an empty one. */
function read(id, kind, value) {
  if (value.trim() === "") return null;
  if (kind.type === "boolean") return value === "true";
  if (kind.type === "integer") return Math.round((UNITS[id] ?? 1) * Number(value));
  return kind.type === "number" ? (UNITS[id] ?? 1) * Number(value) : value.trim();
}

const lines = ({ value }) => value.split("\n").filter((line) => line !== "");

/** A volume as the command line writes it; the controller checks it. */
function volume(text) {
  const [name, path = "", mode] = text.trim().split(":");
  return { volume: name, path, read_only: mode === "ro" ? true : mode === "rw" ? false : null };
}

/** How checkpoints are kept, null without space for them; the controller checks it. */
function checkpoint({ size_bytes, complete, where, scheme, apart, replicas, store }) {
  if (size_bytes === null) return null;
  const [volume, every] = (store ?? "").split(":");
  const shared = volume ? { store: volume, ...(every === undefined ? {} : { every: Number(every) }) } : null;
  return { complete, local: { where, size_bytes }, copies: { scheme, apart }, replicas, shared };
}

/** The variables of lines VARIABLE=SECRET; the controller checks them. */
const variables = (text) => Object.fromEntries(
  text.split("\n").map((line) => line.trim()).filter((line) => line !== "").map((line) => {
    const [variable, ...name] = line.split("=");
    return [variable.trim(), { secret: name.join("=").trim() }];
  }),
);
