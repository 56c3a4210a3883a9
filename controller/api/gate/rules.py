"""One table: the verb of each operation of the API. An operation that is not listed is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fastapi.routing import APIRoute
from starlette.routing import compile_path

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""
RULES: Mapping[str, str] = {
    "get_whoami": "self:read",
    "get_health": "fabric:read",
    "get_site": "fabric:read",
    "list_endpoints": "fabric:read",
    "list_aggregators": "fabric:read",
    "list_switches": "fabric:read",
    "get_optics": "fabric:read",
    "list_circuits": "fabric:read",
    "list_nodes": "fabric:read",
    "list_volumes": "volumes:read",
    "remove_data": "volumes:change",
    "list_containers": "jobs:read",
    "list_jobs": "jobs:read",
    "get_job": "jobs:read",
    "submit_job": "jobs:submit",
    "submit_jobs": "jobs:submit",
    "cancel_job": "jobs:change",
    "pause_job": "jobs:change",
    "resume_job": "jobs:change",
    "stream_job_logs": "logs:read",
    "prepare_exec": "jobs:exec",
    "stream_exec": "jobs:exec",
    "send_exec_input": "jobs:exec",
    "list_secrets": "secrets:list",
    "list_events": "events:read",
    "get_top": "live:read",
    "get_series": "live:read",
    "stream_events": "live:read",
    "list_power": "fabric:read",
    "get_power_series": "fabric:read",
    "trace_endpoint": "fabric:read",
    "list_transactions": "transactions:read",
    "get_allocation": "allocation:read",
    "put_allocation": "allocation:change",
    "export_events": "events:export",
    "list_images": "images:prepare",
    "prepare_image": "images:prepare",
    "get_preparation": "images:prepare",
    "make_plan": "plans:make",
    "apply_plan": "plans:apply",
    "begin_rollout": "plans:apply",
    "list_rollouts": "plans:make",
    "get_rollout": "plans:make",
    "abort_rollout": "plans:apply",
    "get_transaction": "transactions:read",
    "abort_transaction": "plans:apply",
    "attach_endpoint": "fabric:change",
    "list_quarantine": "fabric:read",
    "release_quarantine": "fabric:change",
    "repair_switch": "fabric:change",
    "accept_store": "fabric:change",
    "list_projects": "projects:read",
    "put_project": "people:manage",
    "list_tokens": "people:manage",
    "create_token": "people:manage",
    "revoke_token": "people:manage",
    "list_audit": "audit:read",
    "verify_audit": "audit:read",
    "get_metrics": "metrics:read",
    "get_usage": "usage:read",
    "list_measurements": "measurements:read",
    "get_measurement": "measurements:read",
    "start_measurement": "measurements:make",
    "import_measurement": "measurements:make",
    "cancel_measurement": "measurements:make",
    "remove_measurement": "measurements:make",
    "get_comms": "jobs:read",
    "list_checkpoints": "jobs:read",
    "get_checkpoint_advice": "jobs:read",
    "verify_checkpoints": "jobs:change",
    "drop_checkpoint": "jobs:change",
    "list_job_recoveries": "jobs:read",
    "get_recoveries": "recoveries:read",
    "list_drains": "fabric:read",
    "get_engine": "engine:read",
    "check_engine": "engine:read",
    "announce_allocation": "engine:announce",
    **{
        f"{verb}_{kind}": "fabric:change"
        for verb in ("drain", "undrain")
        for kind in ("node", "aggregator", "switch")
    },
    "predict_job": "predictions:make",
    "list_predictions": "jobs:read",
    "get_advice": "jobs:read",
}
PUBLIC: frozenset[str] = frozenset({"open_session", "close_session", "get_openapi", "get_alive"})
"""Operations that need no token: they reveal nothing, or check credentials themselves."""
CONTINUING: frozenset[str] = frozenset({"send_exec_input"})
"""Changes that are parts of one that was recorded before: paced as reads, not recorded again."""
BODY_BYTES = 16 * 2**10
"""Largest body of an operation that ``BODIES`` does not name."""
BODIES: Mapping[str, int] = {
    "open_session": 4 * 2**10,
    "submit_job": 256 * 2**10,
    "submit_jobs": 4 * 2**20,
    "put_allocation": 4 * 2**20,
    "apply_plan": 4 * 2**20,
    "begin_rollout": 4 * 2**20,
    "create_token": 64 * 2**10,
    "prepare_exec": 128 * 2**10,
    "send_exec_input": 72 * 2**10,
    "start_measurement": 256 * 2**10,
    "import_measurement": 8 * 2**20,
}
"""Largest bodies in bytes. An allocation and a plan name some ten thousand endpoints; a job has an
environment, a token a list of projects. The file of another tool has up to four million characters,
some of which JSON escapes."""


@dataclass(slots=True, frozen=True)
class Matched:
    """The operation of a request; public if ``verb`` is None."""

    name: str
    verb: str | None
    params: Mapping[str, str]


class RouteTable:
    """Finds the operation of a request before anything of it is read."""

    def __init__(self, routes: Iterable[tuple[str, APIRoute]]) -> None:
        """Take prefixes and routes. RuntimeError for a route without a rule."""
        self._routes = []
        for prefix, route in routes:
            if route.name not in RULES and route.name not in PUBLIC:
                raise RuntimeError(f"no rule says who may use {route.name} ({route.path})")
            pattern = compile_path(prefix + route.path)[0]
            self._routes.append((frozenset(route.methods or ()), pattern, route.name))

    def methods(self, path: str) -> frozenset[str]:
        """Return the methods that a path has."""
        return frozenset().union(*(m for m, pattern, _ in self._routes if pattern.match(path)))

    def largest_body(self, method: str, path: str) -> int:
        """Return the largest body in bytes that a request may have."""
        matched = self.find(method, path)
        return BODIES.get(matched.name, BODY_BYTES) if matched else BODY_BYTES

    def find(self, method: str, path: str) -> Matched | None:
        """Return the operation, None if this method and path have none."""
        for methods, pattern, name in self._routes:
            if method in methods and (found := pattern.match(path)):
                return Matched(name, RULES.get(name), found.groupdict())
        return None
