// The detailed drawing as Cytoscape elements: ids are those of the command line with their kind
// as prefix ("endpoint/gpu3", "port/as0/2"). Pure.

import { NONE, percent, rate } from "../ui/format.js";
import { loadColour } from "../ui/palette.js";
import { sCurve } from "./layout.js";
import { isFault, loadOf, moves } from "./model.js";

const THINNEST = 1.6;
const WIDEST = 7;
const WORTH_A_LABEL = 0.02;

/**
 * Return the elements of a detailed drawing.
 *
 * `context` has: places, routes, tall, dense, looks, theme, links (live), rows (live, by endpoint),
 * access_bps, plan, running (the running transaction or null), rates (whether links have labels).
 */
export function detailElements(model, context) {
  const found = new Map();
  const add = (group, id, data, classes, position) =>
    found.set(id, { group, classes: classes.filter(Boolean).join(" "), data: { id, ...data }, position });
  boxes(model, context, add);
  endpoints(model, context, add);
  ports(model, context, add);
  const state = changing(model, context);
  fibers(model, context, add, state);
  circuits(model, context, add, state);
  uplinks(model, context, add);
  return found;
}

function boxes(model, { nodes, switchesUp, tall, dense }, add) {
  for (const server of model.servers) {
    const away = nodes.get(server.name)?.reachable === false;
    add("nodes", `server/${server.name}`, { label: server.name, kind: "nodes", name: server.name }, ["server", dense && "dense", away && "away"]);
  }
  for (const one of model.switches) {
    const up = switchesUp.get(one.name);
    const label = up === false ? `${one.name} (away)` : one.name;
    add("nodes", `switch/${one.name}`, { label, kind: "switches", name: one.name }, ["switch", dense && "dense", up === false && "away"]);
  }
  for (const a of model.aggregators) {
    const label = a.connected ? a.name : `${a.name} (away)`;
    add("nodes", `aggregator/${a.name}`, { label, kind: "aggregators", name: a.name }, ["aggregator", dense && "dense", tall && "tall", !a.connected && "away"]);
  }
}

function endpoints(model, context, add) {
  const { looks, theme, places, plan, rows, tall, dense } = context;
  const going = moves(plan);
  for (const e of model.endpoints) {
    const look = looks.of(e.job);
    const data = {
      parent: `server/${e.server}`,
      kind: "endpoints",
      name: e.name,
      label: endpointLabel(e, rows.get(e.name), going.get(e.name), { tall, dense }),
      fill: look ? look.colour : theme.idle,
      ink: look ? look.text : theme.text,
      shape: look ? look.shape : "round-rectangle",
      width: tall ? 50 : dense ? 270 : 112,
      job: e.job ?? "",
    };
    const id = `endpoint/${e.name}`;
    add("nodes", id, data, ["endpoint", dense ? "dense" : "", look ? "" : "idle", e.home ? "" : "dark", isFault(e) && "fault", e.state === "moving" && "moving"], places.get(id));
  }
}

function endpointLabel(e, row, move, { tall, dense }) {
  const first = tall ? e.name : `${e.name}${e.job ? ` · ${e.job} ${e.rank}` : ""}`;
  const next = dense ? " · " : "\n";
  if (move) return `${first}${next}→ ${move.to ?? "dark"}`;
  if (e.state !== "busy" && e.state !== "idle") return `${first}${next}${e.state}`;
  if (!e.job) return `${first}${next}idle`;
  const busy = percent(row?.utilisation ?? e.utilisation);
  return `${first}${next}${tall ? `${e.job} ${e.rank}` : busy === NONE ? "running" : dense ? busy : `busy ${busy}`}`;
}

function ports(model, { places, dense }, add) {
  for (const one of model.switches) {
    for (const port of [...one.left, ...one.right]) {
      const id = `port/${port.id}`;
      add("nodes", id, { parent: `switch/${one.name}`, label: port.port, kind: "switches", name: one.name }, ["optical"], places.get(id));
    }
  }
  for (const a of model.aggregators) {
    for (const p of a.shown) {
      const id = `port/${a.name}/${p.port}`;
      const fault = p.quarantined;
      add("nodes", id, { parent: `aggregator/${a.name}`, label: String(p.port), kind: "aggregators", name: a.name }, ["port", dense && "dense", fault && "fault"], places.get(id));
    }
  }
}

/** Circuits that a plan or the running transaction breaks and makes, by "switch/a". */
function changing(model, { running }) {
  const light = running?.circuits ?? { break: [], make: [] };
  return {
    broken: new Set(model.changes.filter((c) => c.verb === "break").map((c) => `${c.switch}/${c.a}`)),
    leaving: new Set(light.break.map((c) => `${c.switch}/${c.a}`)),
    arriving: light.make,
    moving: new Set((running?.moves ?? []).map((move) => move.endpoint)),
  };
}

