"""Makes trees like /sys of a GPU server: two ConnectX ports, one with a virtual function."""

from __future__ import annotations

from pathlib import Path


def put(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def rdma_server(root: Path, *, exclusive: bool = True, mtu: int = 9000) -> Path:
    """Make /sys of a server: mlx5_0 on ens1f0, mlx5_1 on its virtual function ens1f0v0."""
    sysfs = root / "sys"
    for number, (device, nic, ip) in enumerate(
        [("mlx5_0", "ens1f0", "0a4d:0001"), ("mlx5_1", "ens1f0v0", "0a4d:0002")]
    ):
        pci = sysfs / f"devices/pci0000:00/0000:c1:00.{number}"
        put(pci / f"net/{nic}/mtu", str(mtu))
        (sysfs / "class/net").mkdir(parents=True, exist_ok=True)
        (sysfs / "class/net" / nic).symlink_to(pci / f"net/{nic}")
        (pci / f"net/{nic}/device").symlink_to(pci)
        driver = sysfs / "bus/pci/drivers/mlx5_core"
        driver.mkdir(parents=True, exist_ok=True)
        (pci / "driver").symlink_to(driver)
        put(sysfs / f"class/infiniband_verbs/uverbs{number}/ibdev", device)
        base = sysfs / "class/infiniband" / device
        base.mkdir(parents=True)
        (base / "device").symlink_to(pci)
        table = [
            ("fe80:0000:0000:0000:0e42:a1ff:fe00:0001", "IB/RoCE v1"),
            ("fe80:0000:0000:0000:0e42:a1ff:fe00:0001", "RoCE v2"),
            (f"0000:0000:0000:0000:0000:ffff:{ip}", "IB/RoCE v1"),
            (f"0000:0000:0000:0000:0000:ffff:{ip}", "RoCE v2"),
            ("0000:0000:0000:0000:0000:0000:0000:0000", ""),
        ]
        for index, (gid, kind) in enumerate(table):
            put(base / f"ports/1/gids/{index}", gid)
            if kind:
                put(base / f"ports/1/gid_attrs/types/{index}", kind)
                put(base / f"ports/1/gid_attrs/ndevs/{index}", nic)
    (sysfs / "devices/pci0000:00/0000:c1:00.1/physfn").symlink_to(
        sysfs / "devices/pci0000:00/0000:c1:00.0"
    )
    put(sysfs / "module/ib_core/parameters/netns_mode", "N" if exclusive else "Y")
    for module in ("ib_uverbs", "rdma_cm", "macvlan", "nvidia", "nvidia_uvm"):
        (sysfs / "module" / module).mkdir(parents=True)
    return sysfs
