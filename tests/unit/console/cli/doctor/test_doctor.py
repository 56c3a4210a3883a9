from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from console.cli.doctor.finding import CheckResult
from console.cli.doctor.server import examine_server
from console.cli.main import main
from tests.parts.agent.sysfs import put, rdma_server

PFC = '{"prio_pfc": {"0": false, "3": true}}'
APP = '{"dscp_prio": [[26, 3], [46, 6]]}'
CGROUP2 = "30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw"
DOCKER = json.dumps(
    {"CDISpecDirs": ["/etc/cdi"], "Runtimes": {"runc": {}}, "SecurityOptions": ["name=userns"]}
)


class Tools:
    """Answers for dcb and docker."""

    def __init__(self, docker: str = DOCKER, pfc: str = PFC, app: str = APP) -> None:
        self.docker, self.pfc, self.app = docker, pfc, app

    def __call__(self, command: Sequence[str]) -> str:
        if command[0] == "docker":
            return self.docker
        return self.pfc if "pfc" in command else self.app


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A server that lacks nothing."""
    rdma_server(tmp_path)
    put(tmp_path / "proc/driver/nvidia/version", "NVRM version: NVIDIA 575.57")
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    put(tmp_path / "etc/cdi/nvidia.yaml", "kind: nvidia.com/gpu\ndevices: [{name: GPU-1}]")
    put(tmp_path / "proc/self/mountinfo", CGROUP2)
    put(tmp_path / "proc/77/comm", "dockerd")
    put(tmp_path / "proc/77/limits", "Max locked memory  unlimited unlimited bytes")
    return tmp_path


def by_name(root: Path, tools: Tools | None = None) -> dict[str, CheckResult]:
    return {finding.name: finding for finding in examine_server(root, tools or Tools())}


def test_a_good_server_lacks_nothing(good: Path) -> None:
    found = by_name(good)
    assert {name: f.found for name, f in found.items() if f.state != "ok"} == {}
    assert "3: 10.77.0.1" in found["GIDs of mlx5_0"].found
    assert found["PFC and DSCP of ens1f0"].found == "DSCP 26 to queue 3"


def test_every_lack_has_a_fix(tmp_path: Path) -> None:
    for finding in by_name(tmp_path, Tools("", "", "")).values():
        assert finding.state != "ok"
        assert finding.fix or finding.name == "GPU in containers"


def test_shared_rdma_namespaces_are_a_warning(good: Path) -> None:
    put(good / "sys/module/ib_core/parameters/netns_mode", "Y")
    found = by_name(good)["RDMA namespaces"]
    assert found.state == "warning"
    assert "rdma system set netns exclusive" in found.fix


@pytest.mark.parametrize(
    ("mounts", "word"),
    [
        (CGROUP2.replace("rw,nosuid", "ro,nosuid"), "mounted read-only"),
        ("30 25 0:26 / / rw - ext4 ext4 rw", "no hierarchy with a freezer"),
        (f"{CGROUP2}\n31 30 0:27 / /sys/fs/cgroup/freezer ro - cgroup c rw,freezer", "freezer is"),
    ],
)
def test_a_freezer_that_cannot_be_written_is_a_warning(good: Path, mounts: str, word: str) -> None:
    put(good / "proc/self/mountinfo", mounts)
    found = by_name(good)["freezer"]
    assert found.state == "warning"
    assert word in found.found


def test_a_small_mtu_is_a_warning(good: Path) -> None:
    put(good / "sys/class/net/ens1f0/mtu", "1500")
    assert by_name(good)["MTU of ens1f0"].state == "warning"
    assert by_name(good)["MTU of ens1f0v0"].state == "ok"


@pytest.mark.parametrize(
    ("pfc", "app", "word"),
    [
        ("", "", "no lossless queue"),
        (PFC, "{}", "no DSCP is mapped to it"),
        ("rubbish", "", "no loss"),
    ],
)
def test_lossy_roce_is_a_warning(good: Path, pfc: str, app: str, word: str) -> None:
    found = by_name(good, Tools(pfc=pfc, app=app))["PFC and DSCP of ens1f0"]
    assert found.state == "warning"
    assert word in found.found
    assert "dcb" in found.fix


def test_docker_that_may_not_pin_memory(good: Path) -> None:
    put(good / "proc/77/limits", "Max locked memory  65536 65536 bytes")
    found = by_name(good)["memlock"]
    assert found.state == "warning"
    assert "65536" in found.found


def test_without_cdi_the_nvidia_runtime_will_do(good: Path) -> None:
    legacy = json.dumps({"Runtimes": {"nvidia": {}}, "SecurityOptions": []})
    found = by_name(good, Tools(legacy))
    assert "nvidia-ctk cdi generate" in found["GPU in containers"].fix
    assert found["user namespace"].state == "warning"
    none = by_name(good, Tools("{}"))["GPU in containers"]
    assert none.found == "neither CDI by UUID nor the nvidia runtime"


def test_gids_without_an_address(good: Path) -> None:
    for index in (2, 3):
        put(good / f"sys/class/infiniband/mlx5_0/ports/1/gids/{index}", "::")
    assert by_name(good)["GIDs of mlx5_0"].state == "warning"


def test_the_verb_prints_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "-o", "json"])
    document = json.loads(capsys.readouterr().out)
    assert {"NVIDIA driver", "RDMA", "memlock"} <= {c["name"] for c in document["checks"]}
    assert all({"name", "state", "found", "fix"} == c.keys() for c in document["checks"])
