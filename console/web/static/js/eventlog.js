// Events in order and without gaps, from the stream or by polling.

import { get } from "./api.js";

const KEPT = 2000;
const PAGE = 1000;
const RETRY_MS = 2000;

export class EventLog {
  #fresh;
  #failed;
  #timer = 0;
  #reading = false;
  #again = false;
  #whole = 0;
  #era = 0;
  #gap = true;
  #stopped = false;

  /** Calls `fresh(events)` with new events and `failed(problem)` for every failed request. */
  constructor({ fresh, failed }) {
    this.#fresh = fresh;
    this.#failed = failed;
    /** By id, the newest last. */
    this.items = [];
  }

  /** Take an event from the stream. */
  told(event) {
    this.#add([event]);
    if (!this.#gap) this.#whole = Math.max(this.#whole, event.id);
  }

  /**
   * Events may be missing: read all after the last one before which the log is complete. Events
   * from the stream in the meantime may come after a gap, and so do not count.
   */
  async read() {
    this.#gap = this.#again = true;
    if (this.#reading || this.#stopped) return;
    this.#reading = true;
    clearTimeout(this.#timer);
    try {
      while (this.#again) {
        this.#again = false;
        await this.#pages();
      }
      this.#gap = false;
      this.#whole = Math.max(this.#whole, this.items.at(-1)?.id ?? 0);
    } catch (problem) {
      if (!this.#stopped) {
        this.#timer = setTimeout(() => this.read(), RETRY_MS);
        this.#failed(problem);
      }
    } finally {
      this.#reading = false;
    }
  }

  /** Forget them all: their ids belong to a previous controller. */
  clear() {
    this.items = [];
    this.#whole = 0;
    this.#era += 1;
  }

  stop() {
    this.#stopped = true;
    clearTimeout(this.#timer);
  }

  async #pages() {
    for (let more = true; more && !this.#stopped; ) {
      const era = this.#era;
      const { items } = await get("/events", { since: this.#whole, limit: PAGE });
      if (era !== this.#era) return;
      this.#add(items);
      this.#whole = Math.max(this.#whole, items.at(-1)?.id ?? 0);
      more = items.length === PAGE;
    }
  }

  #add(found) {
    if (this.#stopped) return;
    const last = this.items.at(-1)?.id ?? 0;
    const late = found.length > 0 && found[0].id <= last;
    const known = late ? new Set(this.items.map((event) => event.id)) : new Set();
    const fresh = found.filter((event) => !known.has(event.id));
    if (!fresh.length) return;
    const all = [...this.items, ...fresh];
    if (late) all.sort((one, other) => one.id - other.id);
    this.items = all.slice(-KEPT);
    this.#fresh(fresh);
  }
}
