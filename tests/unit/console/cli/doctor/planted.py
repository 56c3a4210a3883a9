"""A machine that lacks nothing, as a tree of files and answers; a test spoils one part of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from console.cli.doctor.access import MachineAccess
from console.cli.doctor.duty import read_duty
from console.cli.doctor.finding import CheckedRole, CheckResult, Duty
from console.cli.doctor.rows import examine_role
from pki.authority import Authority
from tests.parts.agent.sysfs import put, rdma_server

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DRIVER = "575.57.08"
MACS = {"ens1f0": "0c:42:a1:00:00:01", "ens1f0v0": "0c:42:a1:00:00:02"}
SITE = f"""
apiVersion: lightloom/v1
kind: Site
name: planted
subnet: 10.77.0.0/24
servers: [{{name: srv0, agent: "192.0.2.10:7701"}}]
endpoints:
  - {{name: gpu0, server: srv0, nic: ens1f0, ip: 10.77.0.1, mac: "{MACS["ens1f0"]}",
     gpu_uuid: GPU-0}}
  - {{name: gpu1, server: srv0, nic: ens1f0v0, ip: 10.77.0.2, mac: "{MACS["ens1f0v0"]}",
     gpu_uuid: GPU-1}}
aggregators: [{{name: as0, dpid: 0xa0}}, {{name: as1, dpid: 0xa1}}]
switches: [{{name: ocs0, url: "calient+tl1://lightloom@192.0.2.1:3082", password: {{env: PW}}}}]
fibers:
  - [gpu0, ocs0/1.1.1]
  - [gpu1, ocs0/1.1.2]
  - [as0/1, ocs0/2.1.1]
  - [as0/2, ocs0/2.1.2]
  - [as1/1, ocs0/2.2.1]
  - [as1/2, ocs0/2.2.2]
