// The frame around the views: navigation, status, keys; and state that views share.

import { get, part } from "./api.js";
import { closeAll, notice, open } from "./ui/dialog.js";
import { h, show } from "./ui/dom.js";
import { Looks } from "./ui/palette.js";
import { badge, emulatedBadge, icon } from "./ui/parts.js";
import { THEMES, nextTheme, onTheme } from "./ui/theme.js";
import { measurements } from "./measure/page.js";
import { engine } from "./views/engine.js";
import { events } from "./views/events.js";
import { job } from "./views/job.js";
import { jobs } from "./views/jobs.js";
import { objects } from "./views/objects.js";
import { plan } from "./views/plan.js";
import { switches } from "./views/switches.js";
import { topology } from "./views/topology.js";
import { usage } from "./views/usage.js";

const PAGES = [
  { id: "topology", label: "Topology", key: "t", view: topology },
  { id: "jobs", label: "Jobs", key: "j", view: (app, query, name) => (name ? job(app, query, name) : jobs(app)) },
  { id: "plan", label: "Plan", key: "p", view: plan },
  { id: "switches", label: "Switches", key: "s", view: switches },
  { id: "measurements", label: "Measure", key: "m", view: measurements },
  { id: "events", label: "Events", key: "e", view: events },
  { id: "objects", label: "Objects", key: "o", view: objects },
  { id: "usage", label: "Usage", key: "u", view: usage },
  { id: "engine", label: "Engine", key: "r", view: engine, only: (app) => app.data.site.engine && !app.mayNot("engine:read") },
];
const ROLLOUT_MS = 500;
/** Statuses after which a rollout is no longer asked for. */
const GONE = new Set([403, 404, 410]);
const TOPICS = ["lists", "sample", "events", "transaction", "measurement", "connection", "health"];
const CONNECTION = { live: ["live", "good"], polling: ["polling", "warn"], lost: ["controller away", "bad"], connecting: ["connecting", "quiet"] };

export class App {
  #root;
  #view = null;
  #page = null;
  #links = new Map();
  #status = h("span", { class: "status", role: "status" });
  #themeButton = h("button", { type: "button", class: "button icon-only", onclick: () => nextTheme() });
  #main = h("main", { id: "main", tabindex: "-1" });
  #ends = [];
  #leave;
  #chord = "";
  #over;
  #said = new Set();
  #asked = 0;
  #rollout = 0;

  constructor(root, data, who, { leave, expired, another }) {
    this.#root = root;
    this.#leave = leave;
    this.data = data;
    this.who = who;
    this.looks = new Looks();
    this.notice = notice;
    /** The plan that the topology shows as an overlay, null without one. */
    this.plan = null;
    this.planFor = null;
    /** The last plan that this page began to carry out in batches, null without one. */
    this.rollout = null;
    /** Homes that the user supposes, by job: endpoint to aggregator. */
    this.supposed = new Map();
    /** Id of the last transaction that this page started. */
    this.applied = null;
    this.#over = { expired, another };
  }

