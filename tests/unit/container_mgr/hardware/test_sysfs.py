from __future__ import annotations

from pathlib import Path

import pytest

from container_mgr.hardware import rdma
from container_mgr.hardware import sysfs as hardware
from container_mgr.hardware.gpu_binding import cdi_devices
from container_mgr.hardware.inventory import Inventory
from container_mgr.hardware.rdma import RdmaBinding
from container_mgr.hardware.sysfs import Nic, RdmaDevice
from container_mgr.values import AgentError, Attach, Health, ServedEndpoint, ServerFacts
from tests.parts.agent.sysfs import put, rdma_server

FACTS = ServerFacts(8, 1 << 34)


def test_a_nic_and_its_rdma_device(tmp_path: Path) -> None:
    sysfs = rdma_server(tmp_path)
    assert hardware.nic("ens1f0", sysfs) == Nic(
        "ens1f0", 9000, "mlx5_core", "0000:c1:00.0", "", "mlx5_0"
    )
    virtual = hardware.nic("ens1f0v0", sysfs)
    assert virtual is not None
    assert (virtual.physical, virtual.rdma_device) == ("0000:c1:00.0", "mlx5_1")
    assert hardware.nic("none", sysfs) is None


def test_each_device_has_its_own_nic(tmp_path: Path) -> None:
    assert hardware.rdma_devices(rdma_server(tmp_path)) == [
        RdmaDevice("mlx5_0", "uverbs0", ("ens1f0",)),
        RdmaDevice("mlx5_1", "uverbs1", ("ens1f0v0",)),
    ]
    assert hardware.rdma_devices(tmp_path / "nothing") == []


def test_soft_roce_names_its_link(tmp_path: Path) -> None:
    put(tmp_path / "class/infiniband/rxe0/parent", "eth0")
    assert hardware.rdma_devices(tmp_path) == [RdmaDevice("rxe0", "", ("eth0",))]


@pytest.mark.parametrize(("ip", "index"), [("10.77.0.1", 3), ("10.77.0.9", None)])
def test_the_gid_of_an_address_is_the_roce_v2_one(
    tmp_path: Path, ip: str, index: int | None
) -> None:
    sysfs = rdma_server(tmp_path)
    assert hardware.gid_index(hardware.gids("mlx5_0", sysfs), ip) == index
    assert rdma.wait_for_gid("mlx5_0", ip, sysfs, wait_s=0.05) == index


def test_a_rank_gets_its_own_device_and_only_in_exclusive_mode(tmp_path: Path) -> None:
    own = Inventory(None, FACTS, sysfs=rdma_server(tmp_path / "a"))
    assert own.rdma("ens1f0v0") == RdmaBinding(
        "mlx5_1", ("infiniband/uverbs1", "infiniband/rdma_cm")
    )
    assert own.rdma("eth9") is None
    shared = Inventory(None, FACTS, sysfs=rdma_server(tmp_path / "b", exclusive=False))
    assert shared.rdma("ens1f0") is None
    assert hardware.exclusive_rdma(tmp_path / "nothing") is None


def test_a_device_is_moved_by_name_and_namespace() -> None:
    said: list[list[str]] = []

    def run(arguments: object) -> str:
        said.append(list(arguments))  # type: ignore[call-overload]
        return '[{"ifname": "mlx5_0"}]'

    rdma.move("mlx5_0", Path("/run/netns/ll-c-red-0-1"), run)
    assert said == [["dev", "set", "mlx5_0", "netns", "/run/netns/ll-c-red-0-1"]]


def test_devices_of_a_namespace_are_listed_in_exclusive_mode_only(tmp_path: Path) -> None:
    def run(arguments: object) -> str:
        return '[{"ifindex": 0, "ifname": "mlx5_0"}]'

    assert rdma.own_devices(run, rdma_server(tmp_path / "a")) == ["mlx5_0"]
    assert rdma.own_devices(run, rdma_server(tmp_path / "b", exclusive=False)) == []


def test_a_refusal_of_the_tool_is_an_error_with_its_message() -> None:
    with pytest.raises(AgentError) as refused:
        rdma.run_tool(["dev", "set", "ll-none-such", "netns", "/nowhere"])
    assert refused.value.code == "failed"
    assert refused.value.message


def test_a_dscp_is_shifted_past_the_ecn_bits(tmp_path: Path) -> None:
    put(tmp_path / "mlx5_0/ports/1/default_roce_tos", "0")
    rdma.set_dscp("mlx5_0", 26, tmp_path)
    assert (tmp_path / "mlx5_0/ports/1/default_roce_tos").read_text() == "104"


def test_cdi_files_of_both_formats_are_read_and_broken_ones_skipped(tmp_path: Path) -> None:
    put(tmp_path / "a.yaml", "kind: nvidia.com/gpu\ndevices: [{name: GPU-1}, {name: all}]")
    put(tmp_path / "b.json", '{"kind": "nvidia.com/gpu", "devices": [{"name": "GPU-2"}]}')
    put(tmp_path / "c.json", '{"kind": "vendor.com/nic", "devices": [{"name": "GPU-3"}]}')
    put(tmp_path / "d.json", "{")
    put(tmp_path / "e.yml", "[]")
    assert cdi_devices([str(tmp_path), str(tmp_path / "none")]) == {"GPU-1", "GPU-2", "all"}


def test_an_endpoints_nic_attaches_as_configured() -> None:
    served = {"gpu0": ServedEndpoint("gpu0", "ens1f0", attach=Attach.MACVLAN)}
    inventory = Inventory(served, FACTS)
    assert inventory.attach("gpu0") is Attach.MACVLAN
    assert inventory.attach("gpu1") is Attach.MOVE
    assert inventory.health({}) == [Health("gpu0")]
    assert inventory.health({"gpu0": False, "gpu5": True}) == [
        Health("gpu0", carrier=False),
        Health("gpu5", carrier=True),
    ]


def test_the_disk_of_a_directory_is_the_whole_disk(tmp_path: Path) -> None:
    number = tmp_path.stat().st_dev
    import os

    block = tmp_path / "sys/devices/virtio1/block/vda/vda1"
    put(block / "partition", "1")
    where = tmp_path / f"sys/dev/block/{os.major(number)}:{os.minor(number)}"
    where.parent.mkdir(parents=True)
    where.symlink_to(block)
    assert hardware.whole_disk(tmp_path, tmp_path / "sys") == "/dev/vda"
    assert hardware.whole_disk(tmp_path, tmp_path / "elsewhere") == ""
    assert hardware.whole_disk(tmp_path / "none", tmp_path / "sys") == ""
