// From the lists of the REST API to a model of the drawing: which endpoints, ports, fibers and
// circuits are visible, and what a plan changes among them. Pure.

/** Sites with more endpoints than this open collapsed. */
export const DETAIL_LIMIT = 64;

/**
 * The model of a detailed drawing.
 *
 * `keep(endpoint)` chooses the endpoints; ports, fibers and circuits follow from them. The circuits
 * of a plan are drawn over the existing ones.
 */
export function detail(lists, { keep = () => true, plan = null, uplinks = [] } = {}) {
  const endpoints = lists.endpoints.filter(keep);
  const names = new Set(endpoints.map((e) => e.name));
  const circuits = lists.circuits.filter((c) => names.has(c.endpoint));
  const changes = planned(plan, names);
  const wanted = portsInUse(endpoints, circuits, changes);
  const whole = endpoints.length === lists.endpoints.length;
  const aggregators = lists.aggregators
    .map((a) => ({ ...a, shown: a.ports.filter((p) => whole || wanted.has(`${a.name}/${p.port}`)) }))
    .filter((a) => a.shown.length);
  const switches = opticalPorts(endpoints, aggregators);
  const fans = lists.endpoints.length <= DETAIL_LIMIT && (switches.length > 1 || aggregators.length > 2);
  return {
    endpoints,
    servers: groups(endpoints, (e) => e.server),
    aggregators,
    switches,
    // Such a site needs more than straight lines from rank to rank (see layout.js).
    fans,
    longest: Math.max(endpoints.length, fans ? count(switches, (s) => s.right.length) : 0),
    circuits,
    changes,
    uplinks: uplinks.filter((u) => wanted.has(u.a) || whole),
  };
}

const count = (items, size) => items.reduce((sum, item) => sum + size(item), 0);

/** Circuits that a plan breaks and makes, as {key, switch, a, b, endpoint, verb}. */
export function planned(plan, names = null) {
  if (!plan) return [];
  const of = (verb) =>
    plan.circuits[verb]
      .filter((step) => !names || names.has(step.endpoint))
      .map((step) => ({ ...step, verb, key: `${verb}:${step.switch}/${step.a}-${step.b}` }));
  return [...of("break"), ...of("make")];
}

/** Where a plan takes an endpoint: {from, to}, by endpoint. */
export const moves = (plan) => new Map((plan?.moves ?? []).map((move) => [move.endpoint, move]));

function portsInUse(endpoints, circuits, changes) {
  const used = new Set(endpoints.map((e) => e.port).filter(Boolean));
  for (const c of circuits) if (c.aggregator) used.add(`${c.aggregator}/${c.aggregator_port}`);
  for (const c of changes) used.add(`${c.aggregator}/${c.aggregator_port}`);
  return used;
}

/** Optical ports by switch, in the order of the far ends of their fibers. */
function opticalPorts(endpoints, aggregators) {
  const found = new Map();
  const put = (side, fiber, far) => {
    const cut = fiber.indexOf("/");
    const [device, port] = [fiber.slice(0, cut), fiber.slice(cut + 1)];
    if (!found.has(device)) found.set(device, { name: device, left: [], right: [] });
    found.get(device)[side].push({ id: fiber, port, far });
  };
  const direct = new Set(aggregators.map((a) => a.name));
  for (const e of endpoints) {
    if (!direct.has(e.fiber.split("/")[0])) put("left", e.fiber, e.name);
  }
  for (const a of aggregators) {
    for (const p of a.shown) if (p.kind === "fiber") put("right", p.far, `${a.name}/${p.port}`);
  }
  return [...found.values()];
}

/** Items by key, in the order of first occurrence. */
export function groups(items, key) {
  const found = new Map();
  for (const item of items) {
    const k = key(item);
    if (!found.has(k)) found.set(k, []);
    found.get(k).push(item);
  }
  return [...found].map(([name, members]) => ({ name, members }));
}

/**
 * The model of a collapsed drawing: one tile per aggregator or server with the number of endpoints
 * of each job. The largest shares come first; `rest` counts those beyond `slices`.
 */
export function tiles(lists, by, slices = 6) {
  const key = by === "server" ? (e) => e.server : (e) => e.home ?? "dark";
  const found = groups(lists.endpoints, key);
  if (by !== "server") {
    const there = new Set(found.map((group) => group.name));
    for (const a of lists.aggregators) if (!there.has(a.name)) found.push({ name: a.name, members: [] });
  }
  const aggregators = new Map(lists.aggregators.map((a) => [a.name, a]));
  return found
    .map(({ name, members }) => tile(name, members, by === "server" ? null : aggregators.get(name), slices))
    .sort((one, other) => one.name.localeCompare(other.name, undefined, { numeric: true }));
}

const FAULTS = new Set(["quarantined", "unreachable", "lost"]);

/** Whether an endpoint is out of use by a fault; not one that an operator keeps out of use. */
export const isFault = (e) => FAULTS.has(e.state);

function tile(name, members, aggregator, slices) {
  const counts = new Map();
  const faults = members.filter(isFault).length;
  for (const e of members) if (e.job) counts.set(e.job, (counts.get(e.job) ?? 0) + 1);
  const shares = [...counts].sort((one, other) => other[1] - one[1]);
  return {
    name,
    size: aggregator ? aggregator.size : members.length,
    used: members.length,
    busy: members.filter((e) => e.job).length,
    moving: members.some((e) => e.state === "moving"),
    faults,
    shares: shares.slice(0, slices),
    rest: shares.slice(slices).reduce((sum, [, n]) => sum + n, 0),
    transit: aggregator !== null && aggregator !== undefined && members.length === 0 && aggregator.ports.every((p) => p.kind === "uplink"),
    connected: aggregator ? aggregator.connected : true,
  };
}

/** Number of circuits of one aggregator or server, by optical switch. */
export function lightOf(endpoints, by, name) {
  const counts = new Map();
  for (const e of endpoints) {
    if ((by === "server" ? e.server : e.home) !== name) continue;
    const device = e.fiber.split("/")[0];
    counts.set(device, (counts.get(device) ?? 0) + 1);
  }
  return counts;
}

/** Load of an aggregator's busiest uplink, 0 to 1; null when unknown. */
export function uplinkLoads(uplinks, links) {
  const loads = new Map();
  for (const uplink of uplinks) {
    const share = loadOf(links.get(uplink.a), uplink.capacity_bps);
    if (share === null) continue;
    for (const end of [uplink.a, uplink.b]) {
      const device = end.split("/")[0];
      loads.set(device, Math.max(loads.get(device) ?? 0, share));
    }
  }
  return loads;
}

/** Load of a link, 0 to 1: its busier direction divided by its capacity. */
export function loadOf(link, capacity) {
  if (!link || !capacity || (link.rx_bps === null && link.tx_bps === null)) return null;
  return Math.max(link.rx_bps ?? 0, link.tx_bps ?? 0) / capacity;
}
