"""Controls Polatis switches over NETCONF (port 830), based on the public YANG.

The list of pairs is keyed by ingress, so a merge would silently redirect a pair in use.
Makes are therefore written as ``create``, which the device refuses for an existing pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ocs_driver.address import OcsAddress
from ocs_driver.base import GROUP, OcsEvent, Pair
from ocs_driver.errors import OcsBadReply, OcsDenied, OcsError
from ocs_driver.light import finite, lit
from ocs_driver.linked import LinkedDriver
from ocs_driver.matrix import Identity
from ocs_driver.pairs import WirePair
from ocs_driver.polatis import xml
from ocs_driver.polatis.model import numbering
from ocs_driver.polatis.netconf_session import NetconfSession, NetconfTiming
from ocs_driver.tl1.session import Login


class PolatisNetconfDriver(LinkedDriver):
    """One Polatis switch on one NETCONF session."""

    default_port = 830
    pushes = True
    _session: NetconfSession

    def __init__(
        self,
        address: OcsAddress,
        login: Login,
        *,
        group: str = GROUP,
        timing: NetconfTiming | None = None,
    ) -> None:
        super().__init__(address, group)
        self._user = login.user
        self._session = NetconfSession(
            address.host,
            self._port,
            login,
            timing=timing,
            turns=self._turns,
            host_key=address.options.get("hostkey"),
            on_event=self._on_event,
            on_link=self._on_link,
        )

    @classmethod
    def from_address(
        cls, address: OcsAddress, password: str | None, group: str
    ) -> PolatisNetconfDriver:
        """Build a driver for ``polatis+netconf://user@host:port``. Raises OcsLogin."""
        return cls(address, Login.of(address, password), group=group)

    def _on_event(self, text: str) -> None:
        try:
            name, leaves = xml.parse_event(xml.parse(text))
        except OcsError:
            return
        if not name or leaves.get("username") == self._user:
            return
        kind, severity = xml.EVENTS[name]
        said = ", ".join(f"{key} {value}" for key, value in leaves.items() if value)
        obj = leaves.get("port-id") or leaves.get("error-code") or self.name
        self._feed.publish(OcsEvent(kind, obj, severity, f"{name}: {said}"))

    # -- reading -------------------------------------------------------------------------

    async def _identify(self) -> Identity:
        xml.pair_node(self._session.capabilities)
        leaves = xml.parse_leaves(await self._get(xml.SWITCH, "product-information"))
        model = xml.leaf(leaves, "model-name")
        return Identity(
            leaves.get("manufacturer", "Polatis"),
            model,
            xml.leaf(leaves, "serial-number"),
            leaves.get("firmware-version", ""),
            numbering(model),
        )

    async def _pairs(self) -> list[WirePair]:
        pairs = xml.parse_pairs(await self._get(xml.OPTICAL, "cross-connects"))
        light = await self._light() if pairs else {}
        return [self._judge_light(pair, light) for pair in pairs]

    async def _light(self) -> Mapping[str, float | None]:
        return self._powers(await self._get(xml.OPTICAL, "opm-power"))

    async def _leaves(self, port: str) -> bool:
        filter_ = xml.one_port(xml.OPTICAL, "opm-power", port)
        reply = xml.parse_data(await self._session.get(filter_), "opm-power")
        return self._powers(reply).get(port) is not None

    @staticmethod
    def _powers(reply: xml.Element) -> Mapping[str, float | None]:
        powers = xml.parse_ports(reply, "power")
        return {port: lit(finite(text)) for port, text in powers.items()}

    async def _failed_ports(self) -> frozenset[str]:
        states = xml.parse_ports(await self._get(xml.OPTICAL, "port-config"), "status")
        return frozenset(port for port, state in states.items() if state == "FAILED")

    async def _labels(self) -> Mapping[str, str]:
        return xml.parse_ports(await self._get(xml.OPTICAL, "port-config"), "label")

    async def _get(self, namespace: str, name: str) -> xml.Element:
        return xml.parse_data(await self._session.get(xml.subtree(namespace, name)), name)

    # -- changing ------------------------------------------------------------------------

    async def _connect(self, pairs: Sequence[Pair], timeout_s: float) -> list[OcsError | None]:
        return await self._edit(pairs, timeout_s, make=True)

    async def _disconnect(self, pairs: Sequence[Pair], timeout_s: float) -> list[OcsError | None]:
        return await self._edit(pairs, timeout_s, make=False)

    async def _edit(
        self, pairs: Sequence[Pair], timeout_s: float, *, make: bool
    ) -> list[OcsError | None]:
        """Send one edit; if it is refused, read the pairs and send the rest one by one."""
        refusal = await self._edit_some(pairs, timeout_s, make=make)
        if refusal is None or len(pairs) == 1:
            return [refusal] * len(pairs)
        there = set(xml.parse_pairs(await self._get(xml.OPTICAL, "cross-connects")))
        return [
            None if (pair in there) is make else await self._edit_some([pair], timeout_s, make=make)
            for pair in pairs
        ]

    async def _edit_some(
        self, pairs: Sequence[Pair], timeout_s: float, *, make: bool
    ) -> OcsError | None:
        node = xml.pair_node(self._session.capabilities)
        config = xml.edit(node, pairs if make else (), () if make else pairs)
        try:
            await self._session.edit(config, timeout_s)
        except (OcsBadReply, OcsDenied) as error:
            return error
        return None
