"""Plans and transactions as text."""

from __future__ import annotations

from typing import Any

from base.figures import figure
from console.cli.show import output as out
from console.cli.show.text import plural

Document = dict[str, Any]
RUNNING = frozenset({"running", "rolling_back"})
"""States of a transaction that has not ended."""
ROLLING = frozenset({"running", "stopping"})
"""States of a rollout that has not ended."""


def print_plan(made: Document) -> None:
    """Print a plan's changes, cost and gain."""
    if not made["moves"]:
        left = made["excess_span_before"]
        out.line(
            "Nothing to gain: every job has the least possible span."
            if left == 0
            else f"Nothing to gain within these limits: excess span remains {left}."
        )
        rows = _left_alone(made)
        if rows:
            out.show_table(("", ""), rows, head=False)
        return
    if "id" in made:
        out.line(f"plan {made['id']} for site {made['site']} at epoch {made['epoch']}")
    out.show_table(
        ("ENDPOINT", "FROM", "TO"),
        [(m["endpoint"], m["from"] or "dark", m["to"] or "dark") for m in made["moves"]],
    )
    out.line("")
    rows = [
        ("excess span", f"{made['excess_span_before']} -> {made['excess_span_after']}"),
        ("moves", f"{len(made['moves'])} ({made['running_moves']} of running jobs)"),
        ("stalls", _stalls(made)),
        ("proven", proof(made)),
    ]
    if "circuits" in made:
        rows += _changes(made)
    if made.get("batches"):
        rows.append(("batches", _batches(made["batches"])))
    out.show_table(("", ""), rows, head=False)


def print_transaction(view: Document) -> None:
    """Print a transaction's progress, or how it ended."""
    state = view["state"]
    if state == "running":
        out.line(f"transaction/{view['id']} running: {view['phase']}")
        out.message(f"watch it: lightloom describe transaction {view['id']}")
        return
    dark = view.get("dark_time_s") or {}
    longest = f", longest dark time {max(dark.values()):.3f} s" if dark else ""
    epoch = view.get("epoch_after")
    at = f", epoch {epoch}" if epoch is not None else ""
    took = (view.get("finished_at") or view["started_at"]) - view["started_at"]
    out.line(
        f"transaction/{view['id']} {state}: {plural(len(view['moves']), 'move')} "
        f"in {took:.2f} s{longest}{at}"
    )


def _stalls(made: Document) -> str:
    jobs = made["jobs_paused"]
    if not jobs:
        return "none"
    cost = f"{plural(made['paused_gpus'], 'GPU')}, {figure(made['pause_gpu_seconds'])} GPU seconds"
    return f"{', '.join(jobs)} ({cost})"


def print_rollout(view: Document) -> None:
    """Print how far a rollout is, or how it ended."""
    state = view["state"]
    if state in ROLLING:
        out.line(f"rollout/{view['id']} {state}: {view['done']} of {view['batches']} batches done")
        out.message(f"follow it: lightloom describe rollout {view['id']}")
        return
    took = (view.get("finished_at") or view["started_at"]) - view["started_at"]
    out.line(
        f"rollout/{view['id']} {state}: {view['done']} of {view['batches']} batches"
        f" in {took:.2f} s; {view['result']}"
    )


def _batches(batches: Document) -> str:
    if batches["refused"]:
        return str(batches["refused"])
    proof = "no order has fewer"
    if batches["batches"] > batches["least"]:
        proof = f"at least {batches['least']} are needed"
    dark = f"at most {plural(batches['largest'], 'endpoint')} dark at once"
    often = [f"{job} {n} times" for job, n in batches["pauses"].items() if n > 1]
    paused = f"paused more than once: {', '.join(often)}" if often else "each job is paused once"
    return f"{batches['batches']}, {dark}; {proof}; {paused}"


def proof(made: Document) -> str:
    """Describe the proven bound of a plan."""
    if made["optimal"]:
        return f"no plan does better ({made['solver_seconds']:.2f} s)"
    bound = made["bound"]
    gaps = [
        _gap("excess span", made["excess_span_after"], bound["excess_span"]),
        _gap("paused GPUs", made["paused_gpus"], bound["paused_gpus"]),
        _gap("running moves", made["running_moves"], bound["running_moves"]),
    ]
    return f"{'; '.join(gaps)} ({made['solver_seconds']:.2f} s)"


def _gap(what: str, value: float, bound: float) -> str:
    """Describe how far a value is from its proven lower bound."""
    if value <= bound + 1e-6:
        return f"{what} at the least"
    if bound <= 0:
        return f"{what} {figure(value, 6)}, at least {figure(bound, 6)}"
    return f"{what} within {figure(100 * (value - bound) / bound, 2)} % of the least"


def _changes(made: Document) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for verb in ("break", "make"):
        for step in made["circuits"].get(verb) or []:
            port = f"{step['aggregator']}/{step['aggregator_port']}"
            rows.append(
                (verb, f"{step['switch']} {step['a']} - {step['b']} ({step['endpoint']} at {port})")
            )
    flows = made["flows"]
    rows.append(("flows", f"{flows['add']} added, {flows['delete']} deleted"))
    dark = f"{made['predicted_dark_time_s']:.3f} s predicted"
    if up_s := made.get("predicted_link_up_s"):
        dark += f", {figure(up_s)} s of it for link-up ({made['link_up_source']})"
    rows.append(("dark time", dark))
    rows += [
        (f"tolerance {budget['job']}", _budget(budget)) for budget in made.get("budgets") or []
    ]
    rows += [(f"gain {gain['job']}", _gain(gain)) for gain in made["predicted_gain"]]
    if made.get("worth"):
        rows.append(("worth it", f"{made['worth']['verdict']}: {made['worth']['reason']}"))
    if made.get("makes_room_for"):
        rows.append(("makes room for", f"job {made['makes_room_for']}"))
    return rows + _left_alone(made)


def _left_alone(made: Document) -> list[tuple[str, str]]:
    return [
        (f"left alone {entry['job']}", entry["reason"]) for entry in made.get("left_alone") or []
    ]


def _budget(budget: Document) -> str:
    """Describe whether a job tolerates its dark time."""
    limit = budget.get("tolerance_s")
    tolerated = "any time" if limit is None else f"{figure(limit)} s"
    text = f"dark {budget['dark_s']:.3f} s, tolerates {tolerated} ({budget['policy']})"
    why = budget.get("reason")
    return f"{text}; {budget['verdict']}: {why}" if why else text


def _gain(gain: Document) -> str:
    faster, high = gain.get("communication_speedup"), gain.get("step_speedup_high")
    text = (
        f"span {gain['span_before']} -> {gain['span_after']}, ring crossings "
        f"{gain['ring_crossings_before']} -> {gain['ring_crossings_after']}"
    )
    if faster:
        text += f", communication {faster:.2f} times as fast"
    if high is not None:
        low = gain["step_speedup_low"]
        span = f"{high:.2f}" if high - low < 1e-6 else f"{low:.2f} to {high:.2f}"
        saved = gain["saved_high_s"]
        text += f", a step {span} times as fast, saves at most {saved:.0f} s"
        if (left := gain.get("remaining_s")) is not None:
            text += f" if it runs for another {left:.0f} s"
    return text
