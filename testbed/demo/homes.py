"""Moves the idle rack's endpoints back to the homes of the site file, between two arms."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import uuid4

from testbed.demo.api import Controller, Document
from testbed.demo.errors import DemoError

COMMITTED_S = 120.0


def present(controller: Controller) -> dict[str, str]:
    """Return the homes of all endpoints that are lit."""
    return {e["name"]: e["home"] for e in controller.items("/endpoints") if e["home"]}


def restore(controller: Controller, homes: Mapping[str, str]) -> None:
    """Move every endpoint to its home in ``homes``, with an explicit plan."""
    endpoints = controller.get("/endpoints")
    now = {item["name"]: item["home"] for item in endpoints["items"]}
    moves = [
        {"endpoint": name, "from": now[name], "to": home}
        for name, home in homes.items()
        if now[name] != home
    ]
    if moves:
        site = controller.get("/site")["name"]
        carry_out(controller, homes_plan(site, endpoints["epoch"], moves, {**now, **homes}))


def homes_plan(
    site: str, epoch: int, moves: list[Document], homes_after: Mapping[str, str | None]
) -> Document:
    """Return a plan that only assigns endpoints to aggregators; it touches no job."""
    return {
        "id": uuid4().hex[:12],
        "epoch": epoch,
        "site": site,
        "moves": moves,
        "homes_after": dict(homes_after),
        "excess_span_before": 0,
        "excess_span_after": 0,
        "running_moves": 0,
        "jobs_paused": [],
        "paused_gpus": 0,
        "pause_gpu_seconds": 0.0,
        "bound": {"excess_span": 0, "running_moves": 0, "paused_gpus": 0},
        "optimal": False,
        "solver_seconds": 0.0,
    }


def carry_out(controller: Controller, plan: Document) -> Document:
    """Execute a plan and return its transaction. Raises DemoError(failed) without a commit."""
    done = controller.post("/transactions", {"plan": plan}, wait_s=COMMITTED_S)
    if done["state"] != "committed":
        raise DemoError(
            "failed",
            f"transaction {done['id']} ended {done['state']}: {done['error'] or done['result']}",
            object=f"transaction/{done['id']}",
            hint="see: lightloom get events",
        )
    return done
