"""Writes and parses the Polatis NETCONF subset, based on the public YANG. Pure.

The list of pairs is called ``pair`` since revision 2017-08-04 of optical-switch and
``pairs`` before; the capabilities tell which.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as Xml
from collections.abc import Iterable, Mapping, Sequence

from ocs_driver.base import EventKind, Pair
from ocs_driver.errors import OcsError
from ocs_driver.ports import is_number

Element = Xml.Element

OPTICAL = "http://www.polatis.com/yang/optical-switch"
SWITCH = "http://www.polatis.com/yang/polatis-switch"
_BASE = "urn:ietf:params:xml:ns:netconf:base:1.0"
_RENAMED = "2017-08-04"
_REVISION = re.compile(r"[?&]revision=(\d{4}-\d\d-\d\d)")
LONGEST = 2 * 1024 * 1024
"""Longest accepted reply in bytes: a hundred times the reply of the largest switch."""

EVENTS: Mapping[str, tuple[EventKind, str]] = {
    "port-power-alarm": (EventKind.ALARM, "critical"),
    "port-power-alarm-clear": (EventKind.CLEAR, "none"),
    "port-power-warn-alarm": (EventKind.ALARM, "minor"),
    "port-power-warn-alarm-clear": (EventKind.CLEAR, "none"),
    "system-error": (EventKind.ALARM, "major"),
    "aps-notification": (EventKind.REPORT, "none"),
    "activity-log-notification": (EventKind.CIRCUIT, "none"),
    "mask-notification": (EventKind.REPORT, "none"),
}
"""Kind and severity of the notifications of the stream ``Polatis``."""


def pair_node(capabilities: Iterable[str]) -> str:
    """Return the list node's name by YANG revision. Raises OcsError if this is not a Polatis."""
    for capability in capabilities:
        if capability.startswith(OPTICAL):
            match = _REVISION.search(capability)
            return "pairs" if match and match[1] < _RENAMED else "pair"
    raise OcsError("wrong_dialect", "hello", "the device has no Polatis optical-switch YANG")


def edit(node: str, make: Sequence[Pair], delete: Sequence[Pair]) -> str:
    """Write the config of an edit; makes use ``create``, so nothing is displaced silently."""
    root = Xml.Element(f"{{{_BASE}}}config")
    connects = Xml.SubElement(root, f"{{{OPTICAL}}}cross-connects")
    tag, operation = f"{{{OPTICAL}}}{node}", f"{{{_BASE}}}operation"
    for pair in delete:
        entry = Xml.SubElement(connects, tag, {operation: "delete"})
        Xml.SubElement(entry, f"{{{OPTICAL}}}ingress").text = pair.a
    for pair in make:
        entry = Xml.SubElement(connects, tag, {operation: "create"})
        Xml.SubElement(entry, f"{{{OPTICAL}}}ingress").text = pair.a
        Xml.SubElement(entry, f"{{{OPTICAL}}}egress").text = pair.b
    return Xml.tostring(root, encoding="unicode")


def subtree(namespace: str, name: str) -> str:
    """Write a subtree filter; whole trees are never requested (the openflow subtree fails)."""
    return f'<{name} xmlns="{namespace}"/>'


def one_port(namespace: str, name: str, port: str) -> str:
    """Write a subtree filter for one entry of a list of ports (content match, RFC 6241 6.2.5)."""
    return f'<{name} xmlns="{namespace}"><port><port-id>{port}</port-id></port></{name}>'


def parse(text: str) -> Xml.Element:
    """Parse a reply. Raises OcsError when it is not XML, too long, or declares entities."""
    if len(text) > LONGEST or "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise OcsError("bad_reply", "netconf", "the reply is too long or declares entities")
    try:
        return Xml.fromstring(text)  # noqa: S314 - declarations were refused above
    except Xml.ParseError as error:
        raise OcsError("bad_reply", "netconf", f"the reply is not XML: {error}") from None


def parse_pairs(root: Xml.Element) -> list[Pair]:
    """Parse the pairs of a reply, under either list name."""
    found = []
    for entry in root.iter():
        if _local(entry) not in ("pair", "pairs"):
            continue
        leaves = _children(entry)
        a, b = leaves.get("ingress", ""), leaves.get("egress", "")
        if is_number(a) and is_number(b):
            found.append(Pair(a, b))
    return found


def parse_ports(root: Xml.Element, leaf: str) -> dict[str, str]:
    """Parse one leaf of all ``port`` entries, by port number."""
    entries = (_children(entry) for entry in root.iter() if _local(entry) == "port")
    return {
        leaves["port-id"]: leaves.get(leaf, "")
        for leaves in entries
        if is_number(leaves.get("port-id", ""))
    }


def parse_leaves(root: Xml.Element) -> dict[str, str]:
    """Parse all leaves of a reply, by name."""
    return {_local(e): (e.text or "").strip() for e in root.iter() if len(e) == 0}


def parse_event(root: Xml.Element) -> tuple[str, dict[str, str]]:
    """Parse a notification: its name and leaves; the name is empty for an unknown kind."""
    for element in root.iter():
        if _local(element) in EVENTS:
            return _local(element), parse_leaves(element)
    return "", {}


def _local(element: Xml.Element) -> str:
    return element.tag.rpartition("}")[2]


def _children(entry: Xml.Element) -> dict[str, str]:
    return {_local(child): (child.text or "").strip() for child in entry}
