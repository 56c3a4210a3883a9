// Reads values of a result. Programs of jobs wrote parts of it: anything may be missing or of another type.

import { exact, figure, perSecond, percent, size } from "../ui/format.js";

const MOST_TEXT = 300;
const MOST_DEPTH = 4;

/** A finite number, else null. */
export const num = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

/** A short text of anything. */
export function text(value) {
  const whole = typeof value === "string" ? value : value === null || value === undefined ? "" : plain(value);
  return whole.length > MOST_TEXT ? `${whole.slice(0, MOST_TEXT)}…` : whole;
}

/** The entries of a list that are objects. */
export const objects = (list) => (Array.isArray(list) ? list.filter((one) => one !== null && typeof one === "object" && !Array.isArray(one)) : []);

/** The texts of a list. */
export const texts = (list) => (Array.isArray(list) ? list.map(text).filter(Boolean) : []);

/** The median of repetitions, the middle of an interval, or the figure itself. */
export function mid(value) {
  if (value === null || typeof value !== "object") return num(value);
  const [low, high] = [num(value.low), num(value.high)];
  return num(value.median) ?? (low === null || high === null ? null : (low + high) / 2);
}

/** The 95 % interval of a median, [null, null] without one. */
export const interval = (value) => (Array.isArray(value?.ci) ? [num(value.ci[0]), num(value.ci[1])] : [null, null]);

/** Distinct values in ascending order. */
export const distinct = (values) => [...new Set(values.filter((value) => value !== null && value !== undefined && value !== ""))].sort((one, other) => (typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other), undefined, { numeric: true })));

/** Groups of items by a key, in order of appearance. */
export function grouped(items, key) {
  const found = new Map();
  for (const item of items) {
    const name = key(item);
    if (!found.has(name)) found.set(name, []);
    found.get(name).push(item);
  }
  return found;
}

const COUNTS = new Set(["size", "io_bytes", "bytes", "gradient_bytes", "n_half"]);
const RATES = new Set(["io_limit_bps", "uplink_bytes_s", "bandwidth", "beta", "algbw", "busbw", "alg_bw", "bus_bw", "bytes_per_s", "out_of_place_algbw", "out_of_place_busbw", "in_place_algbw", "in_place_busbw"]);
const SHARES = /(share|overlap|efficiency|error|residual|^change$|^au$|^util$|utilisation)/;

/** How a field of this name is written: seconds, bytes, bytes per second, shares, or plain figures. */
export function writer(field) {
  if (RATES.has(field) || /_(bytes_per_s|algbw|busbw)$/.test(field)) return perSecond;
  if (COUNTS.has(field) || /_bytes$/.test(field)) return size;
  if (/samples_s$/.test(field)) return (value) => `${figure(value)}/s`;
  if (/_s$/.test(field) || field === "time") return exact;
  return SHARES.test(field) ? percent : figure;
}

/** One value of a field as text: repetitions by their median and interval. */
export function written(field, value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return Number.isFinite(value) ? writer(field)(value) : "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "object" && !Array.isArray(value)) {
    const write = writer(field);
    const [low, high] = interval(value);
    if (num(value.median) !== null) return low === null || high === null ? write(mid(value)) : `${write(mid(value))} (${write(low)} … ${write(high)})`;
    const parts = Object.entries(value);
    if (/_s$/.test(field) && parts.length && parts.every(([, one]) => one === null || num(one) !== null) && !("low" in value)) {
      return parts.map(([name, one]) => `${name} ${write(one)}`).join(", ");
    }
    if (num(value.low) !== null && num(value.high) !== null) return `${write(value.low)} … ${write(value.high)}`;
  }
  return text(value);
}

const NAMES = { alpha_s: "α", beta: "β", n_half: "n½", io_bytes: "Size", rw: "Access", cpu_cores: "CPU cores" };

/** A name of a field in words. */
export const words = (field) => {
  if (Object.hasOwn(NAMES, field)) return NAMES[field];
  const name = field.replace(/_per_s$/, "/s").replace(/_(s|bps)$/, "").replaceAll("_", " ");
  return name.charAt(0).toUpperCase() + name.slice(1);
};

function plain(value, depth = 0) {
  if (Array.isArray(value)) return depth > MOST_DEPTH ? "…" : value.slice(0, 50).map((one) => plain(one, depth + 1)).join(", ");
  if (value !== null && typeof value === "object") {
    return depth > MOST_DEPTH ? "…" : Object.entries(value).slice(0, 50).map(([name, one]) => `${name}: ${plain(one, depth + 1)}`).join(", ");
  }
  return typeof value === "number" ? figure(value) : String(value);
}
