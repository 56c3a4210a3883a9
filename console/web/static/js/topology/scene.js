// Draws elements with Cytoscape on a canvas. Elements that exist already change in place, so that
// zoom and selection stay.

import cytoscape from "../../vendor/cytoscape.esm.min.mjs";
import { Drag } from "./drag.js";
import { sheet } from "./style.js";

const MARCH_PX_PER_S = 32;
const FRAME_MS = 33;
const ROOM_PX = 26;

export class Scene {
  #cy;
  #frame = 0;
  #drag;
  #still = matchMedia("(prefers-reduced-motion: reduce)");

  /**
   * Calls `onSelect(data | null)` and `onOpen(data)` with an element's data. `big` is for many
   * elements; `drag` as in drag.js.
   */
  constructor(container, theme, { onSelect, onOpen, drag, big = false }) {
    this.#cy = cytoscape({
      container,
      style: sheet(theme),
      layout: { name: "preset" },
      autoungrabify: true,
      boxSelectionEnabled: false,
      selectionType: "single",
      minZoom: 0.01,
      maxZoom: 3,
      pixelRatio: "auto",
      hideEdgesOnViewport: false,
      // While the user pans or zooms a big drawing, a bitmap of it moves.
      textureOnViewport: big,
    });
    // A handler may draw, which must not happen inside Cytoscape's event.
    this.#cy.on("select unselect", () => queueMicrotask(() => onSelect(this.selected)));
    this.#drag = new Drag(this.#cy, drag);
    this.#cy.on("dbltap", "node", (event) => onOpen(event.target.data()));
  }

  /** Remove the drawing. */
  destroy() {
    cancelAnimationFrame(this.#frame);
    this.#cy.destroy();
  }

  get empty() {
    return this.#cy.elements().empty();
  }

  /** Apply the colours of a theme. */
  restyle(theme) {
    this.#cy.style(sheet(theme));
  }

  /** Show exactly these elements (a Map by id). */
  draw(elements) {
    const cy = this.#cy;
    cy.batch(() => {
      cy.elements().filter((one) => !elements.has(one.id())).remove();
      const fresh = [];
      for (const [id, wanted] of elements) {
        const there = cy.getElementById(id);
        if (there.empty()) fresh.push(plain(wanted));
        else change(there, wanted);
      }
      // Parents come before their children, and nodes before their edges.
      fresh.sort((one, other) => rank(one) - rank(other));
      cy.add(fresh);
    });
    this.#march();
  }

  /** Show everything, with a margin. */
  fit() {
    this.#cy.resize();
    this.#cy.fit(undefined, ROOM_PX);
    if (this.#cy.zoom() > 1.35) {
      this.#cy.zoom(1.35);
      this.#cy.center();
    }
  }

  /** Zoom around the centre. */
  zoom(factor) {
    const cy = this.#cy;
    cy.zoom({ level: cy.zoom() * factor, renderedPosition: { x: cy.width() / 2, y: cy.height() / 2 } });
  }

  /** Move the view by pixels. */
  pan(x, y) {
    this.#cy.panBy({ x, y });
  }

  /** Select one element by id and bring it into view; false when it is not drawn. */
  select(id) {
    const found = this.#cy.getElementById(id);
    this.#cy.$(":selected").unselect();
    if (found.empty()) return false;
    found.select();
    const box = found.renderedBoundingBox();
    const inside = box.x1 > 0 && box.y1 > 0 && box.x2 < this.#cy.width() && box.y2 < this.#cy.height();
    if (!inside) this.#cy.center(found);
    return true;
  }

  /** Cancel dragging; without dragging, clear the selection. */
  clear() {
    if (this.#drag.cancel()) return;
    this.#cy.$(":selected").unselect();
  }

  /** Data of the selected element, null when there is none. */
  get selected() {
    const found = this.#cy.$(":selected");
    return found.empty() ? null : found[0].data();
  }

  /** Select the nearest node in a direction ({x, y}, one of them 0) from the selected one. */
  step(direction) {
    const nodes = this.#cy.nodes(".endpoint, .tile, .port, .flat");
    const from = this.#cy.$("node:selected");
    if (from.empty()) return nodes.nonempty() && this.select(nodes[0].id());
    const at = from.position();
    let best = null;
    let least = Infinity;
    nodes.forEach((node) => {
      const d = { x: node.position("x") - at.x, y: node.position("y") - at.y };
      const ahead = d.x * direction.x + d.y * direction.y;
      if (ahead < 4) return;
      const cost = ahead + 2.5 * Math.abs(d.x * direction.y + d.y * direction.x);
      if (cost < least) [best, least] = [node, cost];
    });
    return best ? this.select(best.id()) : false;
  }

  /** Fade all elements that do not belong to a job; null shows everything. */
  highlight(job) {
    const cy = this.#cy;
    cy.batch(() => {
      cy.elements().removeClass("faded");
      if (!job) return;
      const belongs = (one) => one.data("job") === job || (one.data("jobs") ?? []).includes(job);
      cy.elements(".endpoint, .tile, edge").filter((one) => !belongs(one) && !one.hasClass("light")).addClass("faded");
    });
  }

  /** The Cytoscape instance, for tests and benchmarks. */
  get cy() {
    return this.#cy;
  }

  #march() {
    cancelAnimationFrame(this.#frame);
    const moving = this.#cy.edges(".marching");
    if (moving.empty() || this.#still.matches) return;
    let last = 0;
    const step = (now) => {
      if (now - last > FRAME_MS) {
        last = now;
        moving.style("line-dash-offset", -((now / 1000) * MARCH_PX_PER_S) % 160);
      }
      this.#frame = requestAnimationFrame(step);
    };
    this.#frame = requestAnimationFrame(step);
  }
}

function plain({ group, data, classes, position }) {
  return { group, data, classes, ...(position ? { position: { ...position } } : {}) };
}

function change(there, { data, classes, position }) {
  const before = there.data();
  for (const key of Object.keys(data)) {
    if (!same(before[key], data[key])) {
      there.data(data);
      break;
    }
  }
  const kept = ["faded", "target"].filter((name) => there.hasClass(name));
  there.classes([classes, ...kept].join(" "));
  if (position && (there.position("x") !== position.x || there.position("y") !== position.y)) {
    there.position({ ...position });
  }
}

function same(one, other) {
  return one === other || (Array.isArray(one) && Array.isArray(other) && String(one) === String(other));
}

function rank({ group, data }) {
  return group === "edges" ? 2 : data.parent ? 1 : 0;
}
