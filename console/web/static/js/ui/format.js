// Figures in readable form; units are those of the REST schema (bit/s, seconds, bytes).

export const NONE = "–";
const STEPS = ["", "k", "M", "G", "T"];
const BINARY = ["B", "KiB", "MiB", "GiB", "TiB"];

function scaled(value, base, unit) {
  let step = 0;
  let left = value;
  while (Math.abs(left) >= base * 0.9995 && step < STEPS.length - 1) {
    left /= base;
    step += 1;
  }
  const digits = step === 0 || Math.abs(left) >= 100 ? 0 : Math.abs(left) >= 10 ? 1 : 2;
  return `${left.toFixed(digits)} ${STEPS[step]}${unit}`;
}

/** 114 Mbit/s. */
export const rate = (bps) => (bps === null || bps === undefined ? NONE : scaled(bps, 1000, "bit/s"));

/** Both directions as one figure. */
export const both = (rx, tx) => (known(rx) || known(tx) ? (rx ?? 0) + (tx ?? 0) : null);

/** 12.0 GiB. */
export const bytes = (n) => (n ? scaled(n, 1024, "iB").replace(" iB", " B") : NONE);

/** 37 %. */
export const percent = (share) =>
  !known(share) ? NONE : share > 0 && share < 0.01 ? "< 1 %" : `${Math.round(share * 100)} %`;

/** 45 ms, 3.20 s, 4 min 05 s. */
export function seconds(s) {
  if (!known(s)) return NONE;
  if (s === 0) return "0 s";
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 120) return `${s.toFixed(s < 10 ? 2 : 1)} s`;
  return age(s);
}

/** 3.1 µs, 45.2 ms, 0.402 s: three digits, for what is measured. */
export function exact(s) {
  if (!known(s)) return NONE;
  if (s === 0) return "0 s";
  const size = Math.abs(s);
  if (size < 1e-6) return `${digits(s * 1e9)} ns`;
  if (size < 1e-3) return `${digits(s * 1e6)} µs`;
  if (size < 0.1) return `${digits(s * 1e3)} ms`;
  return size < 120 ? `${digits(s)} s` : age(s);
}

/** 64 KiB: an exact size has no fraction. */
export function size(n) {
  if (!known(n)) return NONE;
  let step = 0;
  let left = n;
  while (Math.abs(left) >= 1024 && step < BINARY.length - 1) {
    left /= 1024;
    step += 1;
  }
  return `${Number.isInteger(left) ? left : left.toFixed(left < 10 ? 2 : 1)} ${BINARY[step]}`;
}

/** 14.2 MB/s, of bytes per second. */
export const perSecond = (bytes) => (known(bytes) ? scaled(bytes, 1000, "B/s") : NONE);

/** 12,345 or 0.0123: a figure without a unit. */
export function figure(value) {
  if (!known(value)) return NONE;
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const large = Math.abs(value) >= 1000;
  return large ? Math.round(value).toLocaleString("en") : digits(value);
}

/** +4.8 %, of a ratio's change. */
export const change = (share) => (known(share) ? `${share > 0 ? "+" : share < 0 ? "−" : ""}${(100 * Math.abs(share)).toFixed(1)} %` : NONE);

/** "low … high", one figure if both are written the same. */
export function range(interval, write) {
  if (!interval || !known(interval.low) || !known(interval.high)) return NONE;
  const [low, high] = [write(interval.low), write(interval.high)];
  return low === high ? low : `${low} … ${high}`;
}

/** A duration, in two units at most. */
export function age(s) {
  if (!known(s)) return NONE;
  const whole = Math.max(0, Math.floor(s));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${pad(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${pad(Math.floor((whole % 3600) / 60))} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** 21:04:09, local time. */
export function clock(time) {
  const at = new Date(time * 1000);
  return `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

/** With the date, unless it is today. */
export function moment(time) {
  const at = new Date(time * 1000);
  const today = at.toDateString() === new Date().toDateString();
  return today ? clock(time) : `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${clock(time)}`;
}

/** -3.1 dBm. */
export const dbm = (power) => (known(power) ? `${power.toFixed(1)} dBm` : NONE);

/** as0:2 as1:2, as the command line writes it. */
export function spread(homes) {
  const parts = Object.entries(homes ?? {}).map(([home, n]) => `${home}:${n}`);
  return parts.length ? parts.join(" ") : NONE;
}

/** "1 move", "3 moves". */
export const plural = (n, word, many = `${word}s`) => `${n} ${n === 1 ? word : many}`;

/** "1.84 times as fast", "as fast as before". */
export const speedup = (ratio) =>
  !known(ratio) ? NONE : Math.abs(ratio - 1) < 0.005 ? "as fast as before" : `${ratio.toFixed(2)} times as fast`;

function known(value) {
  return value !== null && value !== undefined && !Number.isNaN(value);
}

/** Three significant digits. */
function digits(value) {
  const whole = Math.abs(value);
  if (whole < 1e-6) return value.toFixed(12).replace(/\.?0+$/, ""); // String() would write an exponent
  return whole >= 100 ? value.toFixed(0) : whole >= 10 ? value.toFixed(1) : whole >= 1 ? value.toFixed(2) : String(Number(value.toPrecision(3)));
}

function pad(n) {
  return String(n).padStart(2, "0");
}
