"""Handles the NETCONF requests of a Polatis, based on its public YANG (optical-switch)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from testbed.ocs_emulator.matrix import MatrixSwitch
from testbed.ocs_emulator.model import Fault, ModelError
from testbed.ocs_emulator.netconf_xml import (
    OPTICAL,
    SWITCH,
    Edit,
    Element,
    RpcError,
    container,
    edits,
    filter_names,
    name,
    tree,
)

_TAGS = {
    Fault.NO_SUCH_PORT: "invalid-value",
    Fault.SAME_PORT: "invalid-value",
    Fault.BUSY: "in-use",
    Fault.NO_SUCH_CIRCUIT: "data-missing",
}


class NetconfDialect:
    """Serves cross-connects, port-config, opm-power, product-information, system-alarms."""

    def __init__(self, matrix: MatrixSwitch) -> None:
        self._matrix = matrix
        self._personality = matrix.model.personality
        self._subtrees: Mapping[str, Callable[[Element], Element]] = {
            "cross-connects": self._cross_connects,
            "port-config": self._port_config,
            "opm-power": self._opm_power,
            "product-information": self._product,
            "system-alarms": self._alarms,
            "system-config": self._system,
        }

    async def carry_out(self, verb: str, rpc: Element, user: str) -> list[Element] | None:
        """Execute one request: elements for ``data``, None for ``ok``. Raises RpcError."""
        wanted = " ".join(name(e) for e in filter_names(rpc))
        await self._matrix.switch.work(f"{verb} {wanted}", changes=verb == "edit-config")
        match verb:
            case "get" | "get-config":
                return self._get(rpc)
            case "edit-config":
                await self._edit(rpc, user)
            case "lock" | "unlock":
                pass
            case _:
                raise RpcError("operation-not-supported", verb)
        return None

    def _get(self, rpc: Element) -> list[Element]:
        wanted = filter_names(rpc)
        if not wanted:
            # A real switch fails on its openflow subtree when everything is requested.
            raise RpcError("operation-failed", "subtree openflow could not be read")
        return [self._subtrees[name(e)](e) for e in wanted if name(e) in self._subtrees]

    async def _edit(self, rpc: Element, user: str) -> None:
        changes, wipe = edits(rpc, self._personality.behaviour.pair_node)
        try:
            if wipe:
                await self._matrix.clear(user)
            await self._carry(changes, user)
        except ModelError as error:
            raise RpcError(_TAGS.get(error.fault, "operation-failed"), str(error)) from None

    async def _carry(self, changes: list[Edit], user: str) -> None:
        gone, made = [], []
        current = {c.a: (c.a, c.b) for c in self._matrix.circuits()}
        for edit in changes:
            standing = current.get(edit.ingress)
            if edit.operation in ("delete", "remove"):
                if standing is not None:
                    gone.append(standing)
                elif edit.operation == "delete":
                    raise RpcError("data-missing", f"ingress {edit.ingress}")
                continue
            pair = (edit.ingress, edit.egress)
            if standing is not None and edit.operation == "create":
                raise RpcError("data-exists", f"ingress {edit.ingress}")
            if standing is not None and standing != pair:
                # The list is keyed by ingress: a merge redirects the pair.
                gone.append(standing)
            made.append(pair)
        await self._matrix.remove(gone, user)
        self._matrix.connect(made, user)

    # -- subtrees --------------------------------------------------------------------

    def _cross_connects(self, wanted: Element) -> Element:
        del wanted
        node = self._personality.behaviour.pair_node
        pairs = [pair.split() for pair in self._matrix.switch.faults.ordered(
            [f"{c.a} {c.b}" for c in self._matrix.circuits()])]  # fmt: skip
        rows = [tree(OPTICAL, node, {"ingress": a, "egress": b}) for a, b in pairs]
        return container(OPTICAL, "cross-connects", rows)

    def _port_config(self, wanted: Element) -> Element:
        failed = self._matrix.model.failed
        ports = [
            tree(
                OPTICAL,
                "port",
                {
                    "port-id": port,
                    "status": "FAILED" if port in failed else "ENABLED",
                    "label": "",
                    "peer-port": "",
                },
            )
            for port in self._chosen(wanted)
        ]
        return container(OPTICAL, "port-config", ports)

    def _opm_power(self, wanted: Element) -> Element:
        ports = [
            tree(OPTICAL, "port", {"port-id": p, "power": f"{self._matrix.reading(p):.2f}"})
            for p in self._chosen(wanted)
        ]
        return container(OPTICAL, "opm-power", ports)

    def _chosen(self, wanted: Element) -> list[str]:
        """Return the ports that a filter selects by content match (RFC 6241 6.2.5), or all."""
        picked = {(e.text or "").strip() for e in wanted.iter("{*}port-id")}
        return [port for port in self._personality.ports if not picked or port in picked]

    def _product(self, wanted: Element) -> Element:
        del wanted
        p = self._personality
        return tree(
            SWITCH,
            "product-information",
            {
                "manufacturer": p.vendor,
                "model-name": p.model,
                "serial-number": p.serial,
                "firmware-version": p.firmware,
            },
        )

    def _alarms(self, wanted: Element) -> Element:
        del wanted
        rows = [
            tree(OPTICAL, "alarm", {"port-id": port, "alarm-type": a.cause, "severity": a.severity})
            for port, a in self._matrix.switch.alarms.standing.items()
        ]
        return container(OPTICAL, "system-alarms", rows)

    def _system(self, wanted: Element) -> Element:
        del wanted
        preserve = self._personality.behaviour.preserve_map
        mode = "MODE_PRESERVE" if preserve else "MODE_VOLATILE"
        return tree(OPTICAL, "system-config", {"startup-mode": mode})
