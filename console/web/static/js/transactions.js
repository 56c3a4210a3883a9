// Transactions, under way and ended: told by the stream, asked for where nobody tells.

import { get, part } from "./api.js";

const ASK_MS = 250;
const RETRY_MS = 2000;
const ENDED_KEPT = 50;

/** What asking again does not change: it is not there, or not for whoever asks. */
const FINAL = new Set([403, 404, 410, 422]);

export class Transactions {
  #followed = new Set();
  #step;
  #failed;
  #stopped = false;

  /** `step(view, news)` hears of every view taken; `failed(problem)` of every question that failed. */
  constructor({ step, failed }) {
    this.#step = step;
    this.#failed = failed;
    this.views = new Map();
  }

  /** The one under way, null when there is none. */
  get running() {
    for (const view of this.views.values()) if (!view.finished_at) return view;
    return null;
  }

  /** Take what the stream told. */
  told(view) {
    this.#take(view);
  }

  /** Follow one by its id, until it ends, by asking. `first` is what is known of it. */
  follow(id, first = null) {
    if (first && !this.views.has(id)) this.#take(first);
    if (this.#followed.has(id) || this.views.get(id)?.finished_at) return;
    this.#followed.add(id);
    this.#ask(id);
  }

  /** Something may have been missed: ask how those stand that had not ended. */
  again() {
    for (const view of this.views.values()) if (!view.finished_at) this.follow(view.id);
  }

  /** Forget them all: their ids belong to a controller that is no more. */
  clear() {
    this.views.clear();
    this.#followed.clear();
  }

  stop() {
    this.#stopped = true;
  }

  async #ask(id) {
    const before = this.views.get(id);
    let pause = ASK_MS;
    try {
      const view = await get(`/transactions/${part(id)}`);
      // What the stream told while the answer was on its way is newer than the answer.
      if (!this.#stopped && this.#followed.has(id) && this.views.get(id) === before) this.#take(view);
    } catch (problem) {
      if (this.#stopped) return;
      if (FINAL.has(problem.status)) this.#forget(id);
      else pause = RETRY_MS;
      this.#failed(problem);
    }
    if (this.views.get(id)?.finished_at) this.#followed.delete(id);
    if (!this.#stopped && this.#followed.has(id)) setTimeout(() => this.#ask(id), pause);
  }

  #forget(id) {
    const view = this.views.get(id);
    this.#followed.delete(id);
    this.views.delete(id);
    if (view) this.#step(view, true);
  }

  #take(view) {
    const before = this.views.get(view.id);
    if (before && (before.finished_at || (!view.finished_at && passed(view) < passed(before)))) return;
    const now = { circuits: before?.circuits, ...view };
    this.views.set(view.id, now);
    this.#trim();
    this.#step(now, !before || before.phase !== view.phase || Boolean(view.finished_at));
  }

  #trim() {
    const ended = [...this.views.values()].filter((view) => view.finished_at);
    for (const view of ended.slice(0, -ENDED_KEPT)) this.views.delete(view.id);
  }
}

/** How far one is: phases begun and phases ended. */
const passed = (view) => view.phases.length + view.phases.filter((phase) => phase.finished_at !== null).length;
