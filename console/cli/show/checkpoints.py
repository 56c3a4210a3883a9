"""Shows a job's checkpoints, and how often it should write them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from base.figures import figure
from console.cli.show import output as out
from console.cli.show.text import NONE, age, names, percent, plural, size

Document = Mapping[str, Any]

STATES: Mapping[str, str] = {
    "partial": "not all ranks have written it",
    "written": "every rank has it on its own server",
    "protected": "copies or parities are apart: any one server may be lost",
    "persistent": "a store has it as well",
    "dropped": "not to be used",
}
MARK = "*"


def show_checkpoints(view: Document, *, wide: bool) -> None:
    """Print the steps, what their states mean, and why a newer one cannot be restored."""
    if not view["steps"]:
        out.message(f"job {view['job']} has written no step so far (rule {view['rule']})")
    else:
        _steps(view, wide)
    for line in remarks(view):
        out.line(line)


def _steps(view: Document, wide: bool) -> None:
    extra = ("SCHEME", "COMPLETE", "TOOK", "SLOWEST") if wide else ()
    rows = []
    for step in view["steps"]:
        marked = MARK if step["step"] == view["restore_step"] and step["restorable"] else ""
        cells: list[object] = [
            f"{step['step']}{marked}",
            step["epoch"],
            step["state"],
            parts_text(step),
            size(step["bytes"]),
            _ago(step["written_at"]),
            _after(step, "protected_at"),
            _after(step, "persistent_at"),
        ]
        if wide:
            cells += [
                step["scheme"],
                "yes" if step["complete"] else "no",
                _seconds(step["written_s_median"]),
                _seconds(step["written_s_max"]),
            ]
        rows.append([*cells, step["why"] or NONE])
    heads = ("STEP", "RUN", "STATE", "PARTS", "BYTES", "WRITTEN", "PROTECTED", "PERSISTENT")
    out.show_table((*heads, *extra, "REASON"), rows)
    if wide:
        out.line("")
        _parts(view)


def _parts(view: Document) -> None:
    out.show_table(
        ("STEP", "RANK", "ENDPOINT", "BYTES", "HELD-BY", "PARITY-BY", "STORED", "SUM", "REASON"),
        [
            (
                step["step"],
                part["rank"],
                part["endpoint"] or NONE,
                size(part["bytes"]),
                names(part["held_by"]),
                names(part["parity_by"]),
                "yes" if part["stored"] else "no",
                {True: "ok", False: "damaged", None: NONE}[part["crc_ok"]],
                part["why"] or NONE,
            )
            for step in view["steps"]
            for part in step["parts"]
        ],
    )


def remarks(view: Document) -> Sequence[str]:
    """Return the legend, what a restart would load, and what is wrong, one a line."""
    found = []
    shown = {step["state"] for step in view["steps"]}
    found += [f"{state}: {text}" for state, text in STATES.items() if state in shown]
    if shown:
        found.insert(0, "")
    restored = view["restore_step"]
    loads = "starts at 0" if restored is None else f"loads step {restored} ({MARK})"
    found.append(f"a restart {loads}{_why(view['restore_why'])}")
    if view["unprotected_why"]:
        found.append(f"not protected: {view['unprotected_why']}")
    if not view["known"]:
        found.append("not every server has said what it holds so far")
    if view["silent"]:
        found.append(f"no answer from {names(view['silent'])}")
    if view["ignored"]:
        found.append(f"not a step by rule {view['rule']}: {'; '.join(view['ignored'])}")
        if view.get("naming"):  # older controllers do not say it
            found.append(f"rule {view['rule']} takes {view['naming']}")
    return found


def parts_text(step: Document) -> str:
    """Return how many of a step's parts can be had: ``4/4``."""
    had = sum(bool(p["held_by"] or p["parity_by"] or p["stored"]) for p in step["parts"])
    return f"{had}/{len(step['parts'])}"


def interval_lines(view: Document) -> Sequence[str]:
    """Return how often to write, and the figures behind it."""
    found = [f"job {view['job']}: {interval_text(view)}"]
    if view["interval_s"] is not None and view["why"]:
        found.append(f"  {view['why']}")
    figures = (
        ("one checkpoint holds training up", _seconds(view["cost_s"])),
        ("a step", _seconds(view["step_s"])),
        ("a restart", _seconds(view["restart_s"])),
        ("between failures of what it uses", age(view["mtbf_s"])),
        ("lost at the advised interval", _share(view["waste"])),
        ("lost at the present one", _share(view["waste_now"])),
    )
    found += [f"  {what}: {figure}" for what, figure in figures if figure != NONE]
    if view["bounded"]:
        found.append("  no failure was seen: the rate is the most that 95 % allow")
    return found


def interval_text(view: Document) -> str:
    """Return how often to write, in one line."""
    now = "" if view["now_s"] is None else f", now every {figure(view['now_s'])} s"
    if view["interval_s"] is None:
        return f"the interval of checkpoints is not known: {view['why'] or 'no figures'}{now}"
    steps = "" if view["steps"] is None else f" ({plural(view['steps'], 'step')})"
    return f"write a checkpoint every {figure(view['interval_s'])} s{steps}{now}"


def _why(text: str) -> str:
    return f": {text}" if text else ""


def _ago(moment: float | None) -> str:
    return NONE if moment is None else f"{age(time.time() - moment)} ago"


def _after(step: Document, key: str) -> str:
    """Return how long after it was written a step got to another state."""
    if step[key] is None:
        return NONE
    if step["written_at"] is None:
        return "yes"
    return f"after {figure(max(0.0, step[key] - step['written_at']))} s"


def _seconds(value: float | None) -> str:
    return NONE if value is None else f"{figure(value)} s"


def _share(value: float | None) -> str:
    return NONE if value is None else f"{percent(value)} of its time"
