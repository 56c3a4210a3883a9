// Where things stand. A detailed drawing has three ranks: servers with their endpoints, optical
// switches, aggregators. An optical port stands level with what its fiber leads to, so that only
// circuits cross. Ranks are columns on a wide screen and rows on a tall one. Pure.

/** Measures of a drawing: on a wide screen, the same with many endpoints, on a tall screen. */
const SHAPES = {
  wide: { endpoint: 60, port: 46, gap: 40, ranks: [0, 265, 545, 800], optical: 30 },
  dense: { endpoint: 33, port: 30, gap: 40, ranks: [0, 430, 760, 1090], optical: 22, stack: 52 },
  tall: { endpoint: 57, port: 38, gap: 24, ranks: [0, 190, 400, 590], optical: 40 },
};
const DENSE_FROM = 13;
/** Part of the way that a curve goes straight on before it turns. */
const LEAVE = 0.3;
const TILE = { x: 112, y: 108 };
const ROW_GAP = 26;

/** Which of the shapes fits so many endpoints. */
export const shapeOf = (count, tall) => (tall ? "tall" : count >= DENSE_FROM ? "dense" : "wide");

/** Return {id: {x, y}} of everything in a detailed drawing. */
export function detailPositions(model, shapeName) {
  const shape = SHAPES[shapeName];
  const tall = shapeName === "tall";
  const { ranks } = shape;
  const level = new Map();
  const left = column(
    model.servers.map((s) => s.members.map((e) => e.name)),
    shape.endpoint,
    shape.gap,
  );
  const right = column(
    model.aggregators.map((a) => a.shown.map((p) => `${a.name}/${p.port}`)),
    shape.port,
    shape.gap + 8,
  );
  const places = new Map();
  const put = (id, across, along) => places.set(id, tall ? { x: along, y: across } : { x: across, y: along });
  for (const [name, along] of left) {
    level.set(name, along);
    put(`endpoint/${name}`, ranks[0], along);
  }
  for (const [name, along] of right) {
    level.set(name, along);
    put(`port/${name}`, ranks[3], along);
  }
  const leftPorts = new Set(model.switches.flatMap((s) => s.left.map((p) => p.id)));
  optical(model.switches, level, shape).forEach((along, id) => {
    put(`port/${id}`, leftPorts.has(id) ? ranks[1] : ranks[2], along);
  });
  return places;
}

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

/**
 * Control points of an S-shaped curve that leaves and enters along the ranks' axis, as Cytoscape
 * wants them: distances from the straight line, and weights along it.
 */
export function sCurve(from, to, tall) {
  const d = { x: to.x - from.x, y: to.y - from.y };
  const square = d.x * d.x + d.y * d.y || 1;
  const length = Math.sqrt(square);
  const points = tall
    ? [{ x: 0, y: d.y * LEAVE }, { x: d.x, y: d.y * (1 - LEAVE) }]
    : [{ x: d.x * LEAVE, y: 0 }, { x: d.x * (1 - LEAVE), y: d.y }];
  return {
    distances: points.map((p) => (-p.x * d.y + p.y * d.x) / length),
    weights: points.map((p) => (p.x * d.x + p.y * d.y) / square),
  };
}
