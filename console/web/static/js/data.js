// All data of the page: from the controller's event stream or, where a proxy blocks the stream, by
// polling. Views see no difference.

import { get, stream, whole } from "./api.js";
import { EventLog } from "./eventlog.js";
import { Transactions } from "./transactions.js";

const LISTS = ["jobs", "endpoints", "aggregators", "switches", "circuits", "containers", "nodes", "volumes", "quarantine", "power"];
const EVERYWHERE = ["jobs", "endpoints", "aggregators", "circuits", "switches", "quarantine", "containers"];
/** The lists that show objects of a kind. */
const AFFECTED = {
  job: ["jobs", "endpoints", "aggregators", "containers", "nodes"],
  endpoint: ["endpoints", "aggregators", "circuits", "jobs"],
  circuit: ["circuits", "endpoints", "aggregators", "switches"],
  aggregator: ["aggregators"],
  switch: ["switches", "circuits", "power"],
  container: ["containers", "jobs"],
  node: ["nodes", "containers"],
  quarantine: ["quarantine", "endpoints", "aggregators"],
  // Its views read it themselves.
  measurement: [],
};
const BIG_SITE = 512;
const GATHER_MS = 120;
const RETRY_MS = 2000;
const SPARK_S = 120;
const REOPEN_MS = 30_000;
const RECHECK_MS = 15_000;

export class Data {
  #listeners = new Map();
  #wanted = new Set();
  #stale = new Set(LISTS);
  #epochs = new Map();
  #timers = new Map();
  #source = null;
  #reading = false;
  #hurry = false;
  #looking = false;
  #checking = false;
  #again = false;
  #era = 0;
  #stopped = false;
  #log;
  #transactions;

