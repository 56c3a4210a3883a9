// Positions of everything drawn. A detailed drawing has three ranks: servers with their endpoints,
// optical switches, aggregators. Ranks are columns on a wide screen and rows on a tall one. With a
// single switch an optical port stands level with what its fiber leads to, so that only circuits
// cross. "Across" runs from rank to rank, "along" runs within a rank. Pure.

/**
 * Measures of a drawing: on a wide screen, the same with many endpoints, on a tall screen.
 *
 * `edge` is the distance from a port to the border of its aggregator, `uplink` from the fiber ports
 * to the uplink ports, `lane` from the border to the first lane of uplinks; `margin` is what boxes
 * and their labels take beyond the first rank and beyond both ends of a rank.
 */
const SHAPES = {
  wide: { endpoint: 60, port: 46, gap: 40, ranks: [0, 265, 545, 800], optical: 30, edge: 30, uplink: 46, lane: 20, margin: { across: 72, along: 45 } },
  dense: { endpoint: 33, port: 30, gap: 40, ranks: [0, 430, 760, 1090], optical: 22, stack: 52, edge: 30, uplink: 58, lane: 20, margin: { across: 144, along: 35 } },
  tall: { endpoint: 57, port: 38, gap: 24, ranks: [0, 190, 400, 590], optical: 40, edge: 26, uplink: 34, lane: 40, margin: { across: 56, along: 35 } },
};
const DENSE_FROM = 13;
/** Part of its length after which a curve turns. */
const LEAVE = 0.3;
/** Distance between lanes of uplinks, wide enough for a label. */
const LANE_GAP = 34;
/** Room beyond the last lane, for its labels. */
const LANE_END = 16;
/** Longer lines and wider gaps are hard to follow. */
const MOST_STRETCH = 2.4;
const MOST_SPREAD = 1.5;
const TILE = { x: 112, y: 108 };
const ROW_GAP = 26;

/** Which of the shapes fits so many endpoints in a rank. */
export const shapeOf = (count, tall) => (tall ? "tall" : count >= DENSE_FROM ? "dense" : "wide");

/**
 * Return {id: {x, y}} of everything in a detailed drawing. A model that fans out is stretched
 * between its ranks until it has the canvas's `aspect` (width over height).
 */
export function detailPositions(model, shapeName, aspect = 1) {
  const shape = SHAPES[shapeName];
  const tall = shapeName === "tall";
  const left = column(model.servers.map((s) => s.members.map((e) => e.name)), shape.endpoint, shape.gap);
  const right = model.fans
    ? fanned(model, shape, tall)
    : column(model.aggregators.map((a) => a.shown.map((p) => `${a.name}/${p.port}`)), shape.port, shape.gap + 8);
  const ports = optical(model.switches, new Map([...left, ...right]), shape);
  let { ranks } = shape;
  if (model.fans) {
    const length = Math.max(...[left, right, ports].map(extent));
    for (const one of [left, ports]) spread(one, length);
    const lanes = Math.max(0, ...lanesOf(model.uplinks, right)) + 1;
    ranks = stretched(shape, length + 2 * shape.margin.along, lanes, tall ? 1 / aspect : aspect);
  }
  const places = new Map();
  const put = (id, across, along) => places.set(id, tall ? { x: along, y: across } : { x: across, y: along });
  for (const [name, along] of left) put(`endpoint/${name}`, ranks[0], along);
  const beyond = new Set(model.fans ? uplinkPorts(model) : []);
  for (const [name, along] of right) put(`port/${name}`, ranks[3] + (beyond.has(name) ? shape.uplink : 0), along);
  const leftPorts = new Set(model.switches.flatMap((s) => s.left.map((p) => p.id)));
  for (const [id, along] of ports) put(`port/${id}`, leftPorts.has(id) ? ranks[1] : ranks[2], along);
  return places;
}

/**
 * Return how uplinks of a model that fans out go around the aggregators between their ends, as
 * {distances, weights} by "a-b"; an empty map for other models.
 */
