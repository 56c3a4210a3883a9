// The form that queues a job. The controller checks everything; the form only helps.

import { post } from "../api.js";
import { h, show } from "../ui/dom.js";
import { complain, notice, open } from "../ui/dialog.js";
import { button, problemBox } from "../ui/parts.js";

const LOCALITY = {
  preferred: "preferred: the smallest span that the current circuits allow",
  regroup: "regroup: move light before it starts, if that helps",
  strict: "strict: the smallest span, or wait",
  any: "any: ignore the fabric",
};
const RANKS = { aggregator: "by aggregator: the ring crosses rarely", placed: "as placed" };
const RESTART = { never: "never", "on-failure": "up to three times", "on-failure:10": "up to ten times" };
const LIMIT = { "": "as the site has set", end: "end the job", ignore: "ignore it: the limit is an estimate" };
const RECORD = {
  "": "as the site has set",
  counts: "counts: calls, sizes and durations",
  full: "full: TensorFlow's profiler in windows, too",
  off: "off",
};
const RULE = {
  rename: "files or folders that are moved into place when whole",
  dcp: "PyTorch's distributed checkpoints (dcp)",
  orbax: "Orbax",
  keras: "BackupAndRestore of Keras",
};
const ON_LOSS = { wait: "wait for as many endpoints", shrink: "go on with fewer" };
const WHERE = { memory: "memory", disk: "disk of its server" };
const SCHEME = {
  "": "partner; none for one rank",
  partner: "partner: each part whole on another server",
  xor: "xor: parities of sets of ranks",
  single: "single: no copies",
};
const APART = { server: "another server", aggregator: "another server and aggregator" };
const REPLICAS = { distinct: "each rank has its own part", identical: "any rank's part is the whole state" };
/** Fields of the part that is closed at first. */
const SELDOM = ["checkpoint_where", "checkpoint_scheme", "checkpoint_apart", "replicas", "at_least"];
const GIB = 2 ** 30;
const MB = 1e6;
const POLICY = {
  pause: "pause: all ranks are frozen during the dark time",
  live: "live: keeps running during the dark time",
  restart: "restart: all ranks are stopped and started again",
};