  /** The pages of this site for this user. */
  get #pages() {
    return PAGES.filter((page) => !page.only || page.only(this));
  }

  /** The running transaction, null when there is none. */
  get running() {
    return this.data.running;
  }

  /** The transaction to show: the one that this page started, else the running one. */
  get transaction() {
    const mine = this.data.transactions.get(this.applied);
    return mine && !mine.finished_at ? mine : (this.running ?? mine ?? null);
  }

  /** Follow a transaction that this page has just started, and show how it ended. */
  started(view) {
    if (!view) return;
    this.applied = view.id;
    this.data.follow(view);
    // The stream may report its end before the response arrives.
    const known = this.data.transactions.get(view.id);
    if (known?.finished_at) this.#tell("transaction", known);
  }

  /** Follow a plan that is carried out in batches until it ends. */
  rolling(view) {
    clearTimeout(this.#rollout);
    this.rollout = view;
    this.#tell("plan");
    if (!view.finished_at) this.#rollout = setTimeout(() => this.#ask(view), ROLLOUT_MS);
  }

  async #ask(view) {
    let seen = view;
    try {
      seen = await get(`/rollouts/${part(view.id)}`);
    } catch (problem) {
      if (GONE.has(problem.status)) seen = { ...view, state: "unknown", finished_at: view.started_at, result: problem.message };
    }
    // Another one may have been started, or the page left, meanwhile.
    if (this.rollout?.id === view.id) this.rolling(seen);
  }

  /** Why the user may not do something (a verb of /whoami), "" when they may. */
  mayNot(verb, project = null) {
    const { may, roles, projects } = this.who;
    if (!may.includes(verb)) return `your role (${roles.join(", ")}) does not allow this`;
    const everywhere = projects.includes("*") || roles.some((role) => role === "admin" || role === "operator");
    if (project !== null && !everywhere && !projects.includes(project)) return `it belongs to project ${project}`;
    return "";
  }

  /** Register a request for a plan; returns a function that tells whether it is the latest. */
  asking() {
    const mine = ++this.#asked;
    return () => mine === this.#asked;
  }

  /** Show a plan as an overlay; `job` is the job it was made for, null is all jobs. */
  setPlan(made, job = null) {
    this.plan = made;
    this.planFor = job;
    this.#tell("plan");
  }

  show() {
    const nav = h("nav", { class: "rail", "aria-label": "Views" }, this.#pages.map((page) => {
      const link = h("a", { href: `#/${page.id}`, title: `${page.label} (g ${page.key})` }, icon(page.id), h("span", {}, page.label));
      this.#links.set(page.id, link);
      return link;
    }));
    const emulated = this.data.health.emulated.length ? emulatedBadge() : "";
    show(this.#root, h("div", { class: "frame" },
      h("header", { class: "top" },
        h("a", { class: "brand", href: "#/topology" }, h("img", { src: "/console/icon.svg", alt: "", width: 26, height: 26 }), h("b", {}, "lightloom")),
        h("span", { class: "site" }, this.data.site.name), emulated, this.#status,
        h("span", { class: "spacer" }),
        h("span", { class: "who", title: `projects: ${this.who.projects.join(", ") || "all"}` }, `${this.who.name} · ${this.who.roles.join(", ")}`),
        h("button", { type: "button", class: "button icon-only", title: "Keys (?)", "aria-label": "Keys", onclick: () => this.help() }, icon("help")),
        this.#themeButton,
        this.who.token ? h("button", { type: "button", class: "button icon-only", title: "Sign out", "aria-label": "Sign out", onclick: this.#leave }, icon("exit")) : ""),
      nav,
      this.#main));
    for (const topic of TOPICS) this.#ends.push(this.data.on(topic, (about) => this.#tell(topic, about)));
    for (const [topic, f] of Object.entries(this.#over)) this.#ends.push(this.data.on(topic, f));
    this.#ends.push(onTheme(() => this.#tell("theme")));
    this.#listen(window, "hashchange", () => this.#route());
    this.#listen(document, "keydown", (event) => this.#key(event));
    this.#frameStatus();
    this.#route();
  }

  destroy() {
    clearTimeout(this.#rollout);
    this.rollout = null;
    this.#view?.destroy?.();
    this.#view = null;
    closeAll();
    for (const end of this.#ends) end();
    this.data.stop();
  }

  /** The current view. */
  get view() {
    return this.#view;
  }

  #listen(target, type, f) {
    target.addEventListener(type, f);
    this.#ends.push(() => target.removeEventListener(type, f));
  }

  #tell(topic, about) {
    if (topic === "transaction" && about.finished_at && about.id === this.applied && !this.#said.has(about.id)) {
      this.#said.add(about.id);
      notice(`${about.id} ${about.state.replaceAll("_", " ")}`, about.state === "committed" ? "good" : "bad");
    }
    if (topic !== "sample" && topic !== "events") this.#frameStatus();
    this.#view?.update(topic, about);
  }

  #frameStatus() {
    const { connection, health, epoch } = this.data;
    const [word, tone] = CONNECTION[connection];
    show(this.#status, badge(word, tone), health.status === "ok" ? "" : badge(health.status), h("span", { class: "muted wide-only" }, `epoch ${epoch}`));
    const current = THEMES[localStorage.getItem("theme") ?? "auto"];
    this.#themeButton.title = `Theme: ${current.label}`;
    this.#themeButton.setAttribute("aria-label", `Theme: ${current.label}`);
    show(this.#themeButton, icon(current.icon));
  }

  #route() {
    const [path, query = ""] = location.hash.slice(2).split("?");
    const [id, ...rest] = path.split("/").map(decoded);
    const page = this.#pages.find((one) => one.id === id) ?? PAGES[0];
    closeAll();
    // A view that can show the new address keeps its input, scroll position and focus.
    if (page === this.#page && this.#view?.moved?.(...rest)) return;
    this.#page = page;
    this.#view?.destroy?.();
    this.#view = page.view(this, new URLSearchParams(query), ...rest);
    for (const [name, link] of this.#links) {
      if (name === page.id) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    document.title = `${this.#view.title} · ${this.data.site.name} · lightloom`;
    show(this.#main, this.#view.element);
    this.data.want(this.#view.lists);
    this.#view.mounted();
  }

  #key(event) {
    if (document.querySelector("dialog[open]")) return;
    const typing = event.target.closest("input, textarea, select");
    if (event.key === "Escape" && event.target.closest("input")) event.target.blur();
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const chord = this.#chord;
    this.#chord = "";
    const page = chord === "g" && this.#pages.find((one) => one.key === event.key);
    const own = this.#view?.keys?.[event.key];
    if (page) location.hash = `#/${page.id}`;
    else if (event.key === "g") this.#chord = "g";
    else if (event.key === "/") document.getElementById("search")?.focus();
    else if (event.key === "?") this.help();
    else if (event.key === "d") nextTheme();
    else if (own) own();
    else return;
    event.preventDefault();
  }

  help() {
    const rows = [
      ...this.#pages.map((page) => [`g ${page.key}`, page.label]),
      ["/", "Filter or find"], ["n", "Submit a job (Jobs), start a measurement (Measure)"], ["d", "Theme: light, dark, system"],
      ["arrows", "Move in the topology"], ["drag", "A GPU onto an aggregator: move its light"], ["Enter", "Open the selection"], ["+ − 0", "Zoom in, out, show everything"], ["Esc", "Close, clear"], ["?", "These keys"],
    ];
    open("Keys", h("dl", { class: "keys" }, rows.map(([key, does]) => [h("dt", {}, key.split(" ").map((one) => h("kbd", {}, one))), h("dd", {}, does)])));
  }
}

/** A decoded part of the address; unchanged if it is not valid. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
