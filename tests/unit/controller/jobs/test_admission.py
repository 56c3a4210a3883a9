"""S5: admission refuses privileged options, and the agent's schema has no fields for them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from container_mgr.ranks import policy
from controller.schema.jobs import read_job
from protos import agent_pb2 as pb

ASKS: tuple[dict[str, Any], ...] = (
    {"privileged": True},
    {"mounts": ["/:/host"]},
    {"binds": ["/var/run/docker.sock:/var/run/docker.sock"]},
    {"volumes": {"/": "/host"}},
    {"cap_add": ["SYS_ADMIN"]},
    {"devices": ["/dev/nvidia1"]},
    {"gpus": "all"},
    {"network_mode": "host"},
    {"pid_mode": "host"},
    {"security_opt": ["seccomp=unconfined"]},
    {"user": "root"},
    {"host_config": {}},
)


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: next(iter(ask)))
def test_admission_refuses_unknown_fields(ask: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        read_job({"count": 1, **ask})


def test_the_agents_schema_has_exactly_these_fields() -> None:
    """Adding a field is a decision, not an accident."""
    assert set(pb.Rank.DESCRIPTOR.fields_by_name) == {
        *("job", "rank", "epoch", "endpoint", "image", "command", "env", "nic"),
        *(
            "gpu_uuid",
            "emulated_share",
            "limits",
            "volumes",
            "uid",
            "gid",
            "secrets",
            "record",
            "probe",
            "checkpoint",
            "devices",
        ),
    }
    assert set(pb.Nic.DESCRIPTOR.fields_by_name) == {
        *("name", "ip", "prefix_len", "mac", "mtu", "dscp")
    }
    assert set(pb.Limits.DESCRIPTOR.fields_by_name) == {
        *("cores", "memory_bytes", "pids", "read_bps", "write_bps")
    }
    assert set(pb.VolumeMount.DESCRIPTOR.fields_by_name) == {
        *("volume", "path", "read_only", "scope", "owner", "quota_bytes", "read_bps", "write_bps")
    }


@pytest.mark.parametrize(
    "name",
    [
        *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "CUDA_VISIBLE_DEVICES"),
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "DOCKER_HOST", "BASH_ENV"),
    ],
)
def test_the_agent_refuses_reserved_variables(name: str) -> None:
    assert not policy.environment_allowed(name)
