// The output of a job. A running job has one stream for all ranks; of an ended job the agents keep
// the output by rank.

import { lines, part } from "../api.js";

/** Parallel requests; the controller limits the streams of a token. */
const AT_ONCE = 4;

/**
 * Return the last lines of a job, {time?, rank?, text}, at most `tail` of each rank; with `search`
 * only lines that contain this text. Output that cannot be read is a line that says so.
 */
export async function lastLines(job, tail, search = "") {
  const query = { tail, search: search || null };
  if (!job.finished_at) return (await read(job, query)).map((line) => said(line));
  const ranks = job.ranks.length ? job.ranks.map((one) => one.rank) : Array.from({ length: job.count }, (_, rank) => rank);
  const found = ranks.map(() => []);
  let next = 0;
  async function work() {
    while (next < ranks.length) {
      const i = next;
      next += 1;
      found[i] = (await read(job, { ...query, rank: ranks[i] })).map((line) => said(line, ranks[i]));
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return found.flat();
}

/** The response is empty without output. */
const read = async (job, query) => (await lines(`/jobs/${part(job.name)}/logs`, query)) ?? [];

/** A line, or a problem document that ends the stream. */
const said = (line, rank) => (line.text === undefined ? { rank, text: line.detail ?? "" } : line);
