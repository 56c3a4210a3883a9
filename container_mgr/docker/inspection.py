"""Reads the output of `docker inspect` for one of the agent's containers. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from agentlink.ranks import LABEL, RankKey
from agentlink.values import NicSpec, Record, Scope, VolumeMount
from container_mgr.values import MAX_TERM, Container

_STATES = {
    "created": "created",
    "running": "running",
    "restarting": "running",
    "paused": "paused",
    "removing": "exited",
    "exited": "exited",
    "dead": "exited",
}
_NEVER = "0001-01-01"


def is_ours(raw: Mapping[str, Any]) -> bool:
    """Return whether a container has an agent's labels."""
    return LABEL + "digest" in (raw["Config"].get("Labels") or {})


def container_of(raw: Mapping[str, Any]) -> Container:
    """Convert one inspection; the labels hold all that outlives the agent.

    Raises ValueError for a container that no agent made: an image can have our labels as well.
    """
    try:
        found = _read(raw)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"its labels are not an agent's: {error!r}") from error
    if raw["Name"] != f"/{found.key.container}":
        raise ValueError(f"its labels belong to {found.key.container}")
    if not 0 <= found.term <= MAX_TERM:
        raise ValueError(f"its term {found.term} is out of range")
    return found


def _read(raw: Mapping[str, Any]) -> Container:
    labels, state = raw["Config"]["Labels"], raw["State"]
    phase = _STATES[state["Status"]]
    share = labels[LABEL + "share"]
    return Container(
        id=raw["Id"],
        key=RankKey(
            labels[LABEL + "job"], int(labels[LABEL + "rank"]), int(labels[LABEL + "epoch"])
        ),
        endpoint=labels[LABEL + "endpoint"],
        digest=labels[LABEL + "digest"],
        nic=NicSpec(**json.loads(labels[LABEL + "nic"])),
        share=float(share) if share else None,
        state=phase,
        engine_paused=phase == "paused",
        pid=int(state.get("Pid") or 0),
        exit_code=int(state["ExitCode"]) if phase == "exited" else None,
        oom=bool(state.get("OOMKilled")),
        started_at=parse_time(state.get("StartedAt", "")),
        finished_at=parse_time(state.get("FinishedAt", "")) if phase == "exited" else None,
        share_applied=bool(raw["HostConfig"].get("CpuQuota")),
        log_path=raw.get("LogPath") or "",
        gpu_uuid=labels.get(LABEL + "gpu", ""),
        rdma_device=labels.get(LABEL + "rdma", ""),
        term=int(labels.get(LABEL + "term", "0")),
        volumes=tuple(
            VolumeMount(**{**mount, "scope": Scope(mount["scope"])})
            for mount in json.loads(labels.get(LABEL + "volumes", "[]"))
        ),
        record=Record(labels.get(LABEL + "record", Record.OFF)),
        refused=labels.get(LABEL + "refused", ""),
        profiler_port=int(labels.get(LABEL + "profiler", "0")),
        folder=labels.get(LABEL + "folder", ""),
        memory_bytes=int(raw["HostConfig"].get("Memory") or 0),
    )


def parse_time(text: str) -> float | None:
    """Convert Docker's RFC 3339 with nanoseconds to seconds since 1970; None for never."""
    if not text or text.startswith(_NEVER):
        return None
    # datetime accepts at most six decimals; Docker writes up to nine.
    whole, dot, rest = text.partition(".")
    digits = len(rest) - len(rest.lstrip("0123456789"))
    zone = rest[digits:] if dot else ""
    base = whole + zone if dot else whole
    fraction = float(f"0.{rest[:digits]}") if digits else 0.0
    return datetime.fromisoformat(base.replace("Z", "+00:00")).timestamp() + fraction