export function submitDialog(app) {
  const trouble = h("div", {});
  const projects = app.who.projects.filter((name) => name !== "*");
  const fields = {
    name: h("input", { name: "name", pattern: "[a-z0-9\\-]{1,63}", placeholder: "generated", autocomplete: "off" }),
    count: h("input", { name: "count", type: "number", min: 1, value: "2", required: true }),
    project: projects.length
      ? h("select", { name: "project" }, projects.map((name) => h("option", {}, name)))
      : h("input", { name: "project", value: "default", pattern: "[a-z0-9\\-]{1,63}", required: true }),
    locality: choice("locality", LOCALITY),
    rank_order: choice("rank_order", RANKS),
    policy: choice("policy", POLICY),
    priority: h("input", { name: "priority", type: "number", min: -100, max: 100, value: "0", required: true }),
    time_limit: h("input", { name: "time_limit", type: "number", min: 1, step: "any", placeholder: "unknown" }),
    time_limit_action: choice("time_limit_action", LIMIT),
    restart: choice("restart", RESTART),
    record: choice("record", RECORD),
    checkpoint_size: h("input", { name: "checkpoint_size", type: "number", min: 0, step: "any", placeholder: "keep none" }),
    checkpoint_rule: choice("checkpoint_rule", RULE),
    checkpoint_store: h("input", { name: "checkpoint_store", placeholder: "none, or VOLUME:10 for every 10th", autocomplete: "off" }),
    spares: h("input", { name: "spares", pattern: "[0-9]{1,2}\\??", placeholder: "none; 1? if there is one", autocomplete: "off" }),
    on_loss: choice("on_loss", ON_LOSS),
    checkpoint_where: choice("checkpoint_where", WHERE),
    checkpoint_scheme: choice("checkpoint_scheme", SCHEME),
    checkpoint_apart: choice("checkpoint_apart", APART),
    replicas: choice("replicas", REPLICAS),
    at_least: h("input", { name: "at_least", type: "number", min: 1, value: "1", required: true }),
    image: h("input", { name: "image", placeholder: "the site's default image", autocomplete: "off" }),
    cpu: limit("cpu"),
    memory: limit("memory"),
    io: limit("io"),
    secrets: h("textarea", { name: "secrets", rows: 2, placeholder: "one a line: WANDB_API_KEY=wandb", spellcheck: "false" }),
    volumes: h("textarea", { name: "volumes", rows: 2, placeholder: "one NAME:PATH or NAME:PATH:ro per line, such as imagenet:/data", spellcheck: "false" }),
    command: h("textarea", { name: "command", rows: 3, placeholder: "one argument per line; empty runs the image's command", spellcheck: "false" }),
  };
  const labels = {
    name: "Name",
    count: "GPUs",
    project: "Project",
    locality: "Placement",
    rank_order: "Order of its ranks",
    policy: "During a regroup",
    priority: "Priority",
    time_limit: "Expected run time, minutes at most",
    time_limit_action: "At the end of that time",
    restart: "Restart when a rank dies",
    record: "Record its communication",
    checkpoint_size: "Checkpoints of a rank, GiB",
    checkpoint_rule: "Checkpoints are whole by",
    checkpoint_store: "Store of checkpoints",
    spares: "Spares",
    on_loss: "Without a spare",
    checkpoint_where: "They are in",
    checkpoint_scheme: "Copies",
    checkpoint_apart: "A copy is on",
    replicas: "Parts of ranks",
    at_least: "Ranks with which it goes on at least",
    image: "Image",
    cpu: "Cores per container, at most",
    memory: "Memory per container, GiB at most",
    io: "Disk per container, MB/s at most",
    secrets: "Secrets of the project, as variables",
    volumes: "Volumes",
    command: "Command",
  };
  const grid = (ids) => h("div", { class: "grid" }, ids.map((id) => h("label", { class: fields[id].rows ? "full" : null }, h("span", {}, labels[id]), fields[id])));
  const go = button("Submit", () => {}, { kind: "primary", type: "submit" });
  const form = h(
    "form",
    { class: "stack form", onsubmit: submit },
    grid(Object.keys(fields).filter((id) => !SELDOM.includes(id))),
    h("details", {}, h("summary", {}, "More about checkpoints"), grid(SELDOM)),
    trouble,
    h("footer", {}, button("Cancel", () => close()), go),
  );
  const close = open("Submit a job", form);
  fields.name.focus();

  async function submit(event) {
    event.preventDefault();
    go.disabled = true;
    const body = {
      name: fields.name.value.trim() || null,
      count: Number(fields.count.value),
      project: fields.project.value,
      locality: fields.locality.value,
      rank_order: fields.rank_order.value,
      policy: fields.policy.value,
      priority: Number(fields.priority.value),
      time_limit_s: fields.time_limit.value === "" ? null : 60 * Number(fields.time_limit.value),
      time_limit_action: fields.time_limit_action.value || null,
      restart: fields.restart.value,
      record: fields.record.value || null,
      checkpoint: checkpoint(fields),
      spares: Number(fields.spares.value.replace("?", "")),
      spares_needed: !fields.spares.value.endsWith("?"),
      on_loss: fields.on_loss.value,
      at_least: Number(fields.at_least.value),
      image: fields.image.value.trim() || null,
      cpu: fields.cpu.value === "" ? null : Number(fields.cpu.value),
      memory_bytes: whole(fields.memory, GIB),
      io_bps: whole(fields.io, MB),
      env: variables(fields.secrets.value),
      volumes: lines(fields.volumes).map(volume),
      command: lines(fields.command),
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

const lines = ({ value }) => value.split("\n").filter((line) => line !== "");

/** A volume as the command line writes it; the controller checks it. */
function volume(text) {
  const [name, path = "", mode] = text.trim().split(":");
  return { volume: name, path, read_only: mode === "ro" ? true : mode === "rw" ? false : null };
}

/** How checkpoints are kept, null without space for them; the controller checks it. */
function checkpoint(fields) {
  if (fields.checkpoint_size.value === "") return null;
  const [store, every] = fields.checkpoint_store.value.trim().split(":");
  return {
    complete: fields.checkpoint_rule.value,
    local: { where: fields.checkpoint_where.value, size_bytes: whole(fields.checkpoint_size, GIB) },
    copies: { scheme: fields.checkpoint_scheme.value || null, apart: fields.checkpoint_apart.value },
    replicas: fields.replicas.value,
    shared: store ? { store, ...(every === undefined ? {} : { every: Number(every) }) } : null,
  };
}

/** A limit of one container; the controller checks it. */
const limit = (name) => h("input", { name, type: "number", step: "any", placeholder: "no limit" });

/** The variables of lines VARIABLE=SECRET; the controller checks them. */
const variables = (text) => Object.fromEntries(
  text.split("\n").map((line) => line.trim()).filter((line) => line !== "").map((line) => {
    const [variable, ...name] = line.split("=");
    return [variable.trim(), { secret: name.join("=").trim() }];
  }),
);

/** A field's value in bytes, null when it is empty. */
const whole = ({ value }, unit) => (value === "" ? null : Math.round(unit * Number(value)));

const choice = (name, options) => h("select", { name }, Object.entries(options).map(([value, text]) => h("option", { value }, text)));
