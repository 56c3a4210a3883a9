// The collapsed drawing as Cytoscape elements: one tile per aggregator or server, with a ring of its
// jobs; the border shows the load of its busiest uplink, lines join the aggregators of one job.

import { loadColour } from "../ui/palette.js";

const SLICES = 8;

/**
 * Return the elements of a collapsed drawing. `jobs` are those whose spread is drawn; `light`
 * counts the circuits from the selected tile to each optical switch.
 */
export function tileElements(tiles, { by, places, looks, theme, loads, jobs, switches, light }) {
  const found = new Map();
  for (const one of switches) {
    const id = `switch/${one.name}`;
    const data = { id, kind: "switches", name: one.name, label: `${one.name}\n${one.connected ? one.circuits : "away"}` };
    found.set(id, { group: "nodes", classes: one.connected ? "flat" : "flat away", data, position: places.get(id) });
  }
  const shown = new Set(tiles.map((tile) => tile.name));
  for (const tile of tiles) {
    const id = `tile/${tile.name}`;
    const slices = slicesOf(tile, looks, theme);
    const data = {
      id,
      kind: by === "server" ? "nodes" : "aggregators",
      name: tile.name,
      label: labelOf(tile),
      border: loadColour(loads.get(tile.name) ?? null, theme),
      jobs: tile.shares.map(([job]) => job),
      ...Object.fromEntries(slices.flatMap((slice, i) => [[`colour${i + 1}`, slice.colour], [`share${i + 1}`, slice.share]])),
    };
    const classes = ["tile", tile.transit ? "transit" : "", ...slices.map((_, i) => `slice${i + 1}`), tile.faults || !tile.connected ? "away" : "", tile.moving ? "moving" : ""];
    found.set(id, { group: "nodes", classes: classes.filter(Boolean).join(" "), data, position: places.get(id) });
  }
  for (const [name, n] of light.counts) {
    const id = `light/${light.of}/${name}`;
    const data = { id, source: `tile/${light.of}`, target: `switch/${name}`, colour: theme.flow, width: 1 + Math.min(7, n), label: "", kind: "switches", name };
    found.set(id, { group: "edges", classes: "light", data });
  }
  if (by !== "server") {
    for (const job of jobs) spreadLines(job, looks, shown, found, light.of);
  }
  return found;
}

function slicesOf(tile, looks, theme) {
  if (tile.transit) return [];
  const size = Math.max(1, tile.size);
  const slices = tile.shares.map(([job, n]) => ({ colour: looks.of(job).colour, share: (100 * n) / size }));
  if (tile.rest) slices.push({ colour: theme.muted, share: (100 * tile.rest) / size });
  const left = 100 - slices.reduce((sum, slice) => sum + slice.share, 0);
  if (left > 0.5) slices.push({ colour: theme.idle, share: left });
  return slices.slice(0, SLICES);
}

function labelOf(tile) {
  const marks = [tile.connected ? "" : "away", tile.faults ? `${tile.faults} faulty` : ""].filter(Boolean).join(", ");
  return marks ? `${tile.name}: ${marks}` : tile.name;
}

/** Lines from the aggregator with most of a job's endpoints to the others, or those at `only`. */
function spreadLines(job, looks, shown, found, only) {
  const homes = Object.entries(job.spread)
    .filter(([name]) => shown.has(name))
    .sort((one, other) => other[1] - one[1]);
  if (homes.length < 2) return;
  const [main] = homes[0];
  for (const [other, n] of homes.slice(1)) {
    if (only && only !== main && only !== other) continue;
    const id = `spread/${job.name}/${other}`;
    const data = {
      id,
      source: `tile/${main}`,
      target: `tile/${other}`,
      colour: looks.of(job.name).colour,
      width: 1.5 + Math.min(5, n / 2),
      label: "",
      kind: "jobs",
      name: job.name,
      job: job.name,
    };
    found.set(id, { group: "edges", classes: "spread", data });
  }
}
