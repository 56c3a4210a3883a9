// Readings of objects: the catalogue, which the controller serves, says which there are.

import { READINGS } from "../readings.js";
import { NONE, bytes, figure, percent, rate } from "../ui/format.js";

const FORMS = {
  ratio: percent,
  B: bytes,
  "°C": (v) => `${Math.round(v)} °C`,
  W: (v) => `${Math.round(v)} W`,
  Hz: (v) => `${Math.round(v / 1e6)} MHz`,
  "bit/s": rate,
  count: String,
  number: figure,
  words: (v) => v.join(" "),
};
const known = (value) => value !== null && value !== undefined && value.length !== 0;
const written = (reading, value) => (known(value) ? FORMS[reading.unit](value) : NONE);

/** Rows for the facts of an object with such readings; one label is one row, without it there is none. */
export function readingFacts(of, values) {
  const rows = new Map();
  for (const reading of READINGS)
    if (reading.of === of && reading.label && values) rows.set(reading.label, [...(rows.get(reading.label) ?? []), reading]);
  return [...rows]
    .filter(([, mine]) => mine.some((reading) => known(values[reading.name])))
    .map(([label, mine]) => [label, mine.map((reading) => reading.text.replace("{}", written(reading, values[reading.name]))).join(", ")]);
}

/** Rows for the facts of a container or an endpoint; an emulated GPU reports none. */
export const gpuFacts = ({ gpu, unfit }) => [unfit && ["unfit", unfit], ...readingFacts("gpu", gpu)];

/** Columns for lists of objects, which have their readings in a field. */
export const readingColumns = (of, field = "readings") =>
  READINGS.filter((reading) => reading.of === of && reading.column).map((reading) => ({
    id: reading.name,
    label: reading.label[0].toUpperCase() + reading.label.slice(1),
    value: (o) => o[field]?.[reading.name],
    right: true,
    cell: (o) => written(reading, o[field]?.[reading.name]),
  }));
