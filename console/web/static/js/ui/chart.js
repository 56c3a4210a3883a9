// Time series with uPlot: one line per container, with markers for events.

import uPlot from "../../vendor/uPlot.esm.js";
import { h } from "./dom.js";
import { theme } from "./palette.js";

const HEIGHT = 220;
const DASHES = [[], [8, 4], [2, 3], [12, 4, 2, 4]];

/** A line chart; all lines have the same times, `format` formats a value. */
export class Chart {
  #plot = null;
  #lines = [];
  #markers = [];
  #data = [[]];
  #format;
  #top;
  #watch;

  /** `top` fixes the upper end of the scale (1 for shares); with null it follows the data. */
  constructor({ label, format, top = null }) {
    this.#format = format;
    this.#top = top;
    this.area = h("div", { class: "plot" });
    this.element = h("figure", { class: "chart", role: "img", "aria-label": label }, h("figcaption", {}, label), this.area);
    this.#watch = new ResizeObserver(() => this.#resize());
    this.#watch.observe(this.area);
  }

  /** Show `lines` ({label, colour, dash, values}) over `times`, with `markers` ({time, text}). */
  show(times, lines, markers) {
    this.#data = [times, ...lines.map((line) => line.values)];
    this.#markers = markers;
    const same = lines.length === this.#lines.length && lines.every((line, i) => line.label === this.#lines[i].label);
    this.#lines = lines;
    if (this.#plot && same) this.#plot.setData(this.#data);
    else this.redraw();
  }

  /** Draw again with the current theme. */
  redraw() {
    this.#plot?.destroy();
    this.#plot = null;
    const width = this.area.clientWidth;
    if (!width || !this.#lines.length) return;
    this.#plot = new uPlot(this.#options(width), this.#data, this.area);
  }

  /** Remove the plot. */
  destroy() {
    this.#watch.disconnect();
    this.#plot?.destroy();
    this.#plot = null;
  }

  #resize() {
    const width = this.area.clientWidth;
    if (!this.#plot) this.redraw();
    else if (width && Math.abs(width - this.#plot.width) > 1) this.#plot.setSize({ width, height: HEIGHT });
  }

  #options(width) {
    const colours = theme();
    const axis = { stroke: colours.muted, grid: { stroke: colours.border, width: 1 }, ticks: { show: false }, font: `12px ${colours.font}` };
    return {
      width,
      height: HEIGHT,
      cursor: { points: { size: 7 }, drag: { x: true, y: false } },
      legend: { live: true },
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, this.#top ?? Math.max(high * 1.08, 1)] } },
      series: [
        { value: (_, t) => (t === null ? "–" : new Date(t * 1000).toLocaleTimeString([], { hour12: false })) },
        ...this.#lines.map((line) => ({
          label: line.label,
          stroke: line.colour,
          width: 2,
          dash: DASHES[line.dash % DASHES.length],
          points: { show: false },
          spanGaps: false,
          value: (_, v) => this.#format(v),
        })),
      ],
      axes: [
        { ...axis, values: (_, ticks) => ticks.map((t) => new Date(t * 1000).toLocaleTimeString([], { hour12: false })), space: 90 },
        { ...axis, size: 84, values: (_, ticks) => ticks.map((v) => this.#format(v)) },
      ],
      hooks: { draw: [(plot) => this.#mark(plot, colours)] },
    };
  }

  #mark(plot, colours) {
    const { ctx, bbox } = plot;
    const scale = devicePixelRatio;
    ctx.save();
    ctx.font = `${11 * scale}px ${colours.font}`;
    ctx.textBaseline = "top";
    let row = 0;
    let last = -Infinity;
    for (const marker of this.#markers) {
      const x = plot.valToPos(marker.time, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      const text = ` ${marker.text}`;
      row = x - last < ctx.measureText(text).width + 8 * scale ? row + 1 : 0;
      last = x;
      ctx.strokeStyle = ctx.fillStyle = marker.bad ? "#d55e00" : colours.text;
      ctx.lineWidth = scale;
      ctx.setLineDash([4 * scale, 3 * scale]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const left = x + ctx.measureText(text).width > bbox.left + bbox.width;
      ctx.textAlign = left ? "right" : "left";
      ctx.fillText(left ? `${marker.text} ` : text, x, bbox.top + 2 * scale + row * 14 * scale);
    }
    ctx.restore();
  }
}

/** The path of a sparkline; SVG, because a page may have hundreds of them. */
export function sparkPath(values, width, height) {
  if (values.length < 2) return "";
  const top = Math.max(...values, 1) * 1.2;
  const step = width / (values.length - 1);
  return values.map((v, i) => `${i ? "L" : "M"}${(i * step).toFixed(1)} ${(height - 1 - (v / top) * (height - 2)).toFixed(1)}`).join("");
}
