// Reads a document again and again while a page shows it. An answer that came too late is dropped.

import { Problem } from "../api.js";

export class Poll {
  #read;
  #take;
  #failed;
  #wait;
  #timer = 0;
  #turn = 0;
  #reading = false;
  #again = false;

  /** `read` asks, `take` shows the answer, `failed` its Problem; `wait()` is the pause in ms, null ends it. */
  constructor({ read, take, failed, wait }) {
    this.#read = read;
    this.#take = take;
    this.#failed = failed;
    this.#wait = wait;
  }

  /** There is news: read now, or once the answer under way has come. */
  soon() {
    if (this.#reading) this.#again = true;
    else this.now();
  }

  /** Read now, and from then on. */
  async now() {
    const mine = ++this.#turn;
    clearTimeout(this.#timer);
    this.#reading = true;
    this.#again = false;
    try {
      const found = await this.#read();
      if (mine === this.#turn) this.#take(found);
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      if (mine === this.#turn) this.#failed(problem);
    } finally {
      if (mine === this.#turn) this.#after();
    }
  }

  #after() {
    this.#reading = false;
    if (this.#again) this.now();
    else this.#later();
  }

  /** Ask no more; drop the answer that is under way. */
  stop() {
    this.#turn += 1;
    this.#reading = this.#again = false;
    clearTimeout(this.#timer);
  }

  #later() {
    const ms = this.#wait();
    if (ms === null) return;
    // A hidden page asks nothing until it is shown again.
    this.#timer = setTimeout(() => (document.hidden ? this.#later() : this.now()), ms);
  }
}
