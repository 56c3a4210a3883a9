from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentlink.values import Scope, VolumeMount
from container_mgr.docker.inspection import container_of, is_ours, parse_time
from tests.unit.container_mgr.specs import GOOD


def inspected(**state: Any) -> dict[str, Any]:
    return {
        "Id": "abc",
        "Name": "/ll-red-0-7",
        "Config": {"Labels": GOOD.labels("srv0", 3)},
        "State": {
            "Status": "running",
            "Pid": 42,
            "ExitCode": 0,
            "OOMKilled": False,
            "StartedAt": "2026-01-02T03:04:05.123456789Z",
            "FinishedAt": "0001-01-01T00:00:00Z",
        }
        | state,
        "HostConfig": {"CpuQuota": 0},
        "LogPath": "/x/abc-json.log",
    }


def test_a_rank_is_read_from_its_labels() -> None:
    found = container_of(inspected())
    assert (found.key, found.endpoint, found.nic) == (GOOD.key, GOOD.endpoint, GOOD.nic)
    assert found.share == GOOD.emulated_share
    assert found.digest == GOOD.digest()
    assert found.alive
    assert found.exit_code is None
    assert found.finished_at is None
    assert not found.share_applied


def test_a_restarted_agent_knows_a_containers_volumes() -> None:
    mounts = (
        VolumeMount("data", "/data", read_only=True),
        VolumeMount("scratch", "/s", scope=Scope.JOB, owner="vision.red", quota_bytes=7),
    )
    raw = inspected()
    raw["Config"]["Labels"] = replace(GOOD, volumes=mounts).labels("srv0", 3)
    assert container_of(raw).volumes == mounts
    del raw["Config"]["Labels"]["lightloom.volumes"]  # of an agent that knew none
    assert container_of(raw).volumes == ()
    raw["Config"]["Labels"]["lightloom.volumes"] = '[{"volume": "x"}]'
    with pytest.raises(ValueError, match="not an agent's"):
        container_of(raw)


def test_an_exit_is_reported_with_its_code() -> None:
    found = container_of(
        inspected(
            Status="exited", Pid=0, ExitCode=137, OOMKilled=True, FinishedAt="2026-01-02T03:05:05Z"
        )
    )
    assert (found.state, found.exit_code, found.oom) == ("exited", 137, True)
    assert found.finished_at == pytest.approx((found.started_at or 0) + 60 - 0.123456789)


@pytest.mark.parametrize(
    ("status", "state"), [("dead", "exited"), ("removing", "exited"), ("restarting", "running")]
)
def test_rare_states(status: str, state: str) -> None:
    assert container_of(inspected(Status=status)).state == state


def test_containers_without_our_labels_are_not_ours() -> None:
    raw = inspected()
    raw["Config"]["Labels"] = {"com.example": "x"}
    assert not is_ours(raw)
    raw["Config"]["Labels"] = None
    assert not is_ours(raw)


@pytest.mark.parametrize(
    "labels",
    [
        {"rank": "x"},
        {"rank": "9" * 5000},
        {"epoch": ""},
        {"term": str(2**63)},
        {"term": "-1"},
        {"nic": "{}"},
        {"nic": "["},
        {"nic": "5"},
        {"job": "blue"},
        {"share": "much"},
    ],
)
def test_a_container_with_invalid_labels_is_not_a_rank(labels: dict[str, str]) -> None:
    """An operator may run an image with our labels; the agent must still see its own ranks."""
    raw = inspected()
    raw["Config"]["Labels"] |= {f"lightloom.{name}": value for name, value in labels.items()}
    with pytest.raises(ValueError):
        container_of(raw)


def test_a_missing_label_is_an_error() -> None:
    raw = inspected()
    del raw["Config"]["Labels"]["lightloom.endpoint"]
    with pytest.raises(ValueError):
        container_of(raw)


def test_times_with_zones_and_nanoseconds() -> None:
    utc = parse_time("2026-01-02T03:04:05.5Z")
    assert utc == parse_time("2026-01-02T05:04:05.500000000+02:00")
    assert parse_time("2026-01-02T03:04:05Z") == pytest.approx((utc or 0) - 0.5)
    assert parse_time("0001-01-01T00:00:00Z") is None
    assert parse_time("") is None
