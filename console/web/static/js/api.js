// The REST API over HTTP: JSON in, JSON out, every failure becomes a readable Problem.

const PREFIX = "/api/v1";
const TIMEOUT_MS = 30_000;
const CHANGE_TIMEOUT_MS = 90_000;

/** A problem document (RFC 9457) of the controller, or a substitute when it does not answer. */
export class Problem extends Error {
  constructor(status, document) {
    super(document.detail || `HTTP status ${status}`);
    this.status = status;
    this.code = document.code ?? "failed";
    this.object = document.object ?? "";
    this.hint = document.hint ?? "";
  }
}

/** Read a document; `query` entries that are null are left out. */
export const get = (path, query = {}) => ask("GET", path + search(query), undefined, TIMEOUT_MS);

/** Read a whole list, page by page; start over when it changes in between. */
export async function whole(path) {
  for (let tries = 0; ; tries++) {
    try {
      const first = await get(path);
      for (let next = first.next; next; ) {
        const page = await get(path, { cursor: next });
        first.items.push(...page.items);
        next = page.next;
      }
      return first;
    } catch (error) {
      if (error.code !== "conflict" || tries === 4) throw error;
    }
  }
}

/** Read JSON lines: a list of documents. */
export const lines = (path, query = {}) => ask("GET", path + search(query), undefined, TIMEOUT_MS, eachLine);

/** Read text as it is. */
export const text = (path, query = {}) => ask("GET", path + search(query), undefined, TIMEOUT_MS, (found) => found);

/** Request a change; `extra_s` extends the time limit. */
export const post = (path, body = undefined, extra_s = 0) =>
  ask("POST", path, body, CHANGE_TIMEOUT_MS + 1000 * extra_s);

/** Ask what a wanted state would change; changes nothing. */
export const rehearse = (path, body) => ask("PUT", `${path}?dry_run=true`, body, TIMEOUT_MS);

/** Delete an object. */
export const remove = (path) => ask("DELETE", path, undefined, TIMEOUT_MS);

/** Open the stream of server-sent events. */
export const stream = () => new EventSource(`${PREFIX}/stream`);

/** Encode an object's name for a path. */
export const part = (name) => encodeURIComponent(name);

async function ask(method, path, body, timeout, read = parsed) {
  const headers = { Accept: "application/json" };
  // Proves that the request comes from this origin: pages of other origins cannot set the header.
  if (method !== "GET") headers["X-Lightloom"] = "1";
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  let text;
  try {
    response = await fetch(PREFIX + path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(timeout),
    });
    text = await response.text();
  } catch (error) {
    const late = error.name === "TimeoutError";
    throw new Problem(0, {
      code: late ? "timeout" : "unavailable",
      detail: late ? "the controller did not answer in time" : "the controller does not answer",
      hint: "running jobs continue without it; this page tries again",
    });
  }
  if (!response.ok) throw new Problem(response.status, parsed(text) ?? { detail: response.statusText });
  const found = text ? read(text) : null;
  if (text && found === undefined) {
    throw new Problem(0, { detail: "the response is not from the controller", hint: "is there a proxy that requires a sign-in?" });
  }
  return found;
}

/** The document, undefined if it is not JSON. */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

const eachLine = (text) => text.split("\n").map(parsed).filter(Boolean);

function search(query) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}
