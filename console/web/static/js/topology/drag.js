// Dragging an endpoint onto an aggregator opens the same dialog as `Move …`.

import { h } from "../ui/dom.js";

const BEGIN_PX = 6;

export class Drag {
  #cy;
  #rules;
  #name = null;
  #from = null;
  #over = null;
  #ghost = h("div", { class: "ghost", hidden: true, "aria-hidden": "true" });

  /**
   * `may(endpoint)` tells whether it may be dragged, `whyNot(endpoint, aggregator)` why it cannot
   * move there ("" when it can); `drop(endpoint, aggregator)` is called when it is dropped.
   */
  constructor(cy, rules) {
    this.#cy = cy;
    this.#rules = rules;
    cy.container().append(this.#ghost);
    cy.on("tapstart", "node.endpoint", (event) => this.#grab(event));
    cy.on("tapdrag", (event) => this.#name && this.#move(event));
    cy.on("tapend", () => this.#name && this.#letGo());
  }

  /** Cancel dragging; false when nothing is dragged. */
  cancel() {
    const held = this.#name !== null;
    if (held) this.#end();
    return held;
  }

  #grab(event) {
    const name = event.target.data("name");
    if (!this.#rules.may(name)) return;
    this.#name = name;
    this.#from = { ...event.renderedPosition };
    // Dragging an endpoint must not pan the drawing.
    this.#cy.userPanningEnabled(false);
    // The focused element receives Esc.
    this.#cy.container().focus({ preventScroll: true });
  }

  #move({ position, renderedPosition: at }) {
    if (this.#ghost.hidden && Math.hypot(at.x - this.#from.x, at.y - this.#from.y) < BEGIN_PX) return;
    const under = this.#cy.nodes(".aggregator").filter((one) => inside(one.boundingBox(), position));
    const over = under.empty() ? null : under[0].data("name");
    const why = over ? this.#rules.whyNot(this.#name, over) : "";
    this.#mark(over, why);
    this.#ghost.textContent = !over ? this.#name : why || `${this.#name} → ${over}`;
    this.#ghost.classList.toggle("bad", Boolean(why));
    this.#ghost.style.setProperty("left", `${at.x}px`);
    this.#ghost.style.setProperty("top", `${at.y}px`);
    this.#ghost.hidden = false;
  }

  #letGo() {
    const [name, over, carried] = [this.#name, this.#over, !this.#ghost.hidden];
    this.#end();
    if (carried && over) this.#rules.drop(name, over);
  }

  #end() {
    this.#mark(null, "");
    this.#name = this.#from = null;
    this.#ghost.hidden = true;
    this.#cy.userPanningEnabled(true);
  }

  #mark(over, why) {
    this.#over = over;
    this.#cy.nodes(".target").removeClass("target");
    if (over && !why) this.#cy.getElementById(`aggregator/${over}`).addClass("target");
  }
}

const inside = (box, { x, y }) => x >= box.x1 && x <= box.x2 && y >= box.y1 && y <= box.y2;