uplinks: [[as0/8, as1/8]]
homes: {{gpu0: as0, gpu1: as1}}
network: {{mtu: 9000, dscp: 26}}
projects: [{{name: lab, uid: 2000, gid: 2000}}]
controller: {{api: "192.0.2.20:8470", openflow: {{listen: "192.0.2.20:6653"}}}}
"""
VERSION = {
    "Version": "27.3.1",
    "ApiVersion": "1.47",
    "MinAPIVersion": "1.24",
    "Components": [{"Name": "Engine"}, {"Name": "containerd"}],
}
INFO = {
    "CDISpecDirs": ["/etc/cdi", "/var/run/cdi"],
    "Runtimes": {"runc": {}, "nvidia": {}},
    "SecurityOptions": ["name=apparmor", "name=seccomp,profile=builtin"],
    "CgroupDriver": "systemd",
    "CgroupVersion": "2",
    "Driver": "overlay2",
    "DriverStatus": [["Backing Filesystem", "extfs"]],
}
OPTIC = """Receiver signal average optical power : 0.5012 mW / -3.00 dBm
Laser output power : 0.8000 mW / -0.97 dBm
Laser rx power low alarm : Off
Laser tx power low alarm threshold : 0.1 mW / -10.00 dBm
Laser output power low alarm : Off
"""
TOOLS = {
    "timedatectl show": "yes\n",
    "nvidia-smi": "GPU-0, Disabled, Enabled, Enabled\nGPU-1, [N/A], Enabled, Enabled\n",
    "lspci": "c0:00.0 PCI bridge: x\n\tACSCtl: SrcValid- ReqRedir-\n"
    "c1:00.0 Ethernet: y\n\tACSCtl: SrcValid+ ReqRedir+\n",
    "ethtool -i": "driver: mlx5_core\nfirmware-version: 22.41.1000\n",
    "ethtool --show-fec": "Configured FEC encodings: RS\nActive FEC encoding: RS\n",
    "ethtool -m": OPTIC,
    "ethtool ens1f0": "\tSpeed: 100000Mb/s\n\tAuto-negotiation: off\n",
    "ip -j": json.dumps([{"vfinfo_list": [{"vf": 0, "trust": False}]}]),
    "nmcli": "ens1f0:unmanaged\nens1f0v0:unmanaged\neno1:connected\n",
    "dcb -j pfc": '{"prio_pfc": {"0": false, "3": true}}',
    "dcb -j app": '{"dscp_prio": [[26, 3], [46, 6]]}',
    "dcb dcbx": "host ieee \n",
    "systemctl show": "LimitNOFILE=65536\n",
}
TCP = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode"
)


class Planted:
    """The machine. Its answers are dictionaries that a test changes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tools = dict(TOOLS)
        self.version: dict[str, Any] = dict(VERSION)
        self.info: dict[str, Any] = dict(INFO)
        self.engine_error: OSError | None = None
        self.unreachable: set[str] = set()
        self.free = 2**40
        self.fsync = 0.001
        self.site = SITE
        self._server()
        self._controller()

    def put(self, path: str, text: str = "") -> None:
        """Write a file of the machine."""
        put(self.root / path, text)

    def process(self, number: int, name: str, space: int, command: str = "") -> None:
        """Add a process in a network namespace."""
        self.put(f"proc/{number}/comm", name)
        self.put(f"proc/{number}/cmdline", command)
        place = self.root / f"proc/{number}/ns/net"
        place.parent.mkdir(parents=True)
        place.symlink_to(f"net:[{space}]")

    def listen(self, port: int, inode: int) -> None:
        """Have a socket listen at a port."""
        line = f"   0: 00000000:{port:04X} 00000000:0000 0A 0:0 00:0 0 0 0 {inode} 1 0 100 0 0 10 0"
        self.put("proc/net/tcp", f"{TCP}\n{line}")

    def examine(self, role: CheckedRole) -> dict[str, CheckResult]:
        """Return the findings by name."""
        machine = self.access()
        return {found.name: found for found in examine_role(machine, self.duty(role))}

    def duty(self, role: CheckedRole) -> Duty:
        """Return what the site file assigns to this machine."""
        file = self.root / "site.yaml"
        file.write_text(self.site, encoding="utf-8")
        return read_duty(self.access(), role, file, None)

    def access(self) -> MachineAccess:
        """Return the ways to read it."""
        return MachineAccess(
            root=self.root,
            run=self._run,
            ask_engine=self._ask_engine,
            connect=self._connect,
            free_bytes=lambda _: self.free,
            fsync_s=lambda _: self.fsync,
            now=lambda: NOW,
        )

    def _run(self, command: Sequence[str]) -> str | None:
        asked = " ".join(command)
        return next((text for begin, text in self.tools.items() if asked.startswith(begin)), None)

    def _ask_engine(self, _: Path, path: str) -> bytes:
        if self.engine_error is not None:
            raise self.engine_error
        return json.dumps(self.version if path == "/version" else self.info).encode()

    def _connect(self, host: str, port: int) -> None:
        if f"{host}:{port}" in self.unreachable:
            raise OSError(113, "No route to host")

    def _server(self) -> None:
        rdma_server(self.root)
        physical = self.root / "sys/devices/pci0000:00/0000:c1:00.0"
        (physical / "virtfn0").symlink_to(physical.parent / "0000:c1:00.1")
        for number, (nic, mac) in enumerate(MACS.items()):
            base = f"sys/class/net/{nic}"
            for name, text in (
                *(("address", mac), ("flags", "0x1003"), ("carrier", "1")),
                *(("speed", "100000"), ("name_assign_type", "4"), ("ifindex", str(number + 2))),
                *(("ecn/roce_np/enable/3", "1"), ("ecn/roce_rp/enable/3", "1")),
            ):
                self.put(f"{base}/{name}", text)
            self.put(f"run/systemd/netif/links/{number + 2}", "ADMIN_STATE=unmanaged")
            self.put(f"sys/bus/pci/devices/0000:c1:00.{number}/numa_node", "1")
            gpu = f"0000:0{number}:00.0"
            self.put(f"sys/bus/pci/devices/{gpu}/numa_node", "1")
            self.put(
                f"proc/driver/nvidia/gpus/{gpu}/information",
                f"Model: \t H100\nGPU UUID: \t GPU-{number}\nDevice Minor: \t {number}",
            )
        (self.root / "run/NetworkManager").mkdir(parents=True)
        self.put("sys/module/nvidia_peermem/refcnt", "0")
        self.put("sys/module/apparmor/parameters/enabled", "Y")
        self.put("proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX x86_64  {DRIVER}  Sat")
        self.put("proc/driver/nvidia-nvswitch/devices/0000:05:00.0/information")
        self.put("proc/sys/kernel/osrelease", "6.8.0-41-generic")
        for node in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"):
            self.put(f"dev/{node}")
            (self.root / "dev" / node).chmod(0o666)
        self.cdi(DRIVER)
        self.process(1, "systemd", 1)
        self.process(77, "dockerd", 1)
        self.process(78, "nvidia-persiste", 1)
        self.process(79, "nv-fabricmanage", 1)
        self.put("proc/77/limits", "Max locked memory  unlimited unlimited bytes")
        self.put(
            "proc/self/mountinfo",
            "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
            "25 1 8:1 / / rw - ext4 /dev/sda rw",
        )
        Authority.create(self.root / "ca", "planted", now=NOW)
        authority = Authority.load(self.root / "ca")
        authority.issue_agent("srv0", self.root / "issued", now=NOW)
        self.put("etc/lightloom/agent.env", "LIGHTLOOM_AGENT_OPTIONS=--server srv0")
        self.take("issued", "etc/lightloom/tls")
        for folder in ("controller-tls", "openflow-tls"):
            authority.issue_controller(self.root / f"etc/lightloom/{folder}", now=NOW)

    def _controller(self) -> None:
        (self.root / "var/lib/lightloom/controller").mkdir(parents=True)
        self.put("proc/net/tcp", TCP)

    def take(self, issued: str, folder: str) -> None:
        """Put certificates in place of a daemon's."""
        shutil.rmtree(self.root / folder, ignore_errors=True)
        shutil.copytree(self.root / issued, self.root / folder)

    def cdi(self, driver: str, *names: str) -> None:
        """Write the CDI file of a driver, and the library that it mounts."""
        library = f"/usr/lib/x86_64-linux-gnu/libcuda.so.{driver}"
        spec = {
            "kind": "nvidia.com/gpu",
            "devices": [
                {"name": n, "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}
                for n in names or ("GPU-0", "GPU-1")
            ],
            "containerEdits": {"mounts": [{"hostPath": library, "containerPath": library}]},
        }
        self.put("etc/cdi/nvidia.yaml", json.dumps(spec))
        self.put(library.lstrip("/"))


Spoil = Callable[[Planted], None]
