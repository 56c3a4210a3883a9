// Sums over the rows of a job's communication. Pure.

/** One row per operation: its share of the step, calls, time and bytes. */
export function operations(rows) {
  const found = new Map();
  for (const row of rows) {
    const sum = found.get(row.op) ?? { op: row.op, share: null, calls: 0, total_s: 0, bytes: 0, sizes: 0, exact: true };
    found.set(row.op, sum);
    if (row.share !== null) sum.share = (sum.share ?? 0) + row.share;
    sum.calls += row.calls;
    sum.total_s += row.total_s;
    sum.bytes += row.bytes * row.calls;
    sum.sizes += 1;
    sum.exact &&= row.exact;
  }
  return [...found.values()];
}

/** One row per size, in ascending order: calls, mean, least and most. */
export function bySize(rows) {
  const found = new Map();
  for (const row of rows) merge(found, row.bytes, { bytes: row.bytes }, row);
  return [...found.values()].map(mean).sort((one, other) => one.bytes - other.bytes);
}

/** The cells of the heat map, by "rank bytes". */
export function sizesByRank(rows) {
  const cells = new Map();
  for (const row of rows) if (row.rank !== null) merge(cells, `${row.rank} ${row.bytes}`, { rank: row.rank, bytes: row.bytes }, row);
  const ascending = (values) => [...new Set(values)].sort((one, other) => one - other);
  for (const [key, cell] of cells) cells.set(key, mean(cell));
  return { ranks: ascending(rows.map((row) => row.rank).filter((rank) => rank !== null)), sizes: ascending(rows.map((row) => row.bytes)), cells };
}

function merge(sums, key, about, row) {
  const sum = sums.get(key) ?? { ...about, calls: 0, weighted_s: 0, total_s: 0, min_s: Infinity, max_s: 0 };
  sums.set(key, sum);
  sum.calls += row.calls;
  sum.weighted_s += row.avg_s * row.calls;
  sum.total_s += row.total_s;
  sum.min_s = Math.min(sum.min_s, row.min_s);
  sum.max_s = Math.max(sum.max_s, row.max_s);
}

const mean = (sum) => ({ ...sum, avg_s: sum.calls ? sum.weighted_s / sum.calls : null });
