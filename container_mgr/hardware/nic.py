"""Moves a data NIC between a server's network namespace and a container's.

While a NIC is in a container its alias names its owner (``lightloom SERVER NAME``). The kernel
keeps the alias with the interface, so a restarted agent finds every NIC without a file of its
own. ``/run/netns/ll-c-…`` keeps the container's namespace open, so the NIC (a veth, which ends
with its namespace) outlives the container.

Only threads enter a namespace, and each leaves it before it returns; the process stays in its own.

The RDMA device of a NIC moves with it. A macvlan is created for the container and deleted with
it; the interface below does not move.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path

import structlog
from pyroute2 import IPRoute, NetlinkError, netns

from agentlink.ranks import PREFIX
from agentlink.values import NicReport, NicSpec
from container_mgr.hardware import rdma, tcp
from container_mgr.values import NIC_IN_CONTAINER, AgentError, Attach

NETNS_DIR = Path("/run/netns")

_NAMESPACE_PREFIX = f"{PREFIX}c-"
_ALIAS = "lightloom"
_MACVLAN = "macvlan"
_ETH_P_ARP = 0x0806

_log = structlog.get_logger("container_mgr.hardware.nic")


@dataclass(slots=True, frozen=True)
class Nics:
    """The NICs of one server. ``home`` is its namespace's name, None for the machine's own.

    All methods block. Threads may call them at the same time for different namespaces.
    """

    server: str
    home: str | None

    def present(self, name: str) -> bool:
        """Return whether the NIC is in the server's namespace, and so is free."""
        with self._as_agent_error(name), entered(self._home_path()), IPRoute() as ip:
            return bool(ip.link_lookup(ifname=name))

    def bind(
        self,
        nic: NicSpec,
        namespace: str,
        pid: int,
        attach: Attach = Attach.MOVE,
        rdma_device: str = "",
    ) -> NicReport:
        """Move ``nic`` to the namespace of ``pid``, kept open as ``/run/netns/<namespace>``.

        ``rdma_device`` moves with it. Returns the NIC as it is then. Idempotent. Raises AgentError.
        """
        with self._as_agent_error(nic.name):
            self._attach(namespace, pid)
            if attach is Attach.MACVLAN:
                self._make_macvlan(nic, namespace)
            else:
                self._send(nic, namespace)
            if (
                rdma_device
                and not Path(f"/proc/{pid}/root/sys/class/infiniband/{rdma_device}").exists()
            ):
                with entered(self._home_path()):
                    rdma.move(rdma_device, NETNS_DIR / namespace)
            mtu = self._configure(nic, namespace)
        if not rdma_device:
            return NicReport(mtu)
        if nic.dscp is not None:
            rdma.set_dscp(rdma_device, nic.dscp)
        inside = Path(f"/proc/{pid}/root/sys")
        return NicReport(mtu, rdma_device, rdma.wait_for_gid(rdma_device, nic.ip, inside), nic.dscp)

    def announce(self, nic: NicSpec, namespace: str) -> None:
        """Announce the container's address (gratuitous ARP, RFC 5227 3).

        Packet switches that cache addresses need it: after a move the NIC is on another port.
        """
        mac, ip = bytes.fromhex(nic.mac.replace(":", "")), socket.inet_aton(nic.ip)
        ethernet = b"\xff" * 6 + mac + struct.pack("!H", _ETH_P_ARP)
        arp = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + mac + ip + bytes(6) + ip
        with (
            self._as_agent_error(nic.name),
            entered(NETNS_DIR / namespace),
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as wire,
        ):
            wire.bind((NIC_IN_CONTAINER, 0))
            wire.send(ethernet + arp)

    def release(self, namespace: str) -> None:
        """Move our NIC back from ``namespace`` and close that. Idempotent. Raises AgentError."""
        path = NETNS_DIR / namespace
        if not path.exists():
            return
        with self._as_agent_error(namespace):
            # A file without a namespace mounted on it is left over from a crash.
            mounted = path.stat().st_dev != path.parent.stat().st_dev
            names = self._take_back(path) if mounted else []
            with entered(self._home_path()), IPRoute() as ip:
                for name in names:
                    for index in ip.link_lookup(ifname=name):
                        # Only now: a NIC that did not get here must keep its owner.
                        ip.link("set", index=index, ifalias="")
                        ip.link("set", index=index, state="up")
            with suppress(FileNotFoundError):
                netns.remove(namespace)

    def namespaces(self) -> dict[str, str]:
        """Return the namespaces that have a NIC of this server, each with the NIC's name."""
        found: dict[str, str] = {}
        for path in sorted(NETNS_DIR.glob(f"{_NAMESPACE_PREFIX}*")):
            with suppress(OSError), entered(path), IPRoute() as ip:
                names = filter(None, map(self._owner, ip.get_links()))
                found.update((path.name, name) for name in names)
        return found

    @contextmanager
    def _as_agent_error(self, obj: str) -> Iterator[None]:
        """Convert errors of the kernel to AgentError."""
        try:
            yield
        except (OSError, NetlinkError) as error:
            raise AgentError(
                "failed",
                f"{self.server}/{obj}",
                f"the kernel refused to move the NIC: {error}",
                "does the server's network namespace exist? does the agent run as root?",
            ) from error

    def _attach(self, namespace: str, pid: int) -> None:
        path, theirs = NETNS_DIR / namespace, Path(f"/proc/{pid}/ns/net")
        if path.exists():
            if path.stat().st_ino == theirs.stat().st_ino:
                return
            self.release(namespace)
        try:
            netns.attach(namespace, pid)
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def _send(self, nic: NicSpec, namespace: str) -> None:
        with entered(self._home_path()), IPRoute() as ip, _open(NETNS_DIR / namespace) as target:
            indices = ip.link_lookup(ifname=nic.name)
            if not indices:
                return  # moved already, or missing, which _configure() reports
            ip.link("set", index=indices[0], state="down")
            ip.link("set", index=indices[0], ifalias=f"{_ALIAS} {self.server} {nic.name}")
            ip.link("set", index=indices[0], net_ns_fd=target)

    def _make_macvlan(self, nic: NicSpec, namespace: str) -> None:
        """Create a macvlan on the NIC, in bridge mode so that ranks on one NIC reach each other."""
        with entered(NETNS_DIR / namespace), IPRoute() as ip:
            if any(self._owner(link) == nic.name for link in ip.get_links()):
                return
        with entered(self._home_path()), IPRoute() as ip, _open(NETNS_DIR / namespace) as target:
            below = ip.link_lookup(ifname=nic.name)
            if not below:
                return  # missing, which _configure() reports
            name = f"{PREFIX}{nic.mac.replace(':', '')}"  # 15 characters, the longest name in Linux
            for left in ip.link_lookup(ifname=name):  # by an agent that died here
                ip.link("del", index=left)
            ip.link("set", index=below[0], state="up")
            ip.link(
                "add", ifname=name, kind=_MACVLAN, link=below[0], macvlan_mode="bridge",
                address=nic.mac,
            )  # fmt: skip
            index = ip.link_lookup(ifname=name)[0]
            ip.link("set", index=index, ifalias=f"{_ALIAS} {self.server} {nic.name}")
            ip.link("set", index=index, net_ns_fd=target)

    def _configure(self, nic: NicSpec, namespace: str) -> int:
        with entered(NETNS_DIR / namespace), IPRoute() as ip:
            index = next(
                (li["index"] for li in ip.get_links() if self._owner(li) == nic.name), None
            )
            if index is None:
                raise AgentError(
                    "not_found",
                    f"{self.server}/{nic.name}",
                    "the NIC is neither in the server's namespace nor in the container's",
                )
            tcp.set_congestion_control()
            link = ip.get_links(index)[0]
            if link.get_attr("IFLA_IFNAME") != NIC_IN_CONTAINER:
                ip.link("set", index=index, ifname=NIC_IN_CONTAINER)
            if link.get_attr("IFLA_ADDRESS") != nic.mac:
                ip.link("set", index=index, address=nic.mac)
            if nic.mtu is not None:
                ip.link("set", index=index, mtu=nic.mtu)
            if not ip.get_addr(index=index, address=nic.ip):
                ip.addr("add", index=index, address=nic.ip, prefixlen=nic.prefix_len)
            ip.link("set", index=ip.link_lookup(ifname="lo")[0], state="up")
            ip.link("set", index=index, state="up")
            tcp.tune_for_dark_time(ip, index, IPv4Interface(f"{nic.ip}/{nic.prefix_len}"))
            return int(ip.get_links(index)[0].get_attr("IFLA_MTU"))

    def _take_back(self, namespace: Path) -> list[str]:
        names = []
        with entered(namespace), IPRoute() as ip, _open(self._home_path()) as target:
            self._return_rdma()
            for link in ip.get_links():
                name = self._owner(link)
                if name and _kind(link) == _MACVLAN:
                    ip.link("del", index=link["index"])
                elif name:
                    ip.link("set", index=link["index"], state="down")
                    ip.link("set", index=link["index"], ifname=name)
                    ip.link("set", index=link["index"], net_ns_fd=target)
                    names.append(name)
        return names

    def _return_rdma(self) -> None:
        """Move RDMA devices back. The kernel returns one that stays when the namespace ends."""
        try:
            for device in rdma.own_devices():
                rdma.move(device, self._home_path())
        except AgentError as error:
            _log.warning("RDMA device not returned", reason=str(error))

    def _owner(self, link: object) -> str:
        """Return the NIC's name in the server's namespace when it is ours, else nothing."""
        alias = link.get_attr("IFLA_IFALIAS") or ""  # type: ignore[attr-defined]
        tag, _, rest = alias.partition(" ")
        server, _, name = rest.partition(" ")
        return name if tag == _ALIAS and server == self.server else ""

    def _home_path(self) -> Path:
        # /proc/self is the process's first thread, which never enters another namespace.
        return NETNS_DIR / self.home if self.home else Path("/proc/self/ns/net")


def _kind(link: object) -> str:
    info = link.get_attr("IFLA_LINKINFO")  # type: ignore[attr-defined]
    return str(info.get_attr("IFLA_INFO_KIND")) if info else ""


@contextmanager
def _open(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def entered(path: Path) -> Iterator[None]:
    """Run the body in the network namespace at ``path``, in this thread only."""
    with _open(Path("/proc/thread-self/ns/net")) as before, _open(path) as wanted:
        netns.setns(wanted)
        try:
            yield
        finally:
            netns.setns(before)
