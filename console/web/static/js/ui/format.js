// Figures in readable form; units are those of the REST schema (bit/s, seconds, bytes).

export const NONE = "–";
const STEPS = ["", "k", "M", "G", "T"];

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
export const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

/** "1.84 times as fast", "as fast as before". */
export const speedup = (ratio) =>
  !known(ratio) ? NONE : Math.abs(ratio - 1) < 0.005 ? "as fast as before" : `${ratio.toFixed(2)} times as fast`;

function known(value) {
  return value !== null && value !== undefined && !Number.isNaN(value);
}

function pad(n) {
  return String(n).padStart(2, "0");
}
