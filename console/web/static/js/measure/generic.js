// Tables of rows whose fields are not known before: one column per field, figures to the right.

import { h } from "../ui/dom.js";
import { facts } from "../ui/parts.js";
import { Table } from "../ui/table.js";
import { mid, num, objects, words, written } from "./value.js";

const MOST_FIELDS = 24;
const LOOKED_AT = 500;

/** A section with a table of `rows`, "" without any; `first` names the fields to put first. */
export function rowsTable(title, rows, { first = [], without = [] } = {}) {
  const items = objects(rows).map((row, i) => ({ i, row }));
  if (!items.length) return "";
  const found = new Set(items.slice(0, LOOKED_AT).flatMap(({ row }) => Object.keys(row)));
  const fields = [...first.filter((name) => found.has(name)), ...[...found].filter((name) => !first.includes(name))].filter((name) => !without.includes(name)).slice(0, MOST_FIELDS);
  const sortable = (value) => num(value) ?? mid(value) ?? num(value?.low) ?? (typeof value === "string" ? value : null);
  const table = new Table({
    label: title,
    key: ({ i }) => i,
    columns: fields.map((field) => ({
      id: field,
      label: words(field),
      right: items.some(({ row }) => typeof sortable(row[field]) === "number"),
      value: ({ row }) => sortable(row[field]),
      sign: ({ row }) => written(field, row[field]),
      cell: ({ row }) => written(field, row[field]),
    })),
  });
  table.element.classList.add("short");
  table.items = items;
  return h("section", {}, h("h2", {}, `${title} `, h("span", { class: "muted" }, String(items.length))), table.element);
}

/** Facts of an object whose fields are not known before. */
export function fieldsPanel(title, object) {
  const pairs = Object.entries(object ?? {}).slice(0, 60);
  if (!pairs.length) return "";
  return h("section", {}, h("h2", {}, title), h("div", { class: "panel" }, facts(pairs.map(([name, value]) => [words(name), written(name, value)]))));
}
