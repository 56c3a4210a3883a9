// A table that sorts, filters and stays fast: it keeps rows by key, updates them only when a value
// changes, and of a long list has only the visible rows in the document.

import { h, show } from "./dom.js";

const ROW_PX = 38;
const WINDOW_FROM = 300;
const MARGIN_ROWS = 12;

/**
 * `columns`: {id, label, value(item), cell(item)?, right?, hide?, mute?, wrap?}. The table sorts,
 * filters (unless `mute`) and compares by `value`; `cell` returns what to show instead of it.
 */
export class Table {
  #columns;
  #key;
  #onOpen;
  #rows = new Map();
  #items = [];
  #shown = [];
  #sort;
  #text = "";
  #empty;
  #body = h("tbody");
  #heads = new Map();

  /** A table that `fits` is as wide as its box: its first column and those that `wrap` adapt. */
  constructor({ columns, key, sort = null, onOpen = null, fits = false, empty = "nothing here", label }) {
    this.#columns = columns;
    this.#key = key;
    this.#onOpen = onOpen;
    this.#sort = sort;
    this.#empty = empty;
    const head = h("tr", {}, columns.map((column) => this.#head(column)));
    this.table = h("table", { class: ["rows", onOpen && "opens", fits && "fits"].filter(Boolean).join(" "), "aria-label": label }, h("thead", {}, head), this.#body);
    this.element = h("div", { class: "scroll", tabindex: "-1" }, this.table);
    this.element.addEventListener("scroll", () => this.#window(), { passive: true });
  }

  get count() {
    return this.#shown.length;
  }

  /** Show these items. */
  set items(items) {
    this.#items = items;
    this.#arrange();
  }

  /** Show only items with every word of `text` in one of their values. */
  set filter(text) {
    this.#text = text;
    this.#arrange();
  }

  #head(column) {
    const button = h("button", { class: "sort", type: "button", onclick: () => this.#sortBy(column.id) }, column.label);
    const cell = h("th", { scope: "col", class: classes(column) }, button);
    this.#heads.set(column.id, cell);
    return cell;
  }

  #sortBy(id) {
    const down = this.#sort?.id === id && !this.#sort.down;
    this.#sort = { id, down };
    this.#arrange();
  }

  #arrange() {
    for (const [id, cell] of this.#heads) {
      const mine = this.#sort?.id === id;
      if (mine) cell.setAttribute("aria-sort", this.#sort.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
    this.table.classList.toggle("folds", this.#items.length <= WINDOW_FROM);
    this.#shown = ordered(this.#items.filter((item) => this.#matches(item)), this.#columns, this.#sort);
    this.#window();
  }

  #matches(item) {
    const words = this.#text.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return true;
    const values = this.#columns.filter((column) => !column.mute).map((column) => String(column.value(item) ?? "").toLowerCase());
    return words.every((word) => values.some((value) => value.includes(word)));
  }

  #window() {
    const all = this.#shown.length;
    if (all <= WINDOW_FROM) {
      this.#render(0, all);
      return;
    }
    const top = Math.max(0, Math.floor(this.element.scrollTop / ROW_PX) - MARGIN_ROWS);
    const visible = Math.ceil((this.element.clientHeight || 800) / ROW_PX) + 2 * MARGIN_ROWS;
    this.#render(Math.min(top, all), Math.min(all, top + visible));
  }

  #render(from, to) {
    const rows = [];
    if (from > 0) rows.push(gap(from, this.#columns.length));
    for (const item of this.#shown.slice(from, to)) rows.push(this.#row(item));
    if (to < this.#shown.length) rows.push(gap(this.#shown.length - to, this.#columns.length));
    if (!this.#shown.length) rows.push(this.#nothing());
    const keys = new Set(this.#items.map(this.#key));
    for (const key of this.#rows.keys()) if (!keys.has(key)) this.#rows.delete(key);
    replace(this.#body, rows);
  }

  #row(item) {
    const key = this.#key(item);
    const kept = this.#rows.get(key) ?? { element: h("tr"), cells: [] };
    this.#rows.set(key, kept);
    kept.item = item;
    if (this.#onOpen && !kept.ready) {
      kept.ready = true;
      const open = () => this.#onOpen(kept.item);
      kept.element.tabIndex = 0;
      kept.element.addEventListener("click", (event) => event.target.closest("a, button") || open());
      kept.element.addEventListener("keydown", (event) => event.key === "Enter" && event.target === kept.element && open());
    }
    const folds = this.table.classList.contains("folds");
    this.#columns.forEach((column, i) => {
      const value = column.sign ? column.sign(item) : column.value(item);
      const cell = (kept.cells[i] ??= { element: kept.element.appendChild(h("td", { class: classes(column), "data-label": column.label })), value: undefined });
      // A long list has rows of one height and cuts long texts off.
      if (column.wrap) cell.element.title = folds ? "" : (column.value(item) ?? "");
      if (cell.value === value && value !== undefined) return;
      cell.value = value;
      show(cell.element, column.cell ? column.cell(item) : (column.value(item) ?? "–"));
    });
    return kept.element;
  }

  #nothing() {
    const text = this.#text ? `nothing matches “${this.#text}”` : this.#empty;
    return h("tr", { class: "nothing" }, h("td", { colspan: this.#columns.length }, text));
  }
}

function ordered(items, columns, sort) {
  const column = sort && columns.find((one) => one.id === sort.id);
  if (!column) return items;
  const way = sort.down ? -1 : 1;
  return [...items].sort((one, other) => way * compare(column.value(one), column.value(other)));
}

function compare(one, other) {
  if (one === null || one === undefined || one === "") return other === null || other === undefined || other === "" ? 0 : 1;
  if (other === null || other === undefined || other === "") return -1;
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), undefined, { numeric: true });
}

/** Put rows in order with as few changes as possible; the focused element keeps the focus. */
function replace(body, rows) {
  const focused = body.contains(document.activeElement) ? document.activeElement : null;
  rows.forEach((row, i) => {
    if (body.children[i] !== row) body.insertBefore(row, body.children[i] ?? null);
  });
  while (body.children.length > rows.length) body.lastElementChild.remove();
  // A row that moves loses the focus.
  if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });
}

function gap(rows, columns) {
  return h("tr", { class: "gap", "aria-hidden": "true" }, h("td", { colspan: columns, style: { height: `${rows * ROW_PX}px` } }));
}

const classes = (column) => [column.right ? "right" : "", column.hide ? `hide-${column.hide}` : "", column.wrap ? "wrap" : ""].filter(Boolean).join(" ") || null;
