// Figures that a GPU reports; an emulated GPU reports none.

import { NONE, bytes } from "../ui/format.js";

const figure = (value, write) => (value === null || value === undefined ? NONE : write(value));

/** 61 °C. */
export const celsius = (degrees) => figure(degrees, (v) => `${Math.round(v)} °C`);

/** 350 W. */
export const watts = (power) => figure(power, (v) => `${Math.round(v)} W`);

const megahertz = (hz) => figure(hz, (v) => `${Math.round(v / 1e6)} MHz`);

/** Rows for the facts of a container or an endpoint. */
export function gpuFacts({ gpu, unfit }) {
  const rows = [unfit && ["unfit", unfit]];
  if (!gpu) return rows;
  return [
    ...rows,
    ["temperature", celsius(gpu.temperature_c)],
    ["power", watts(gpu.power_w)],
    ["GPU memory", figure(gpu.memory_total_bytes, bytes)],
    ["clocks", `${megahertz(gpu.sm_clock_hz)}, memory ${megahertz(gpu.memory_clock_hz)}`],
    ["memory errors", `${figure(gpu.ecc_corrected, String)} corrected, ${figure(gpu.ecc_uncorrected, String)} uncorrected`],
    gpu.xid !== null && ["last Xid", String(gpu.xid)],
    gpu.throttle_reasons.length && ["throttled by", gpu.throttle_reasons.join(" ")],
  ];
}
