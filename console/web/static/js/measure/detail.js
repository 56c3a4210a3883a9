// One measurement: how far it is, whether it is valid, and its figures.

import { get, part, post, remove } from "../api.js";
import { attempt, confirm } from "../ui/dialog.js";
import { h, keep, renew, show } from "../ui/dom.js";
import { age, moment } from "../ui/format.js";
import { badge, bar, button, emulatedBadge, facts, jobLink, problemBox, tile } from "../ui/parts.js";
import { Poll } from "../ui/poll.js";
import { collectives } from "./collectives.js";
import { compare } from "./compare.js";
import { fieldsPanel, rowsTable } from "./generic.js";
import { links } from "./links.js";
import { progressText, unfinished, validBadge } from "./list.js";
import { input } from "./loading.js";
import { scaling } from "./scaling.js";
import { storage } from "./storage.js";
import { texts } from "./value.js";

/** While the stream tells what changes, and while it does not. */
const LIVE_MS = 15_000;
const BUSY_MS = 2000;
const MOST_RUNS = 100;
/** What a type shows: `(app, result)` returns what `shownBy` does, and `lists` if it shows lists of the site. */
const TYPES = { links, collectives, scaling, storage, input, compare };

export function detail(app, id) {
  let m = null;
  let shown = null;
  const title = h("div", { class: "title" });
  const actions = h("div", { class: "actions" });
  const trouble = h("div", {});
  const loud = h("div", {});
  const stats = h("div", { class: "stats" });
  const how = h("div", {});
  const figures = h("div", { class: "page-part" });
  const element = h("section", { class: "view" },
    h("header", { class: "toolbar" }, title, actions),
    h("div", { class: "page" }, trouble, loud, stats, figures, how));

  const poll = new Poll({
    read: () => get(`/measurements/${part(id)}`),
    take: (found) => {
      m = found;
      renew(trouble, "");
      render();
    },
    failed: (problem) => {
      renew(trouble, problemBox(problem));
      if (!m) renew(title, h("a", { href: "#/measurements", class: "back" }, "Measurements"), h("h1", {}, id));
    },
    wait: () => (m && !unfinished(m) ? null : app.data.connection === "live" ? LIVE_MS : BUSY_MS),
  });

  function render() {
    const result = m.result;
    renew(title, h("a", { href: "#/measurements", class: "back" }, "Measurements"), h("h1", {}, `${m.id} ${m.type}`), badge(m.state), validBadge(m), result?.source === "emulated" ? emulatedBadge() : "");
    renew(loud, m.valid === false ? invalid(m) : m.reason && m.state !== "completed" ? h("p", { class: "problem", role: "alert" }, m.reason) : "");
    renew(stats,
      m.progress && unfinished(m) ? tile("Progress", bar(m.progress.total ? m.progress.done / m.progress.total : null, progressText(m))) : "",
      tile("Endpoints", String(m.endpoints.length), m.endpoints.slice(0, 6).join(" ") + (m.endpoints.length > 6 ? " …" : "")),
      tile("Submitted", moment(m.submitted_at), m.user ? `by ${m.user}` : ""),
      tile("Took", m.started_at ? age((m.finished_at ?? Date.now() / 1000) - m.started_at) : "–", m.runs.length ? `${m.runs.length} ${m.runs.length === 1 ? "job" : "jobs"}` : ""),
      result ? tile("Tool", result.tool.name, result.tool.version) : "");
    showActions();
    renew(how, howItRan());
    if (result && !shown) showFigures(result);
  }

  function showFigures(result) {
    shown = TYPES[result.type]?.(app, result) ?? { parts: [], redraw() {}, destroy() {} };
    const own = shown.own ?? [];
    show(figures, shown.parts,
      own.includes("summary") ? "" : fieldsPanel("Summary", result.summary),
      ["rows", "groups", "anomalies", "fits"].filter((name) => !own.includes(name)).map((name) => rowsTable(name[0].toUpperCase() + name.slice(1), result[name])));
    // A chart needs its width, which it has once it is part of the page.
    shown.redraw();
  }

  function howItRan() {
    const { result } = m;
    const env = result?.environment;
    const runs = m.runs.slice(0, MOST_RUNS).map((run) => h("p", { class: "line" }, run.job ? jobLink(app.looks, run.job) : h("span", { class: "muted" }, "not submitted yet"), ` ${[run.label, run.endpoints.join(" ")].filter(Boolean).join(" · ")}`));
    return h("div", { class: "columns" },
      h("section", {}, h("h2", {}, "Jobs"), h("div", { class: "panel" }, runs.length ? runs : h("p", { class: "muted" }, "none"), m.runs.length > MOST_RUNS ? h("p", { class: "muted" }, `and ${m.runs.length - MOST_RUNS} more`) : "")),
      result ? h("section", {}, h("h2", {}, "Where it ran"), h("div", { class: "panel" }, facts([
        ["project", m.project],
        ["seed", String(result.seed)],
        ["fabric epoch", String(result.fabric_epoch)],
        env.image && ["image", h("code", {}, env.image)],
        env.kernel && ["kernel", env.kernel],
        ["MTU", env.mtu ?? "–"],
        ["cores", env.cores ?? "–"],
        ["load", env.load_1m ?? "–"],
        ["others on its links", env.others_on_links_bps === null ? "–" : `${Math.round(env.others_on_links_bps)} bit/s`],
      ]))) : "",
      result ? fieldsPanel("Settings", result.settings) : "");
  }

  function showActions() {
    const not = app.mayNot("measurements:make", m.project);
    const open = unfinished(m);
    keep(actions, [open, not, Boolean(m.result)], () => [
      m.result ? button("JSON", save, { title: "Save the result as JSON" }) : "",
      open ? button("Cancel", () => confirm(`Cancel ${id}?`, h("p", {}, "Its jobs are cancelled, and endpoints that it moved are put back."), "Cancel the measurement", () => post(`/measurements/${part(id)}/cancel`).then(() => poll.now()), { kind: "danger" }), { kind: "danger", why: not }) : "",
      open ? "" : button("Remove", () => confirm(`Remove ${id}?`, h("p", {}, "Its result is deleted. This cannot be undone."), "Remove the measurement", () => remove(`/measurements/${part(id)}`).then(() => (location.hash = "#/measurements")), { kind: "danger" }), { kind: "danger", why: not }),
    ]);
  }

  function save() {
    return attempt(async () => {
      const file = URL.createObjectURL(new Blob([JSON.stringify(m.result, null, 1)], { type: "application/json" }));
      h("a", { href: file, download: `${id}.json` }).click();
      URL.revokeObjectURL(file);
    });
  }

  return {
    title: id,
    element,
    lists: ["endpoints", "power"],
    mounted: () => poll.now(),
    update: (topic, about) => {
      if ((topic === "measurement" && (!about || about === id)) || (topic === "connection" && m && unfinished(m))) poll.soon();
      if (topic === "theme") shown?.redraw();
      if (topic === "lists") shown?.lists?.();
    },
    destroy: () => {
      poll.stop();
      shown?.destroy();
    },
  };
}

function invalid(m) {
  const why = texts(m.invalid_because);
  return h("div", { class: "problem", role: "alert" },
    h("strong", {}, "This result is not valid: do not rely on its figures."),
    h("ul", {}, why.slice(0, 20).map((one) => h("li", {}, one))),
    why.length > 20 ? h("span", {}, `and ${why.length - 20} more reasons`) : "");
}
