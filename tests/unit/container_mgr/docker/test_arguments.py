from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentlink.ranks import GPU, RankSpec
from agentlink.values import Device, RankLimits, Record, VolumeMount
from container_mgr.checkpoints.holder import Begun
from container_mgr.docker.arguments import (
    ContainerLimits,
    Host,
    ImageProgram,
    cgroup_parent,
    cpu_quota_us,
    create_arguments,
)
from container_mgr.hardware.gpu_binding import GpuBinding, choose
from container_mgr.hardware.rdma import RdmaBinding
from container_mgr.recordings.shown import Packages
from container_mgr.users import RankUser
from container_mgr.values import AgentError, BoundVolume
from tests.unit.container_mgr.specs import GOOD

HOST = Host(
    server="srv0",
    parent="/ll-rack",
    entry=Path("/run/x/entry"),
    limits=ContainerLimits(memory_bytes=1 << 30, pids=100, nic_wait_s=5),
    block_device="/dev/sda",
)
RDMA = RdmaBinding("mlx5_0", ("infiniband/uverbs0", "infiniband/rdma_cm"))
REAL = replace(GOOD, emulated_share=None, devices=(Device(GPU, "GPU-1"),))


def arguments(
    spec: RankSpec,
    *,
    host: Host = HOST,
    gpu: GpuBinding | None = None,
    rdma: RdmaBinding | None = None,
    volumes: Sequence[BoundVolume] = (),
    checkpoint: Begun | None = None,
    variables: Mapping[str, str] | None = None,
    **image: list[str],
) -> tuple[dict[str, Any], dict[str, Any]]:
    return create_arguments(
        spec,
        host=host,
        program=ImageProgram(
            "sha256:abc",
            image.get("entrypoint", []),
            image.get("command", []),
            image.get("declares", []),
            variables or {},
        ),
        rank_dir=Path("/run/x/ranks/ll-red-0-7"),
        term=3,
        user=RankUser(5000, 6000),
        volumes=volumes,
        checkpoint=checkpoint,
        gpu=gpu,
        rdma=rdma,
    )


def test_all_options_of_an_emulated_rank() -> None:
    container, host = arguments(GOOD)
    assert container == {
        "image": "sha256:abc",
        "name": "ll-red-0-7",
        "user": "5000:6000",
        "hostname": "red-0",
        "entrypoint": ["/bin/sh", "/lightloom/entry", "5", "0"],
        "command": ["python3", "-m", "testbed.trainer"],
        "environment": {
            "HOME": "/tmp",
            "USER": "u5000",
            "LOGNAME": "u5000",
            "TF_CONFIG": "{}",
            "NVIDIA_VISIBLE_DEVICES": "void",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        },
        "labels": {
            **GOOD.labels("srv0", 3),
            "lightloom.refused": "",
            "lightloom.profiler": "0",
        },
    }
    assert host == {
        "network_mode": "none",
        "init": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "read_only": True,
        "tmpfs": {
            "/tmp": "rw,nosuid,nodev,exec,mode=1777,size=536870912",
            "/var/tmp": "rw,nosuid,nodev,exec,mode=1777,size=536870912",
            "/run": "rw,nosuid,nodev,noexec,mode=1777,size=65536k",
            "/run/lightloom": "rw,nosuid,nodev,noexec,mode=1777,size=64k,nr_inodes=64",
        },
        "shm_size": 1 << 29,
        "cgroup_parent": "/ll-rack",
        "pids_limit": 100,
        "mem_limit": 1 << 30,
        "memswap_limit": 1 << 30,
        "binds": [
            "/run/x/entry:/lightloom/entry:ro",
            "/run/x/ranks/ll-red-0-7:/lightloom/rank:ro",
            "/run/x/ranks/ll-red-0-7/passwd:/etc/passwd:ro",
            "/run/x/ranks/ll-red-0-7/group:/etc/group:ro",
        ],
        "log_config": {"Type": "json-file", "Config": {"max-size": "16777216", "max-file": "4"}},
        "restart_policy": {"Name": "no"},
    }


def added(host: dict[str, Any]) -> dict[str, Any]:
    """Return the options that an emulated rank does not have."""
    _, plain = arguments(GOOD)
    return {key: value for key, value in host.items() if plain.get(key) != value}


