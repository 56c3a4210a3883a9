// A heat map on a canvas: colour by value, hatching by group. The keyboard moves a cursor over the cells,
// and what a cell says is also text.

import { h, say, show } from "./dom.js";
import { theme } from "./palette.js";

/** Cividis (Nuñez, Anderton and Renslow, 2018): equal steps for all common kinds of colour vision. */
const STOPS = [[0, 32, 77], [61, 78, 108], [124, 123, 120], [187, 173, 108], [255, 234, 70]];
const LEVELS = 64;
const LARGEST = 30;
const SMALLEST = 3;
const LABEL_FROM = 11;
const MOST = 512;
const MOST_GROUPS = 12;
const TILE = 8;
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

export class HeatMap {
  #rows = [];
  #columns = [];
  #cell = () => null;
  #format = String;
  #groups = new Map();
  #seen = new Set();
  #missing = false;
  #low = 0;
  #high = 1;
  #side = LARGEST;
  #left = 0;
  #top = 0;
  #at = null;
  #canvas = h("canvas", { tabindex: "0", role: "img" });
  #cursor = h("span", { class: "cursor", hidden: true });
  #box = h("div", { class: "scroll short" }, h("div", { class: "sheet" }, this.#canvas, this.#cursor));
  #said = h("p", { class: "muted", "aria-live": "polite" });
  #scale = h("p", { class: "marks" });
  #watch;

