// Transactions, running and ended: from the stream, or by polling without a stream.

import { get, part } from "./api.js";

const ASK_MS = 250;
const RETRY_MS = 2000;
const ENDED_KEPT = 50;

/** Statuses after which polling stops: the transaction is gone, or the user may not see it. */
const FINAL = new Set([403, 404, 410, 422]);

export class Transactions {
  #followed = new Set();
  #step;
  #failed;
  #stopped = false;

  /** Calls `step(view, news)` for each accepted view, `failed(problem)` for each failed request. */
  constructor({ step, failed }) {
    this.#step = step;
    this.#failed = failed;
    this.views = new Map();
  }

  /** The running transaction, null when there is none. */
  get running() {
    for (const view of this.views.values()) if (!view.finished_at) return view;
    return null;
  }

  /** Take a view from the stream. */
  told(view) {
    this.#take(view);
  }

  /** Poll one by its id until it ends. `first` is its first known view. */
  follow(id, first = null) {
    if (first && !this.views.has(id)) this.#take(first);
    if (this.#followed.has(id) || this.views.get(id)?.finished_at) return;
    this.#followed.add(id);
    this.#ask(id);
  }

  /** The stream had a gap: poll all that have not ended. */
  again() {
    for (const view of this.views.values()) if (!view.finished_at) this.follow(view.id);
  }

  /** Forget them all: their ids belong to a previous controller. */
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
      // A view that the stream sent in the meantime is newer than this response.
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

/** Progress of a transaction: phases begun plus phases ended. */
const passed = (view) => view.phases.length + view.phases.filter((phase) => phase.finished_at !== null).length;