function fibers(model, context, add, state) {
  const { looks, theme, links, rows, access_bps: capacity, rates, tall } = context;
  for (const e of model.endpoints) {
    const row = rows.get(e.name);
    const share = loadOf(row, capacity);
    const look = looks.of(e.job);
    const target = `port/${e.fiber}`;
    const data = {
      source: `endpoint/${e.name}`,
      target,
      colour: look ? look.colour : theme.line,
      width: thickness(share),
      label: "",
      kind: "endpoints",
      name: e.name,
      job: e.job ?? "",
    };
    add("edges", `fiber/${e.name}`, data, ["fiber out", tall && "tall", state.moving.has(e.name) && "marching"]);
  }
  const holders = new Map(model.endpoints.filter((e) => e.port).map((e) => [e.port, e]));
  for (const a of model.aggregators) {
    for (const p of a.shown) {
      if (p.kind !== "fiber") continue;
      const at = `${a.name}/${p.port}`;
      const e = holders.get(at);
      const link = links.get(at);
      const share = loadOf(link, capacity);
      const look = looks.of(e?.job);
      const data = {
        source: `port/${p.far}`,
        target: `port/${at}`,
        colour: look ? look.colour : theme.line,
        width: e ? thickness(share) : 1,
        label: rates && e && (share ?? 0) >= WORTH_A_LABEL ? rate(Math.max(link.rx_bps ?? 0, link.tx_bps ?? 0)) : "",
        kind: "aggregators",
        name: a.name,
        job: e?.job ?? "",
      };
      add("edges", `fiber/${at}`, data, ["fiber in", tall && "tall", e && state.moving.has(e.name) && "marching"]);
    }
  }
}

function circuits(model, context, add, state) {
  const { looks, theme, rows, access_bps: capacity, places, tall } = context;
  const jobs = new Map(model.endpoints.map((e) => [e.name, e.job]));
  const curve = (a, b) => (places.has(a) && places.has(b) ? sCurve(places.get(a), places.get(b), tall) : null);
  const there = new Set();
  for (const c of model.circuits) {
    const [source, target] = [`port/${c.switch}/${c.a}`, `port/${c.switch}/${c.b}`];
    const shape = curve(source, target);
    if (!shape) continue;
    const key = `${c.switch}/${c.a}`;
    there.add(`${key}-${c.b}`);
    const job = jobs.get(c.endpoint);
    const look = looks.of(job);
    const data = {
      source,
      target,
      ...shape,
      colour: look ? look.colour : theme.line,
      width: thickness(loadOf(rows.get(c.endpoint), capacity)) + 0.6,
      label: "",
      kind: "circuits",
      name: c.name || `${c.switch}/${c.a}`,
      job: job ?? "",
    };
    const moving = state.leaving.has(key) || state.moving.has(c.endpoint);
    add("edges", `circuit/${key}-${c.b}`, data, ["circuit", state.broken.has(key) && "break", moving && "marching"]);
  }
  const make = (c, marching) => {
    const [source, target] = [`port/${c.switch}/${c.a}`, `port/${c.switch}/${c.b}`];
    const shape = curve(source, target);
    if (!shape || there.has(`${c.switch}/${c.a}-${c.b}`)) return;
    const data = { source, target, ...shape, colour: looks.of(jobs.get(c.endpoint))?.colour ?? theme.muted, width: 4, label: "", kind: "endpoints", name: c.endpoint, job: jobs.get(c.endpoint) ?? "" };
    add("edges", `make/${c.switch}/${c.a}-${c.b}`, data, ["make", marching && "marching"]);
  };
  for (const c of state.arriving) make(c, true);
  if (!state.arriving.length) for (const c of model.changes) if (c.verb === "make") make(c, false);
}

function uplinks(model, { links, theme, tall, dense, routes }, add) {
  for (const uplink of model.uplinks) {
    const route = routes.get(`${uplink.a}-${uplink.b}`);
    const share = loadOf(links.get(uplink.a), uplink.capacity_bps);
    const data = {
      source: `port/${uplink.a}`,
      target: `port/${uplink.b}`,
      colour: loadColour(share, theme),
      width: thickness(share) + 1,
      ...(route ?? { bulge: tall ? -70 : -90 }),
      label: share === null ? "" : percent(share),
      kind: "aggregators",
      name: uplink.a.split("/")[0],
      job: "",
    };
    add("edges", `uplink/${uplink.a}-${uplink.b}`, data, ["uplink", route ? "around" : "bulging", dense && "dense"]);
  }
}

function thickness(share) {
  return share === null ? THINNEST : THINNEST + Math.min(1, share) * (WIDEST - THINNEST);
}
