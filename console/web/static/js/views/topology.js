// Topology: servers, endpoints, optical switches with their circuits, aggregators. Jobs have
// colours, links show their load, moving circuits are animated, a plan is an overlay. Big sites open
// collapsed.

import { detailElements } from "../topology/elements.js";
import { detailPositions, shapeOf, tilePositions, uplinkRoutes } from "../topology/layout.js";
import { DETAIL_LIMIT, detail, lightOf, tiles, uplinkLoads } from "../topology/model.js";
import { Scene } from "../topology/scene.js";
import { tileElements } from "../topology/tileElements.js";
import { h, keep } from "../ui/dom.js";
import { theme } from "../ui/palette.js";
import { badge, button, icon, jobMark } from "../ui/parts.js";
import { askMove, whyNot, whyNotTo } from "./attach.js";
import { Facts } from "./facts.js";

const TALL_BELOW = 0.95;
const NARROW_PX = 560;
const RATES_UP_TO = 16;
const LEGEND_JOBS = 12;
const EVERYTHING_UP_TO = 512;
const SPREAD_LINES = 24;
/** New figures are drawn only so often that drawing takes at most 1/SHARE of the time. */
const SHARE = 8;

export function topology(app, params) {
  const { data } = app;
  const size = data.site.endpoints.length;
  let mode = params.get("by") ?? (params.get("focus") || size <= DETAIL_LIMIT ? "detail" : "aggregator");
  let focus = params.get("focus");
  let job = params.get("job");
  let scene = null;
  let shape = "";
  let selected = null;
  let drawn = { at: 0, cost: 0 };

  const canvas = h("div", { class: "canvas", tabindex: "0", role: "application", "aria-label": "Topology. Arrow keys move, Enter opens, plus and minus zoom; an endpoint can be dragged onto an aggregator." });
  const facts = new Facts(app);
  const heading = h("h2", {});
  const drawer = h("aside", { class: "drawer", hidden: true, "aria-live": "polite" },
    h("header", {}, heading, h("button", { type: "button", class: "button plain", "aria-label": "Close", onclick: () => scene.clear() }, "✕")), facts.element);
  const legend = h("div", { class: "legend", role: "group", "aria-label": "Jobs" });
  const modes = h("div", { class: "segments", role: "group", "aria-label": "Level of detail" });
  const banner = h("div", { class: "banner", hidden: true, role: "status" });
  const search = h("input", { type: "search", id: "search", placeholder: "Find gpu3, as1, red …", "aria-label": "Find an object", onkeydown: (e) => e.key === "Enter" && find(e.target.value) });
  const empty = h("p", { class: "empty", hidden: true }, "Nothing to draw here.");
  const tools = h(
    "div",
    { class: "zoom", role: "group", "aria-label": "Zoom" },
    tool("plus", "Zoom in (+)", () => scene.zoom(1.25)),
    tool("minus", "Zoom out (−)", () => scene.zoom(0.8)),
    tool("fit", "Show everything (0)", () => scene.fit()),
  );
  const element = h(
    "section",
    { class: "view topology" },
    h("header", { class: "toolbar" }, h("h1", {}, "Topology"), modes, search, tools),
    banner,
    h("div", { class: "stage" }, canvas, empty, drawer),
    legend,
  );

  function tool(name, title, act) {
    return h("button", { type: "button", class: "button icon-only", title, "aria-label": title, onclick: act }, icon(name));
  }

  // --- drawing ---------------------------------------------------------------------------------

  function wanted() {
    if (!focus) return () => true;
    const [kind, name] = [focus.slice(0, focus.indexOf("/")), focus.slice(focus.indexOf("/") + 1)];
    const target = new Set((app.plan?.moves ?? []).filter((m) => m.to === name).map((m) => m.endpoint));
    if (kind === "aggregator") return (e) => e.home === name || target.has(e.name);
    if (kind === "server") return (e) => e.server === name;
    if (kind === "job") return (e) => e.job === name;
    return (e) => e.name === name;
  }

  function lists() {
    return mode === "detail"
      ? ["jobs", "endpoints", "aggregators", "circuits", "switches", "nodes"]
      : ["jobs", "endpoints", "aggregators", "switches"];
  }

  function elements(tall) {
    const colours = theme();
    const aspect = canvas.clientWidth / Math.max(1, canvas.clientHeight);
    if (mode !== "detail") {
      const found = tiles(data.lists, mode);
      const loads = uplinkLoads(data.site.uplinks, data.live.links);
      const { switches, endpoints } = data.lists;
      const of = selected?.id.startsWith("tile/") ? selected.name : null;
      return tileElements(found, {
        by: mode,
        places: tilePositions(found, switches, aspect),
        looks: app.looks,
        theme: colours,
        loads,
        jobs: spreadJobs(of),
        switches,
        light: { of: job ? null : of, counts: of && !job ? lightOf(endpoints, mode, of) : new Map() },
      });
    }
    const whole = data.site.endpoints.length <= DETAIL_LIMIT;
    const model = detail(data.lists, { keep: wanted(), plan: app.plan, uplinks: focus && !whole ? [] : data.site.uplinks });
    const shapeName = shapeOf(model.longest, tall);
    const places = detailPositions(model, shapeName, aspect);
    return detailElements(model, {
      places,
      routes: uplinkRoutes(model, places, shapeName),
      tall,
      dense: shapeName === "dense",
      looks: app.looks,
      theme: colours,
      links: data.live.links,
      rows: data.live.endpoints,
      access_bps: data.site.access_bps,
      plan: app.plan,
      running: app.running,
      rates: size <= RATES_UP_TO && !tall,
      nodes: new Map(data.lists.nodes.map((n) => [n.name, n])),
      switchesUp: new Map(data.lists.switches.map((s) => [s.name, s.connected])),
    });
  }

  /** Jobs to draw lines for: the one pressed in the legend, else those of the selected tile. */
  function spreadJobs(of) {
    if (job) return data.lists.jobs.filter((j) => j.name === job);
    return data.lists.jobs.filter((j) => of && j.excess_span > 0 && of in j.spread).slice(0, SPREAD_LINES);
  }

  function draw() {
    if (!scene) return;
    const began = performance.now();
    const { clientWidth: width, clientHeight: height } = canvas;
    const tall = width < NARROW_PX || width < height * TALL_BELOW;
    const found = elements(tall);
    const now = `${mode} ${focus} ${tall} ${[...found.values()].filter((e) => e.group === "nodes").length}`;
    scene.draw(found);
    scene.highlight(job);
    empty.hidden = found.size > 0;
    if (shape !== now) scene.fit();
    shape = now;
    drawn = { at: performance.now(), cost: performance.now() - began };
  }

  // --- controls -------------------------------------------------------------------------------

  function head() {
    const choices = [["aggregator", "By aggregator"], ["server", "By server"]];
    if (size <= EVERYTHING_UP_TO || focus) choices.unshift(["detail", focus ? "Detail" : "Everything"]);
    keep(modes, [mode, focus], () => choices.map(([id, label]) =>
      h("button", { type: "button", class: "segment", "aria-pressed": String(mode === id), onclick: () => change(id) }, label)));
    const running = app.running;
    const lines = [];
    if (focus) lines.push(h("span", {}, "Only ", h("code", {}, focus)), button("Show the whole site", () => go({ focus: null, mode: null })));
    if (running) lines.push(badge(running.phase, "busy"), h("span", {}, `${running.id}: moving ${running.moves.length} endpoint${running.moves.length === 1 ? "" : "s"}`));
    else if (app.plan?.moves.length) {
      lines.push(badge("plan"), h("span", {}, `${app.plan.circuits.break.length} circuits to break, ${app.plan.circuits.make.length} to make; nothing has changed yet`),
        h("a", { class: "button", href: "#/plan" }, "Review"), button("Hide", () => app.setPlan(null)));
    }
    banner.hidden = !lines.length;
    keep(banner, [focus, running?.id, running?.phase, app.plan?.id], () => lines);
  }

  function chips() {
    const shownJobs = new Set(focus ? data.lists.endpoints.filter(wanted()).map((e) => e.job) : []);
    const holding = data.lists.jobs
      .filter((j) => j.endpoints.length && !j.finished_at && (!focus || shownJobs.has(j.name)))
      .sort((one, other) => (mode === "detail" ? 0 : other.excess_span - one.excess_span));
    keep(legend, [mode, focus, job, Boolean(app.plan), holding.map((j) => [j.name, j.span])], () => [
      holding.slice(0, LEGEND_JOBS).map((j) =>
        h("button", { type: "button", class: "chip", "aria-pressed": String(job === j.name), title: `${j.count} endpoints under ${j.span} aggregators; highlight`, onclick: () => highlight(job === j.name ? null : j.name) }, jobMark(app.looks, j.name), j.name)),
      holding.length > LEGEND_JOBS ? h("a", { href: "#/jobs" }, `${holding.length - LEGEND_JOBS} more`) : "",
      mode === "detail"
        ? h("span", { class: "key" }, h("i", { class: "line thin" }), "idle", h("i", { class: "line thick" }), "loaded", app.plan ? [h("i", { class: "line broken" }), "to break", h("i", { class: "line made" }), "to make"] : "")
        : h("span", { class: "key" }, h("i", { class: "ring" }), "share of each job", h("i", { class: "line warm" }), "uplink ≥ 50 %", h("i", { class: "line hot" }), "≥ 85 %"),
    ]);
  }

  function onSelect(about) {
    if (!scene) return;
    selected = about;
    if (mode !== "detail") draw();
    drawerShow(about);
  }

  function drawerShow(about) {
    drawer.hidden = !about;
    if (!about) return;
    heading.textContent = about.name;
    facts.show(about.kind, about.name);
  }

  function change(to) {
    go({ mode: to, focus: null });
  }

  /** The address holds the focus, so that it can be bookmarked and shared. */
  function go({ focus: about = focus, mode: by = mode }) {
    const query = new URLSearchParams();
    if (about) query.set("focus", about);
    if (by && !about) query.set("by", by);
    location.hash = `#/topology${query.size ? `?${query}` : ""}`;
  }

  function highlight(name) {
    job = name;
    draw();
    chips();
  }

  function opened(about) {
    if (mode === "detail" || !about) return;
    go({ focus: `${about.kind === "nodes" ? "server" : "aggregator"}/${about.name}` });
  }

  function find(text) {
    const name = text.trim().split("/").at(-1);
    if (!name) return;
    const kinds = ["endpoint", "aggregator", "switch", "server", "tile"];
    if (kinds.some((kind) => scene.select(`${kind}/${name}`))) return;
    if (data.lists.jobs.some((j) => j.name === name)) highlight(name);
    else if (data.lists.endpoints.some((e) => e.name === name)) go({ focus: `endpoint/${name}` });
    else app.notice(`nothing is named ${name}`);
  }

  const dragging = {
    may: (name) => whyNot(app, data.find("endpoints", name)) === "",
    whyNot: (name, a) => whyNotTo(data.find("endpoints", name), data.find("aggregators", a)),
    drop(name, a) {
      const why = dragging.whyNot(name, a);
      if (why) app.notice(why);
      else askMove(app, name, a);
    },
  };

  const KEYS = {
    ArrowLeft: () => scene.step({ x: -1, y: 0 }),
    ArrowRight: () => scene.step({ x: 1, y: 0 }),
    ArrowUp: () => scene.step({ x: 0, y: -1 }),
    ArrowDown: () => scene.step({ x: 0, y: 1 }),
    Enter: () => opened(scene.selected),
    Escape: () => scene.clear(),
    "+": () => scene.zoom(1.25),
    "-": () => scene.zoom(0.8),
    0: () => scene.fit(),
  };
  canvas.addEventListener("keydown", (event) => {
    const act = KEYS[event.key];
    if (!act || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    act();
  });
  const resized = new ResizeObserver(() => {
    shape = "";
    draw();
  });

  return {
    title: "Topology",
    element,
    lists: lists(),
    /** The drawing, for tests and benchmarks. */
    get scene() {
      return scene;
    },
    mounted() {
      scene = new Scene(canvas, theme(), { onSelect, onOpen: opened, drag: dragging, big: size > DETAIL_LIMIT });
      resized.observe(canvas);
      head();
      chips();
      draw();
    },
    update(topic) {
      if (topic === "theme") scene.restyle(theme());
      if (topic === "events" || topic === "health") return;
      if (topic === "sample" && performance.now() - drawn.at < SHARE * drawn.cost) return;
      if (topic !== "sample") {
        head();
        chips();
      }
      draw();
      if (!drawer.hidden) drawerShow(scene.selected);
    },
    destroy() {
      resized.disconnect();
      scene?.destroy();
      scene = null;
    },
  };
}
