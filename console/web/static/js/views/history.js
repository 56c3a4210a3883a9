// A job's samples of the last 15 minutes: read once, then extended by new samples.

import { get } from "../api.js";

const KEPT = 900;
/** Samples closer than this belong to the same second. */
const SAME_S = 0.5;
/** What a sample of a second has. */
const FIGURES = ["rx_bps", "tx_bps", "utilisation"];

export class History {
  #turn = 0;
  /** Samples and events that come in while the history is read, null at other times. */
  #late = null;

  /** `kept` is how many samples stay. */
  constructor(job, kept = KEPT) {
    this.job = job;
    this.kept = kept;
    this.times = [];
    this.lines = [];
    this.markers = [];
  }

  /** Read the samples that the controller keeps; add those that come in until then. */
  async load() {
    const mine = ++this.#turn;
    this.#late ??= [];
    let series = null;
    try {
      series = await get("/series", { since_s: KEPT, job: this.job });
    } finally {
      if (mine === this.#turn) this.#take(series);
    }
  }

  #take(series) {
    const late = this.#late;
    this.#late = null;
    if (!series) return;
    this.times = series.times;
    this.lines = series.containers.sort((one, other) => one.rank - other.rank);
    this.markers = series.markers;
    for (const { sample, events } of late) {
      if (sample) this.add(sample);
      else this.mark(events);
    }
    this.#cut();
  }

  /** Add the sample of one second, unless that second is known. */
  add(sample) {
    this.#late?.push({ sample });
    if (sample.time - (this.times.at(-1) ?? 0) < SAME_S) return;
    this.times = [...this.times, sample.time];
    for (const row of sample.containers) if (row.job === this.job) this.#line(row);
    for (const line of this.lines) {
      const row = sample.containers.find((one) => one.job === this.job && one.rank === line.rank && one.endpoint === line.endpoint);
      for (const field of FIGURES) line[field] = [...line[field], row?.[field] ?? null];
    }
    this.#cut();
  }

  /** Add events as markers. */
  mark(events) {
    this.#late?.push({ events });
    const known = new Set(this.markers.map((m) => `${m.time}${m.reason}`));
    this.markers = [...this.markers, ...events.filter((event) => !known.has(`${event.time}${event.reason}`))];
  }

  #line(row) {
    if (this.lines.some((line) => line.rank === row.rank && line.endpoint === row.endpoint)) return;
    const nothing = () => Array(this.times.length - 1).fill(null);
    this.lines.push({ rank: row.rank, endpoint: row.endpoint, ...Object.fromEntries(FIGURES.map((field) => [field, nothing()])) });
  }

  /** Drop the time before the job's first sample. */
  #cut() {
    const starts = this.lines.map((line) => line.rx_bps.findIndex((v) => v !== null)).filter((i) => i > 0);
    const first = starts.length && starts.length === this.lines.length ? Math.min(...starts) - 1 : 0;
    const from = Math.max(first, this.times.length - this.kept, 0);
    if (!from) return;
    this.times = this.times.slice(from);
    for (const line of this.lines) for (const field of Object.keys(line)) if (Array.isArray(line[field])) line[field] = line[field].slice(from);
  }
}