  constructor({ label, rows, columns }) {
    this.label = label;
    this.names = { rows, columns };
    this.element = h("figure", { class: "chart heat", "aria-label": label }, h("figcaption", {}, label), this.#box, this.#said, this.#scale);
    this.#canvas.addEventListener("mousemove", (event) => this.#pointed(event));
    this.#canvas.addEventListener("mouseleave", () => this.#move(null));
    this.#canvas.addEventListener("keydown", (event) => this.#key(event));
    this.#watch = new ResizeObserver(() => this.redraw());
    this.#watch.observe(this.element);
  }

  /**
   * Show `rows` × `columns` (names); `cell(row, column)` returns {value, group?, text} or null for
   * a cell that does not exist. A value that is null was not measured and is crossed out.
   * `groups` names the groups.
   */
  show({ rows, columns, cell, format, groups = new Map() }) {
    this.#groups = groups;
    this.#seen = new Set();
    this.#missing = false;
    this.#rows = rows.slice(0, MOST);
    this.#columns = columns.slice(0, MOST);
    this.#cell = cell;
    this.#format = format;
    let [low, high] = [Infinity, -Infinity];
    this.#each((one) => {
      if (one && !Number.isFinite(one.value)) this.#missing = true;
      if (!Number.isFinite(one?.value)) return;
      if (grouped(one)) this.#seen.add(one.group);
      low = Math.min(low, one.value);
      high = Math.max(high, one.value);
    });
    [this.#low, this.#high] = [low, high];
    if (this.#at && (this.#at[0] >= this.#rows.length || this.#at[1] >= this.#columns.length)) this.#at = null;
    const cut = rows.length > MOST || columns.length > MOST ? ` The first ${MOST} of each side are drawn.` : "";
    this.#canvas.setAttribute("aria-label", `${this.label}: ${rows.length} ${this.names.rows} by ${columns.length} ${this.names.columns}.${cut} The arrow keys move over the cells; the table below has all figures.`);
    this.redraw();
  }

  /** Draw again with the current theme and width. */
  redraw() {
    const width = this.#box.clientWidth - 2;
    if (width <= 0 || !this.#rows.length || !this.#columns.length) return;
    this.#draw(width);
    this.#legend();
    this.#explain();
  }

  /** Stop to follow the width. */
  destroy() {
    this.#watch.disconnect();
  }

  #each(f) {
    this.#rows.forEach((row, r) => this.#columns.forEach((column, c) => f(this.#cell(row, column), r, c)));
  }

  #draw(width) {
    const colours = theme();
    const ctx = this.#canvas.getContext("2d");
    const scale = devicePixelRatio;
    ctx.font = `11px ${colours.font}`;
    const widest = (names) => Math.ceil(Math.max(...names.map((name) => ctx.measureText(String(name).slice(0, 16)).width)));
    this.#left = widest(this.#rows) + 8;
    this.#top = widest(this.#columns) + 8;
    this.#side = Math.max(SMALLEST, Math.min(LARGEST, Math.floor((width - this.#left) / this.#columns.length)));
    const [wide, high] = [this.#left + this.#side * this.#columns.length + 1, this.#top + this.#side * this.#rows.length + 1];
    this.#canvas.width = wide * scale;
    this.#canvas.height = high * scale;
    this.#canvas.style.setProperty("width", `${wide}px`);
    this.#canvas.style.setProperty("height", `${high}px`);
    ctx.scale(scale, scale);
    ctx.font = `11px ${colours.font}`;
    const hatches = new Map();
    this.#each((one, r, c) => {
      if (one === null || one === undefined) return;
      const [x, y] = [this.#left + c * this.#side, this.#top + r * this.#side];
      const gap = this.#side > 5 ? 1 : 0;
      ctx.fillStyle = Number.isFinite(one.value) ? this.#colour(one.value) : colours.sunken;
      ctx.fillRect(x, y, this.#side - gap, this.#side - gap);
      if (!Number.isFinite(one.value)) cross(ctx, x, y, this.#side, colours.muted);
      else if (grouped(one)) {
        // Patterns lie on the canvas, not on the cell: hatching shows across small cells, too.
        if (!hatches.has(one.group)) hatches.set(one.group, hatch(ctx, one.group));
        ctx.fillStyle = hatches.get(one.group);
        ctx.fillRect(x, y, this.#side - gap, this.#side - gap);
      }
    });
    this.#names(ctx, colours);
  }

  #names(ctx, colours) {
    const every = Math.ceil(LABEL_FROM / this.#side);
    ctx.fillStyle = colours.muted;
    ctx.textBaseline = "middle";
    ctx.textAlign = "right";
    this.#rows.forEach((name, r) => {
      if (r % every === 0) ctx.fillText(String(name).slice(0, 16), this.#left - 5, this.#top + (r + 0.5) * this.#side);
    });
    ctx.textAlign = "left";
    this.#columns.forEach((name, c) => {
      if (c % every) return;
      ctx.save();
      ctx.translate(this.#left + (c + 0.5) * this.#side, this.#top - 5);
      ctx.rotate(-Math.PI / 2);
      ctx.fillText(String(name).slice(0, 16), 0, 0);
      ctx.restore();
    });
  }

  #colour(value) {
    const logarithmic = this.#low > 0 && this.#high / this.#low > 20;
    const [low, high, at] = logarithmic ? [this.#low, this.#high, value].map(Math.log) : [this.#low, this.#high, value];
    return colourAt(high > low ? (at - low) / (high - low) : 1);
  }

  #legend() {
    const steps = [0, 0.25, 0.5, 0.75, 1].map((share) => h("i", { class: "swatch", style: { "--mark": colourAt(share) }, "aria-hidden": "true" }));
    show(this.#scale,
      Number.isFinite(this.#low) ? h("span", {}, `${this.#format(this.#low)} `, steps, ` ${this.#format(this.#high)}`) : "",
      [...this.#seen].sort((one, other) => one - other).slice(0, MOST_GROUPS).map((group) => h("span", {}, sample(group), this.#groups.get(group) ?? `group ${group}`)),
      this.#missing ? h("span", {}, "crossed out: not measured") : "");
  }

  /** Put the cursor on its cell, and say what the cell says. */
  #explain() {
    this.#cursor.hidden = !this.#at;
    if (!this.#at) {
      say(this.#said, "point at a cell, or use the arrow keys");
      return;
    }
    const [r, c] = this.#at;
    const place = { left: this.#left + c * this.#side - 2, top: this.#top + r * this.#side - 2, width: this.#side + 3, height: this.#side + 3 };
    for (const [name, value] of Object.entries(place)) this.#cursor.style.setProperty(name, `${value}px`);
    say(this.#said, this.#cell(this.#rows[r], this.#columns[c])?.text ?? `${this.#rows[r]}, ${this.#columns[c]}: not part of the measurement`);
  }

  #pointed(event) {
    const box = this.#canvas.getBoundingClientRect();
    const r = Math.floor((event.clientY - box.top - this.#top) / this.#side);
    const c = Math.floor((event.clientX - box.left - this.#left) / this.#side);
    this.#move(r >= 0 && c >= 0 && r < this.#rows.length && c < this.#columns.length ? [r, c] : null);
  }

  #key(event) {
    const step = STEPS[event.key];
    if (!step) return;
    event.preventDefault();
    const [r, c] = this.#at ?? [0, 0];
    const within = (value, size) => Math.max(0, Math.min(size - 1, value));
    this.#move(this.#at ? [within(r + step[0], this.#rows.length), within(c + step[1], this.#columns.length)] : [0, 0]);
  }

  #move(to) {
    if (String(to) === String(this.#at)) return;
    this.#at = to;
    this.#explain();
  }
}

const PALETTE = Array.from({ length: LEVELS + 1 }, (_, i) => {
  const place = (i / LEVELS) * (STOPS.length - 1);
  const first = Math.min(Math.floor(place), STOPS.length - 2);
  const mixed = STOPS[first].map((value, n) => Math.round(value + (STOPS[first + 1][n] - value) * (place - first)));
  return `rgb(${mixed.join(" ")})`;
});

const colourAt = (share) => PALETTE[Math.round(Math.max(0, Math.min(1, share)) * LEVELS)];

/** Lines of a group: /, \, both, level, upright, then with more space. White beside black shows on all colours. */
function hatch(ctx, group) {
  const kind = (group - 1) % 5;
  const side = TILE * (1 + Math.floor((group - 1) / 5));
  const tile = h("canvas", { width: side, height: side });
  const pen = tile.getContext("2d");
  for (const [colour, shift] of [["rgb(0 0 0 / 55%)", 0], ["rgb(255 255 255 / 55%)", 1]]) {
    pen.strokeStyle = colour;
    pen.beginPath();
    const line = (x1, y1, x2, y2) => (pen.moveTo(x1 + shift, y1), pen.lineTo(x2 + shift, y2));
    for (const at of [-side, 0, side]) {
      if (kind === 0 || kind === 2) line(at, side, at + side, 0);
      if (kind === 1 || kind === 2) line(at, 0, at + side, side);
    }
    if (kind === 3) (pen.moveTo(0, side / 2 + shift), pen.lineTo(side, side / 2 + shift));
    if (kind === 4) line(side / 2, 0, side / 2, side);
    pen.stroke();
  }
  return ctx.createPattern(tile, "repeat");
}

const grouped = (one) => Number.isInteger(one.group) && one.group > 0;

/** A group's hatching, for the legend. */
function sample(group) {
  const box = h("canvas", { width: 22, height: 12, "aria-hidden": "true" });
  const pen = box.getContext("2d");
  pen.fillStyle = colourAt(0.5);
  pen.fillRect(0, 0, 22, 12);
  pen.fillStyle = hatch(pen, group);
  pen.fillRect(0, 0, 22, 12);
  return box;
}

function cross(ctx, x, y, side, colour) {
  ctx.strokeStyle = colour;
  ctx.lineWidth = 1;
  ctx.beginPath();
  ctx.moveTo(x + 1, y + 1);
  ctx.lineTo(x + side - 2, y + side - 2);
  ctx.moveTo(x + side - 2, y + 1);
  ctx.lineTo(x + 1, y + side - 2);
  ctx.stroke();
}
