// Curves over a quantity that is not time, with uPlot: points, 95 % bands, linear or logarithmic axes.

import uPlot from "../../vendor/uPlot.esm.js";
import { h, show } from "./dom.js";
import { theme } from "./palette.js";

const HEIGHT = 240;
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"];
const DASHES = [[], [8, 4], [2, 3], [12, 4, 2, 4], [4, 4], [16, 5]];
/** The same in the legend. */
const BORDERS = ["solid", "dashed", "dotted", "dashed", "dotted", "dashed"];
const MOST_LINES = 12;
const MOST_TICKS = 9;

export class Curve {
  #plot = null;
  #x;
  #y;
  #lines = [];
  #left = 0;
  #watch;
  #area = h("div", { class: "plot" });
  #legend = h("p", { class: "marks" });

  /** `x` and `y`: {label, format, log?}; an axis with `log` shows positive values only. */
  constructor({ label, x, y }) {
    this.#x = x;
    this.#y = y;
    this.element = h("figure", { class: "chart", role: "group", "aria-label": label },
      h("figcaption", {}, label), this.#area, this.#legend);
    this.#watch = new ResizeObserver(() => this.#resize());
    this.#watch.observe(this.#area);
  }

  /** Show `lines` {label, points: [{x, y, low?, high?}], dashed?}; the table beside it has every line. */
  show(lines) {
    const drawn = lines.map((line) => ({ ...line, points: line.points.filter((p) => this.#fits(p)) })).filter((line) => line.points.length);
    this.#lines = drawn.slice(0, MOST_LINES);
    this.#left = drawn.length - this.#lines.length;
    this.element.hidden = !this.#lines.length;
    this.redraw();
  }

  /** Draw again with the current theme. */
  redraw() {
    this.#plot?.destroy();
    this.#plot = null;
    this.#explain(null);
    const width = this.#area.clientWidth;
    if (width && this.#lines.length) this.#plot = new uPlot(this.#options(width), this.#data(), this.#area);
  }

  /** Remove the plot. */
  destroy() {
    this.#watch.disconnect();
    this.#plot?.destroy();
    this.#plot = null;
  }

  #fits(point) {
    const fine = (value, axis) => Number.isFinite(value) && (!axis.log || value > 0);
    return fine(point.x, this.#x) && fine(point.y, this.#y);
  }

  #resize() {
    const width = this.#area.clientWidth;
    if (!this.#plot) this.redraw();
    else if (width && Math.abs(width - this.#plot.width) > 1) this.#plot.setSize({ width, height: HEIGHT });
  }

  get #places() {
    return [...new Set(this.#lines.flatMap((line) => line.points.map((p) => p.x)))].sort((one, other) => one - other);
  }

  /** Of each line: its values, and the lower and upper ends of its band. */
  #data() {
    const places = this.#places;
    const column = (line, field) => {
      const found = new Map(line.points.map((p) => [p.x, p[field] ?? p.y]));
      return places.map((x) => found.get(x) ?? null);
    };
    return [places, ...this.#lines.flatMap((line) => [column(line, "y"), column(line, "low"), column(line, "high")])];
  }

  #colour(i) {
    return COLOURS[i % COLOURS.length];
  }

  #options(width) {
    const colours = theme();
    const places = this.#places;
    const step = Math.ceil(places.length / MOST_TICKS);
    const axis = { stroke: colours.muted, grid: { stroke: colours.border, width: 1 }, ticks: { show: false }, font: `12px ${colours.font}`, labelFont: `12px ${colours.font}` };
    const widened = (low, high) => (this.#x.log ? [low / 1.2, high * 1.2] : [low - 0.04 * (high - low || 1), high + 0.04 * (high - low || 1)]);
    const upwards = (low, high) => {
      if (!Number.isFinite(low) || !Number.isFinite(high)) return [0.1, 1];
      return this.#y.log ? [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high * 1.0001))] : [Math.min(0, low * 1.08), Math.max(high * 1.08, 1e-12)];
    };
    return {
      width,
      height: HEIGHT,
      legend: { show: false },
      cursor: { points: { size: 7 }, drag: { x: false, y: false } },
      scales: {
        x: { time: false, distr: this.#x.log ? 3 : 1, range: (_, low, high) => widened(low, high) },
        y: { distr: this.#y.log ? 3 : 1, range: (_, low, high) => upwards(low, high) },
      },
      series: [{}, ...this.#lines.flatMap((line, i) => [
        { stroke: this.#colour(i), width: 2, dash: line.dashed ? [5, 5] : DASHES[i % DASHES.length], spanGaps: true, points: { show: true, size: 5, fill: colours.surface } },
        { width: 0, stroke: "transparent", spanGaps: true, points: { show: false } },
        { width: 0, stroke: "transparent", spanGaps: true, points: { show: false } },
      ])],
      bands: this.#lines.flatMap((line, i) => (line.points.some((p) => Number.isFinite(p.low)) ? [{ series: [3 * i + 3, 3 * i + 2], fill: `${this.#colour(i)}30` }] : [])),
      axes: [
        { ...axis, label: this.#x.label, labelSize: 18, size: 30, filter: (_, ticks) => ticks, splits: () => places.filter((_, i) => i % step === 0), values: (_, ticks) => ticks.map((v) => this.#x.format(v)) },
        { ...axis, label: this.#y.label, labelSize: 20, size: 84, ...(this.#y.log ? { filter: (_, ticks) => ticks, splits: (_, __, low, high) => decades(low, high) } : {}), values: (_, ticks) => ticks.map((v) => this.#y.format(v)) },
      ],
      hooks: { setCursor: [(plot) => this.#explain(plot.cursor.idx)] },
    };
  }

  /** The legend, with the values under the pointer. */
  #explain(index) {
    const at = index === null || index === undefined || !this.#plot ? null : index;
    const value = (i) => (at === null ? null : this.#plot.data[3 * i + 1][at]);
    show(this.#legend,
      at === null ? "" : h("b", {}, `${this.#x.label} ${this.#x.format(this.#plot.data[0][at])}`),
      this.#lines.map((line, i) => h("span", {}, h("i", { style: { "--mark": this.#colour(i), "border-top-style": line.dashed ? "dashed" : BORDERS[i % BORDERS.length] }, "aria-hidden": "true" }), line.label, Number.isFinite(value(i)) ? h("b", {}, ` ${this.#y.format(value(i))}`) : "")),
      this.#left ? h("span", {}, `and ${this.#left} more in the table`) : "");
  }
}

/** Powers of ten from low to high. */
function decades(low, high) {
  const [first, last] = [Math.ceil(Math.log10(low)), Math.floor(Math.log10(high))];
  const found = Array.from({ length: Math.max(0, last - first) + 1 }, (_, i) => 10 ** (first + i));
  return found.length > MOST_TICKS ? found.filter((_, i) => i % 2 === 0) : found;
}