export function uplinkRoutes(model, places, shapeName) {
  if (!model.fans) return new Map();
  const { edge, lane: first } = SHAPES[shapeName];
  const tall = shapeName === "tall";
  const level = new Map(uplinkPorts(model).map((port) => [port, places.get(`port/${port}`)[tall ? "x" : "y"]]));
  return new Map(lanesOf(model.uplinks, level).map((lane, i) => {
    const { a, b } = model.uplinks[i];
    return [`${a}-${b}`, around(places.get(`port/${a}`), places.get(`port/${b}`), edge + first + lane * LANE_GAP, tall)];
  }));
}

const uplinkPorts = (model) => model.aggregators.flatMap((a) => a.shown.filter((p) => p.kind === "uplink").map((p) => `${a.name}/${p.port}`));

/** Members one below the other with a gap after each group, centred on zero. */
function column(blocks, pitch, gap) {
  const found = new Map();
  let along = 0;
  for (const block of blocks) {
    for (const name of block) {
      found.set(name, along);
      along += pitch;
    }
    along += gap;
  }
  const middle = (along - pitch - gap) / 2;
  for (const [name, at] of found) found.set(name, at - middle);
  return found;
}

/**
 * Positions of the ports of aggregators in two columns, fibers and uplinks. The order of uplinks
 * keeps lanes from crossing: first those to earlier aggregators, the nearest first, then those to
 * later aggregators, the nearest last.
 */
function fanned(model, shape, tall) {
  const index = new Map(model.aggregators.map((a, i) => [a.name, i]));
  const order = new Map();
  model.uplinks.forEach(({ a, b }, n) => {
    const distance = index.get(device(b)) - index.get(device(a));
    for (const [port, steps] of [[a, distance], [b, -distance]]) {
      order.set(port, steps < 0 ? [0, -steps, -n] : [1, -steps, n]);
    }
  });
  const rows = model.aggregators.map((a) => {
    const names = (kind) => a.shown.filter((p) => (p.kind === "uplink") === (kind === "uplink")).map((p) => `${a.name}/${p.port}`);
    const known = (port) => order.get(port) ?? [0.5, 0, 0];
    const uplinks = names("uplink").sort((one, other) => compare(known(one), known(other)));
    const fibers = names("fiber");
    return { name: a.name, fibers, uplinks, slots: Math.max(fibers.length, uplinks.length) };
  });
  const slots = column(rows.map((row) => Array.from({ length: row.slots }, (_, i) => `${row.name} ${i}`)), shape.port, shape.gap + 8);
  const level = new Map();
  for (const row of rows) {
    const first = slots.get(`${row.name} 0`);
    const from = (count, share) => first + (row.slots - count) * share * shape.port;
    // On a tall screen the label is below the middle of the box.
    const starts = [[row.fibers, 0.5], [row.uplinks, tall ? 1 : 0.5]];
    for (const [names, share] of starts) names.forEach((name, i) => level.set(name, from(names.length, share) + i * shape.port));
  }
  return level;
}

/** The lane of each uplink, 0 next to the aggregators; of two that overlap the longer is outside. */
function lanesOf(uplinks, level) {
  const spans = uplinks.map(({ a, b }, i) => {
    const [from, to] = [level.get(a), level.get(b)].sort((one, other) => one - other);
    return { i, from, to };
  });
  const lanes = [];
  const placed = [];
  for (const span of [...spans].sort((one, other) => one.to - one.from - (other.to - other.from))) {
    const inside = placed.filter((one) => one.from <= span.to && span.from <= one.to);
    lanes[span.i] = Math.max(-1, ...inside.map((one) => lanes[one.i])) + 1;
    placed.push(span);
  }
  return lanes;
}

/** Positions of the ranks that make a drawing of this `length` `ratio` times as wide as long. */
function stretched({ ranks, margin, edge, uplink, lane }, length, lanes, ratio) {
  const fixed = margin.across + uplink + edge + lane + (lanes - 1) * LANE_GAP + LANE_END;
  const factor = (ratio * length - fixed) / ranks[3];
  return ranks.map((rank) => rank * Math.min(MOST_STRETCH, Math.max(1, factor)));
}

