"""Implements a data plane of veth ends: one per optical port, in one network namespace.

A light path is an ingress filter that matches all frames and redirects them to the other
port's link, independent of addresses. A dark port's link is set down, so that the far end
loses its carrier like light. Links are looked up by name at every step, because endpoints
and their links appear and disappear.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from errno import EEXIST, EINVAL, ENODEV, ENOENT
from typing import Any

import structlog
from pyroute2 import IPRoute, NetlinkError, protocols
from pyroute2 import netns as namespaces

_log = structlog.get_logger(__name__)

FILTER_PRIORITY = 0x4C4C
"""Marks own filters; no other filter is touched."""

_INGRESS = 0xFFFF0000
_IFF_UP = 1
_MATCH_ALL = {
    "parent": _INGRESS,
    "prio": FILTER_PRIORITY,
    "protocol": protocols.ETH_P_ALL,
    "target": 0x10000,
    "keys": ["0x0/0x0+0"],
}


@dataclass(slots=True, frozen=True)
class _Link:
    index: int
    up: bool


class VethDataPlane:
    """``links`` maps a switch port to the name of its link in the namespace ``netns``.

    ``open`` moves the calling thread into the namespace permanently, so the data plane needs a
    dedicated thread. (pyroute2's NetNS would fork a helper and end it with SIGTERM, which a
    process with asyncio signal handlers mistakes for a SIGTERM to itself.)
    """

    def __init__(self, netns: str, links: Mapping[str, str]) -> None:
        self._namespace = netns
        self._links = dict(links)
        self._installed: dict[str, tuple[int, int]] = {}
        """Maps a port to its own and the other port's interface index, per installed filter."""
        self._netlink: Any = None
        self._synced: tuple[object, ...] = ()
        """What the last ``sync`` was asked for, and the links that it found."""
        self._missing: frozenset[str] = frozenset()
        """What it returned."""

    def open(self) -> None:
        """Enter the namespace, remove filters of an earlier run, make every port dark."""
        try:
            namespaces.setns(self._namespace, flags=0)
            self._netlink = IPRoute()
        except OSError as error:
            raise OSError(f"network namespace {self._namespace}: {error}") from None
        for link in self._present().values():
            self._remove_filter(link.index)
            self._set_up(link.index, up=False)

    def sync(self, paths: Mapping[str, str], carrier: Collection[str]) -> frozenset[str]:
        """See ``DataPlane.sync``: set links down first, then filters, then carrier.

        Cheap while nothing has changed: it is asked several times a second.
        """
        asked = (dict(paths), frozenset(carrier), socket.if_nameindex())
        if asked != self._synced:
            self._synced = ()
            present = self._present()
            self._missing = frozenset(self._links.keys() - present.keys())
            if self._sync(present, paths, carrier):
                self._synced = asked
        return self._missing

    def _sync(
        self, present: Mapping[str, _Link], paths: Mapping[str, str], carrier: Collection[str]
    ) -> bool:
        """Bring the ``present`` links in line; return whether every filter is installed."""
        wanted = {
            a: (present[a].index, present[b].index)
            for a, b in paths.items()
            if a in present and b in present
        }
        whole = {port for a, b in paths.items() if a in wanted for port in (a, b)}
        lit = whole & set(carrier)
        for port, indexes in list(self._installed.items()):
            if wanted.get(port) != indexes:
                if port in present and present[port].index == indexes[0]:
                    self._remove_filter(indexes[0])
                del self._installed[port]
        for port, link in present.items():
            if link.up and port not in lit:
                self._set_up(link.index, up=False)
        for port, indexes in wanted.items():
            if port not in self._installed and self._add_filter(*indexes):
                self._installed[port] = indexes
        for port in lit:
            if not present[port].up:
                self._set_up(present[port].index, up=True)
        return wanted.keys() <= self._installed.keys()

    def close(self) -> None:
        """Make every port dark and release the resources."""
        if self._netlink is None:
            return
        self.sync({}, ())
        self._netlink.close()
        self._netlink = None

    def _present(self) -> dict[str, _Link]:
        by_name = {
            message.get("ifname"): _Link(message["index"], bool(message["flags"] & _IFF_UP))
            for message in self._netlink.get_links()
        }
        return {port: by_name[name] for port, name in self._links.items() if name in by_name}

    def _set_up(self, index: int, *, up: bool) -> None:
        self._do(
            lambda: self._netlink.link("set", index=index, state="up" if up else "down"),
            {ENODEV},
        )

    def _remove_filter(self, index: int) -> None:
        # EINVAL: the link has no ingress qdisc, hence no own filter.
        self._do(
            lambda: self._netlink.tc("del-filter", "u32", index=index, handle=0, **_MATCH_ALL),
            {ENODEV, ENOENT, EINVAL},
        )

    def _add_filter(self, index: int, target: int) -> bool:
        redirect = {
            "kind": "mirred",
            "direction": "egress",
            "action": "redirect",
            "ifindex": target,
        }
        self._do(lambda: self._netlink.tc("add", "ingress", index=index), {EEXIST, ENODEV})
        return self._do(
            lambda: self._netlink.tc(
                "replace-filter",
                "u32",
                index=index,
                handle=0x80000001,
                action=[redirect],
                **_MATCH_ALL,
            ),
            {ENODEV, EINVAL},
        )

    @staticmethod
    def _do(call: Callable[[], object], expected: set[int]) -> bool:
        """Run a netlink request; return False for an error that a vanished link explains."""
        try:
            call()
        except NetlinkError as error:
            if error.code not in expected:
                raise
            _log.debug("netlink", error=str(error))
            return False
        return True