def test_a_gpu_by_cdi() -> None:
    gpu = choose("GPU-1", cdi_devices=frozenset({"GPU-1", "GPU-2"}), minor=0)
    container, host = arguments(REAL, gpu=gpu)
    assert added(host) == {
        "device_requests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=GPU-1"]}]
    }
    assert container["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert container["entrypoint"][-1] == "1"


def test_a_gpu_by_the_nvidia_driver_and_its_nodes_by_name(tmp_path: Path) -> None:
    for name in ("nvidia3", "nvidiactl", "nvidia-uvm", "nvidia0"):
        (tmp_path / name).touch()
    gpu = choose("GPU-1", cdi_devices=frozenset(), minor=3, dev=tmp_path)
    container, host = arguments(REAL, gpu=gpu, host=replace(HOST, dev=tmp_path))
    assert added(host) == {
        "device_requests": [
            {
                "Driver": "nvidia",
                "DeviceIDs": ["GPU-1"],
                "Capabilities": [["gpu", "compute", "utility"]],
            }
        ],
        "devices": [
            f"{tmp_path}/{name}:/dev/{name}:rw" for name in ("nvidia3", "nvidiactl", "nvidia-uvm")
        ],
    }
    assert container["environment"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"


@pytest.mark.parametrize("uuid", ["", "GPU-1"])
def test_no_environment_chooses_gpus(uuid: str) -> None:
    """Not even a variable that passed the allow-list."""
    gpu = choose(uuid, cdi_devices=frozenset({uuid}), minor=0) if uuid else None
    spec = replace(REAL if uuid else GOOD, env={"NVIDIA_VISIBLE_DEVICES": "all"})
    container, _ = arguments(spec, gpu=gpu)
    assert container["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_rdma_adds_its_device_and_pinning_only() -> None:
    container, host = arguments(GOOD, rdma=RDMA)
    assert added(host) == {
        "cap_add": ["IPC_LOCK"],
        "ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}],
        "devices": [
            "/dev/infiniband/uverbs0:/dev/infiniband/uverbs0:rw",
            "/dev/infiniband/rdma_cm:/dev/infiniband/rdma_cm:rw",
        ],
    }
    assert container["labels"]["lightloom.rdma"] == "mlx5_0"


def test_users_stay_remapped_unless_the_nic_pins_memory() -> None:
    remapped = replace(HOST, remapped_users=True)
    assert "userns_mode" not in arguments(GOOD, host=remapped)[1]
    assert arguments(GOOD, host=remapped, rdma=RDMA)[1]["userns_mode"] == "host"
    assert "userns_mode" not in arguments(GOOD, rdma=RDMA)[1]


def test_a_jobs_limits_apply_to_its_containers() -> None:
    limits = RankLimits(
        cores=1.5, memory_bytes=1 << 28, pids=7, read_bps=1_000_000, write_bps=2_000_000
    )
    _, host = arguments(replace(REAL, limits=limits))
    assert host["cpu_quota"] == 75_000
    assert host["cpu_period"] == 50_000
    assert host["mem_limit"] == host["memswap_limit"] == 1 << 28
    assert host["pids_limit"] == 7
    assert host["device_read_bps"] == [{"Path": "/dev/sda", "Rate": 1_000_000}]
    assert host["device_write_bps"] == [{"Path": "/dev/sda", "Rate": 2_000_000}]


def test_a_stand_ins_share_does_not_apply_before_it_is_ready() -> None:
    _, host = arguments(replace(GOOD, limits=RankLimits(cores=2)))
    assert "cpu_quota" not in host


def test_the_command_runs_behind_the_entry() -> None:
    container, _ = arguments(GOOD, entrypoint=["/init"], command=["unused"])
    assert container["command"] == ["/init", "python3", "-m", "testbed.trainer"]


def test_without_a_command_the_images_command_runs() -> None:
    container, _ = arguments(replace(GOOD, command=()), command=["serve"])
    assert container["command"] == ["serve"]


def test_labels_identify_the_rank() -> None:
    container, _ = arguments(GOOD)
    labels = container["labels"]
    assert labels["lightloom.job"] == "red"
    assert labels["lightloom.rank"] == "0"
    assert labels["lightloom.epoch"] == "7"
    assert labels["lightloom.endpoint"] == "gpu0"
    assert labels["lightloom.server"] == "srv0"
    assert labels["lightloom.term"] == "3"


def test_different_specs_have_different_digests() -> None:
    assert GOOD.digest() == replace(GOOD).digest()
    assert GOOD.digest() != replace(GOOD, command=("true",)).digest()


@pytest.mark.parametrize(
    ("driver", "parent"), [("cgroupfs", "/ll-rack"), ("systemd", "ll-rack.slice")]
)
def test_the_parent_cgroup_is_written_for_the_driver(driver: str, parent: str) -> None:
    assert cgroup_parent("ll-rack", driver) == parent


def test_the_quota_is_never_below_the_kernels_minimum() -> None:
    assert cpu_quota_us(0.25) == 12_500
    assert cpu_quota_us(0.001) == 1000


def volume(name: str, path: str, disk: str = "/dev/sdb", **fields: Any) -> BoundVolume:
    return BoundVolume(VolumeMount(name, path, **fields), f"/srv/{name}", disk)


def test_a_volume_is_bound_alone() -> None:
    _, host = arguments(
        GOOD, volumes=[volume("data", "/data", read_only=True), volume("scratch", "/s")]
    )
    options = {"Propagation": "rprivate", "NonRecursive": True}
    assert added(host) == {
        "mounts": [
            {
                "Type": "bind",
                "Source": source,
                "Target": target,
                "ReadOnly": read_only,
                "BindOptions": options,
            }
            for source, target, read_only in (
                ("/srv/data", "/data", True),
                ("/srv/scratch", "/s", False),
            )
        ]
    }


def test_limits_hold_on_the_disks_of_volumes_and_the_lowest_counts() -> None:
    limits = RankLimits(read_bps=5_000_000)
    volumes = [
        volume("data", "/data", read_only=True, read_bps=2_000_000),
        volume("more", "/more", read_bps=9_000_000, write_bps=1_000_000),
        volume("nvme", "/nvme", disk="/dev/nvme0n1", write_bps=3_000_000),
        volume("nfs", "/nfs", disk=""),
    ]
    _, host = arguments(replace(GOOD, limits=limits), volumes=volumes)
    assert host["device_read_bps"] == [
        {"Path": "/dev/sda", "Rate": 5_000_000},
        {"Path": "/dev/sdb", "Rate": 2_000_000},
        {"Path": "/dev/nvme0n1", "Rate": 5_000_000},
    ]
    assert host["device_write_bps"] == [
        {"Path": "/dev/sdb", "Rate": 1_000_000},
        {"Path": "/dev/nvme0n1", "Rate": 3_000_000},
    ]


def test_volumes_of_an_image_are_memory_of_the_rank() -> None:
    declares = ["/cache/", "/data", "/tmp", "/var/lib/x"]
    _, host = arguments(GOOD, volumes=[volume("data", "/data")], declares=declares)
    memory = [mount for mount in host["mounts"] if mount["Type"] == "tmpfs"]
    assert [mount["Target"] for mount in memory] == ["/cache", "/var/lib/x"]
    assert {mount["TmpfsOptions"]["SizeBytes"] for mount in memory} == {1 << 29}


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/proc", "/proc/self", "/sys/x", "/dev", "/lightloom", "/lightloom/rank"),
        *("/run/lightloom", "/data/inside", "relative", "/a/../b", "/a,b", "//x", "/a\n"),
    ],
)
def test_an_image_whose_volumes_cannot_be_mounted_is_refused(path: str) -> None:
    with pytest.raises(AgentError, match="declares the volume") as refused:
        arguments(GOOD, volumes=[volume("data", "/data")], declares=[path])
    assert (refused.value.code, refused.value.obj) == ("invalid", GOOD.key.container)


def test_an_image_with_very_many_volumes_is_refused() -> None:
    with pytest.raises(AgentError, match="more than 16 volumes"):
        arguments(GOOD, declares=[f"/v{n}" for n in range(17)])


SHOWS = replace(
    HOST, packages=Packages(Path("/p/probe"), Path("/p/recorder"), "lib/x86_64/libll.so")
)


def test_a_recorded_rank_sees_the_recorder_and_has_a_place_to_write() -> None:
    plain, without = arguments(GOOD, host=SHOWS)
    container, host = arguments(replace(GOOD, record=Record.COUNTS), host=SHOWS)
    assert set(host["binds"]) - set(without["binds"]) == {"/p/recorder:/lightloom/recorder:ro"}
    assert host["tmpfs"].keys() - without["tmpfs"].keys() == {"/lightloom/record"}
    extra = container["environment"].items() - plain["environment"].items()
    assert dict(extra) == {
        "PYTHONPATH": "/lightloom/recorder/python",
        "NCCL_PROFILER_PLUGIN": "/lightloom/recorder/lib/x86_64/libll.so",
    }


def test_a_rank_of_a_measurement_sees_the_probe() -> None:
    _, without = arguments(GOOD, host=SHOWS)
    probing = replace(GOOD, probe=True, env={"PYTHONPATH": "/lightloom"})
    container, host = arguments(probing, host=SHOWS)
    assert set(host["binds"]) - set(without["binds"]) == {"/p/probe:/lightloom/probe:ro"}
    assert host["tmpfs"] == without["tmpfs"]
    assert container["environment"]["PYTHONPATH"] == "/lightloom"


def test_a_plugin_and_a_search_path_of_the_image_stay() -> None:
    image = {"PYTHONPATH": "/opt/lib:/opt/more", "NCCL_PROFILER_PLUGIN": "libown.so"}
    container, _ = arguments(
        replace(GOOD, record=Record.COUNTS, probe=True), host=SHOWS, variables=image
    )
    environment = container["environment"]
    assert environment["PYTHONPATH"] == ("/lightloom/recorder/python:/opt/lib:/opt/more")
    assert "NCCL_PROFILER_PLUGIN" not in environment
    assert "the image sets" in container["labels"]["lightloom.refused"]


def test_a_plugin_of_the_job_stays() -> None:
    own = {"NCCL_PROFILER_PLUGIN": "libown.so"}
    spec = replace(GOOD, record=Record.COUNTS, env=own)
    container, _ = arguments(spec, host=SHOWS)
    assert container["environment"]["NCCL_PROFILER_PLUGIN"] == "libown.so"
    assert "the job sets" in container["labels"]["lightloom.refused"]


def test_a_server_without_a_recorder_changes_no_variable() -> None:
    plain, without = arguments(GOOD)
    container, host = arguments(replace(GOOD, record=Record.FULL))
    assert container["environment"] == plain["environment"]
    assert host["binds"] == without["binds"]


def test_a_rank_sees_its_checkpoints_and_what_it_resumes_from() -> None:
    begun = Begun(Path("/c/live/files"), Path("/c/restore"), 20, 1 << 20)
    spec = replace(GOOD, env={"LIGHTLOOM_RESTORE_STEP": "7"})
    plain, _ = arguments(spec)
    assert "LIGHTLOOM_CHECKPOINT_DIR" not in plain["environment"]
    container, host = arguments(spec, checkpoint=begun)
    shown = {name: value for name, value in container["environment"].items() if "DIR" in name}
    assert shown["LIGHTLOOM_CHECKPOINT_DIR"] == "/lightloom/checkpoint/files"
    assert shown["LIGHTLOOM_RESTORE_DIR"] == "/lightloom/restore"
    assert container["environment"]["LIGHTLOOM_RESTORE_STEP"] == "20"
    assert [(m["Source"], m["Target"], m["ReadOnly"]) for m in host["mounts"]] == [
        ("/c/live", "/lightloom/checkpoint", False),
        ("/c/restore", "/lightloom/restore", True),
    ]


def test_checkpoints_in_memory_raise_the_containers_limit() -> None:
    _, before = arguments(GOOD)
    _, host = arguments(GOOD, checkpoint=Begun(Path("/c/live/files"), None, None, 1 << 20))
    assert host["mem_limit"] == host["memswap_limit"] == before["mem_limit"] + (1 << 20)
    assert host["shm_size"] == before["shm_size"]
    assert [m["Target"] for m in host["mounts"]] == ["/lightloom/checkpoint"]