/** Pull a rank's members apart until they fill `length`, by MOST_SPREAD at most. */
function spread(level, length) {
  const factor = Math.min(MOST_SPREAD, length / (extent(level) || length));
  for (const [name, along] of level) level.set(name, along * factor);
}

function extent(level) {
  const all = [...level.values()];
  return all.length ? Math.max(...all) - Math.min(...all) : 0;
}

/** Optical ports: level with their far ends in a single switch, stacked evenly in several. */
function optical(switches, level, shape) {
  const found = new Map();
  if (switches.length === 1) {
    for (const port of [...switches[0].left, ...switches[0].right]) found.set(port.id, level.get(port.far) ?? 0);
    return found;
  }
  const pitch = shape.optical;
  const heights = switches.map((s) => Math.max(s.left.length, s.right.length) * pitch + (shape.stack ?? shape.gap * 1.5));
  let top = -heights.reduce((sum, one) => sum + one, 0) / 2;
  switches.forEach((one, i) => {
    const middle = top + heights[i] / 2;
    for (const side of [one.left, one.right]) {
      const ordered = [...side].sort((a, b) => (level.get(a.far) ?? 0) - (level.get(b.far) ?? 0));
      ordered.forEach((port, n) => found.set(port.id, middle + (n - (ordered.length - 1) / 2) * pitch));
    }
    top += heights[i];
  });
  return found;
}

/**
 * Return {id: {x, y}} of optical switches, transit aggregators and tiles, in rows of a grid of
 * about `aspect` (width over height).
 */
export function tilePositions(found, switches, aspect) {
  const places = new Map();
  const columns = Math.max(1, Math.ceil(Math.sqrt((found.length + switches.length) * aspect * (TILE.y / TILE.x))));
  let top = 0;
  const rows = (ids) => {
    ids.forEach((id, i) => {
      const inRow = Math.min(columns, ids.length);
      places.set(id, { x: ((i % columns) - (inRow - 1) / 2) * TILE.x, y: top + Math.floor(i / columns) * TILE.y });
    });
    if (ids.length) top += Math.ceil(ids.length / columns) * TILE.y + ROW_GAP;
  };
  rows(switches.map((one) => `switch/${one.name}`));
  rows(found.filter((tile) => tile.transit).map((tile) => `tile/${tile.name}`));
  rows(found.filter((tile) => !tile.transit).map((tile) => `tile/${tile.name}`));
  return places;
}

/** Control points of an S-shaped curve that leaves and enters along the ranks' axis. */
export function sCurve(from, to, tall) {
  const d = { x: to.x - from.x, y: to.y - from.y };
  return relative(d, tall
    ? [{ x: 0, y: d.y * LEAVE }, { x: d.x, y: d.y * (1 - LEAVE) }]
    : [{ x: d.x * LEAVE, y: 0 }, { x: d.x * (1 - LEAVE), y: d.y }]);
}

/** Corners of a path that leaves the ranks by `reach` and returns to another port. */
function around(from, to, reach, tall) {
  const d = { x: to.x - from.x, y: to.y - from.y };
  return relative(d, tall
    ? [{ x: 0, y: reach }, { x: d.x, y: reach }]
    : [{ x: reach, y: 0 }, { x: reach, y: d.y }]);
}

/** Points in Cytoscape's form: distances from the straight line `d`, and weights along it. */
function relative(d, points) {
  const square = d.x * d.x + d.y * d.y || 1;
  const length = Math.sqrt(square);
  return {
    distances: points.map((p) => (-p.x * d.y + p.y * d.x) / length),
    weights: points.map((p) => (p.x * d.x + p.y * d.y) / square),
  };
}

function compare(one, other) {
  const at = one.findIndex((part, i) => part !== other[i]);
  return at < 0 ? 0 : one[at] - other[at];
}

const device = (port) => port.split("/")[0];