  constructor() {
    const failed = (problem) => this.#refused(problem);
    this.#log = new EventLog({ fresh: (events) => this.#tell("events", events), failed });
    this.#transactions = new Transactions({
      failed,
      step: (view, news) => {
        this.#tell("transaction", view);
        if (news) this.touch();
      },
    });
    this.site = null;
    this.health = null;
    this.lists = Object.fromEntries(LISTS.map((kind) => [kind, []]));
    this.known = new Set();
    this.live = { time: 0, jobs: new Map(), endpoints: new Map(), links: new Map() };
    this.sparks = new Map();
    this.connection = "connecting";
    this.epoch = 0;
  }

  /** Events, the newest last. */
  get events() {
    return this.#log.items;
  }

  /** Transactions by id. */
  get transactions() {
    return this.#transactions.views;
  }

  /** The running transaction, null when there is none. */
  get running() {
    return this.#transactions.running;
  }

  /** Call `f` when `topic` changes; returns a function that ends that. */
  on(topic, f) {
    if (!this.#listeners.has(topic)) this.#listeners.set(topic, new Set());
    this.#listeners.get(topic).add(f);
    return () => this.#listeners.get(topic).delete(f);
  }

  #tell(topic, ...about) {
    for (const f of [...(this.#listeners.get(topic) ?? [])]) f(...about);
  }

  get big() {
    return (this.site?.endpoints.length ?? 0) > BIG_SITE;
  }

  /** Read the data that every view needs, then keep it up to date until `stop`. */
  async start() {
    [this.site, this.health] = await Promise.all([get("/site"), get("/health")]);
    if (this.#stopped) return;
    this.#seen(this.health.epoch);
    for (const kind of ["endpoints", "aggregators", "switches"]) {
      this.#put(kind, this.site[kind], this.health.epoch);
      this.#stale.delete(kind);
    }
    this.#log.read();
    this.#open();
    this.#every("recheck", RECHECK_MS, () => this.#recheck());
  }

  /** Stop all requests and notifications, and ignore responses that are still to come. */
  stop() {
    this.#stopped = true;
    this.#source?.close();
    this.#source = null;
    for (const timer of this.#timers.values()) clearInterval(timer);
    this.#timers.clear();
    this.#listeners.clear();
    this.#log.stop();
    this.#transactions.stop();
  }

  /** Name the lists that the current view shows; only those are kept up to date. */
  want(kinds) {
    this.#wanted = new Set(kinds);
    this.#hurry = true;
    this.#refresh(0);
  }

  /** One object by kind and name, undefined when there is none. */
  find(kind, name) {
    return this.lists[kind].find((item) => nameOf(kind, item) === name);
  }

  /** Something changed: read the lists that show it again, once for several calls. */
  touch(kinds = EVERYWHERE) {
    for (const kind of kinds) this.#stale.add(kind);
    this.#refresh(GATHER_MS);
  }

  /** Follow a transaction that has just begun until it ends; each step is a "transaction" topic. */
  follow(view) {
    if (view) this.#transactions.follow(view.id, view);
  }

  // --- the stream ---------------------------------------------------------------------------

  #open() {
    const source = stream();
    this.#source = source;
    const on = (type, f) =>
      source.addEventListener(type, (message) => f(JSON.parse(message.data)));
    source.onopen = () => {
      this.#stopPolling();
      const first = this.connection === "connecting";
      this.#connected("live");
      // The lists of a big site were read a moment ago; the epoch shows whether they are current.
      if (!this.big || !first) this.touch();
      if (!first) this.#missed();
    };
    source.onerror = () => {
      // The browser reconnects by itself, unless it was refused.
      if (source.readyState === EventSource.CLOSED) this.#timers.set("reopen", setTimeout(() => this.#open(), REOPEN_MS));
      this.#poll();
    };
    on("sample", (sample) => this.#sample(sample));
    on("event", (event) => this.#log.told(event));
    on("changed", (change) => {
      this.#seen(change.epoch ?? 0);
      this.touch(AFFECTED[change.kind]);
      if (change.kind === "measurement") this.#tell("measurement", change.name);
    });
    on("transaction", (view) => this.#transactions.told(view));
    on("resync", () => {
      this.touch(LISTS);
      this.#missed();
    });
  }

  /** The stream had a gap: request what it does not send again. */
  #missed() {
    this.#log.read();
    this.#transactions.again();
    this.#tell("measurement", "");
    this.#recheck();
  }

  // --- polling ------------------------------------------------------------------------------

  #poll() {
    if (this.#timers.has("poll")) return;
    this.#every("poll", this.big ? 5000 : 1000, () => this.#look());
    this.#look();
  }

  #stopPolling() {
    for (const name of ["poll", "reopen"]) {
      clearInterval(this.#timers.get(name));
      this.#timers.delete(name);
    }
  }

  async #look() {
    if (this.#looking) return;
    this.#looking = true;
    const era = this.#era;
    try {
      const top = await get("/top");
      // In the meantime the stream may be back, or another controller may have started.
      if (!this.#timers.has("poll") || era !== this.#era) return;
      const links = this.lists.aggregators.flatMap((a) =>
        a.ports.map((p) => ({ device: a.name, port: String(p.port), rx_bps: p.rx_bps, tx_bps: p.tx_bps })));
      this.#sample({ time: top.time, jobs: top.jobs, containers: top.containers, links });
      this.#seen(top.epoch);
      this.#connected("polling");
      this.touch(this.big ? ["jobs", ...this.#behind(top.epoch)] : [...this.#wanted]);
      for (const job of this.lists.jobs) if (job.transaction) this.#transactions.follow(job.transaction);
      await this.#log.read();
    } catch (problem) {
      this.#failed(problem);
    } finally {
      this.#looking = false;
    }
  }

  // --- incoming data ------------------------------------------------------------------------

  #failed(problem) {
    if (problem.status === 401) this.#refused(problem);
    else if (!this.#stopped) this.#connected("lost");
  }

  /** Only the end of the session concerns the whole page. */
  #refused(problem) {
    if (problem.status === 401) this.#tell("expired");
  }

  #seen(epoch) {
    this.epoch = Math.max(this.epoch, epoch);
  }

  #connected(state) {
    if (this.connection === state) return;
    this.connection = state;
    this.#tell("connection");
  }

  #sample(sample) {
    const { live, sparks } = this;
    if (sample.time === live.time) return;
    live.time = sample.time;
    live.jobs = new Map(sample.jobs.map((row) => [row.name, row]));
    live.endpoints = new Map(sample.containers.map((row) => [row.endpoint, row]));
    live.links = new Map(sample.links.map((row) => [`${row.device}/${row.port}`, row]));
    for (const job of sparks.keys()) if (!live.jobs.has(job)) sparks.delete(job);
    for (const [job, row] of live.jobs) {
      const kept = sparks.get(job) ?? [];
      kept.push(row.rx_bps ?? 0);
      if (kept.length > SPARK_S) kept.shift();
      sparks.set(job, kept);
    }
    this.#tell("sample", sample);
  }

  // --- lists --------------------------------------------------------------------------------

  /** Look for missed changes. One request at a time: an old response must not undo a newer one. */
  async #recheck() {
    this.#again = true;
    if (this.#checking) return;
    this.#checking = true;
    try {
      while (this.#again && !this.#stopped) {
        this.#again = false;
        await this.#check().catch((problem) => this.#failed(problem));
      }
    } finally {
      this.#checking = false;
    }
  }

  async #check() {
    const health = await get("/health");
    if (this.#stopped) return;
    // `this.health` changes only after everything is read again, so that a failure is retried.
    if (health.started_at !== this.health.started_at) await this.#restarted();
    if (this.#stopped) return;
    this.health = health;
    if (this.connection === "lost" && this.#source?.readyState === EventSource.OPEN) this.#connected("live");
    this.#seen(health.epoch);
    this.#tell("health");
    this.touch(this.big ? this.#behind(health.epoch) : [...this.#wanted]);
  }

  /** Another controller answers: it may have other events than the previous one, or another site. */
  async #restarted() {
    const site = await get("/site");
    if (this.#stopped) return;
    if (cabling(site) !== cabling(this.site)) {
      this.#tell("another");
      return;
    }
    this.#era += 1;
    this.epoch = 0;
    this.#transactions.clear();
    this.#log.clear();
    this.#log.read();
    this.touch(LISTS);
  }

  /** Visible lists that are not of this epoch. */
  #behind(epoch) {
    return [...this.#wanted].filter((kind) => this.#epochs.get(kind) !== epoch);
  }

  #refresh(delay) {
    if (this.#stopped || this.#reading) return;
    if (this.#timers.has("refresh")) {
      if (!this.#hurry) return;
      clearTimeout(this.#timers.get("refresh"));
    }
    this.#timers.set("refresh", setTimeout(() => this.#readStale(), this.#hurry ? 0 : delay));
  }

  async #readStale() {
    const kinds = [...this.#wanted].filter((kind) => this.#stale.has(kind));
    // Before the request: a change while the response is on its way makes them stale again.
    for (const kind of kinds) this.#stale.delete(kind);
    this.#timers.delete("refresh");
    this.#hurry = false;
    this.#reading = true;
    const [started, era] = [performance.now(), this.#era];
    const read = await Promise.allSettled(kinds.map((kind) => whole(`/${kind}`)));
    this.#reading = false;
    if (this.#stopped) return;
    if (era !== this.#era) {
      // The previous controller has answered: its epochs are greater than those to come.
      this.#refresh(GATHER_MS);
      return;
    }
    const changed = [];
    let failed = false;
    read.forEach((result, i) => {
      if (result.status === "rejected") {
        failed = true;
        this.#stale.add(kinds[i]);
        this.#refused(result.reason);
        return;
      }
      this.#put(kinds[i], result.value.items, result.value.epoch);
      this.#seen(result.value.epoch);
      changed.push(kinds[i]);
    });
    // The lists of a big site take long to read: leave time for other work.
    const pause = Math.max(failed ? RETRY_MS : GATHER_MS, 3 * (performance.now() - started));
    if ([...this.#wanted].some((kind) => this.#stale.has(kind))) this.#refresh(pause);
    if (changed.length) this.#tell("lists", changed);
  }

  #put(kind, items, epoch) {
    this.lists[kind] = items;
    this.#epochs.set(kind, epoch);
    this.known.add(kind);
  }

  #every(name, ms, f) {
    clearInterval(this.#timers.get(name));
    this.#timers.set(name, setInterval(f, ms));
  }
}

/** The part of a site that changes only with its cabling. */
function cabling(site) {
  const ports = site.aggregators.map((a) => [a.name, a.ports.map((p) => [p.port, p.far])]);
  return JSON.stringify([site.name, site.endpoints.map((e) => [e.name, e.fiber]), ports, site.switches.map((s) => s.name), site.uplinks]);
}

/** The name of an object: the same id as in the command line. */
export function nameOf(kind, item) {
  if (kind === "circuits") return item.name || `${item.switch}/${item.a}`;
  if (kind === "events") return String(item.id);
  if (kind === "quarantine") return item.object;
  if (kind === "volumes") return `${item.server}/${item.name}`;
  return item.name;
}
