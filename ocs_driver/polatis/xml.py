"""Writes and parses the Polatis NETCONF subset, based on the public YANG. Pure.

The list of pairs is called ``pair`` since revision 2017-08-04 of optical-switch and
``pairs`` before; the capabilities show which.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as Xml
from collections.abc import Iterable, Mapping, Sequence

from ocs_driver.base import EventKind, Pair
from ocs_driver.errors import OcsBadReply, OcsError
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
    """Parse a message. Raises OcsBadReply when it is not XML, too long, or declares entities."""
    if len(text) > LONGEST or "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise OcsBadReply("netconf", "the reply is too long or declares entities")
    try:
        return Xml.fromstring(text)  # noqa: S314 - declarations were refused above
    except Xml.ParseError as error:
        raise OcsBadReply("netconf", f"the reply is not XML: {error}") from None


def parse_data(text: str, name: str) -> Xml.Element:
    """Parse a reply and return what it holds of the subtree ``name``, empty for ``<data/>``.

    Raises OcsBadReply without ``data``, with an error in place of it, and when ``data`` holds
    something else.
    """
    root = parse(text)
    for fault in root.iter():
        if _local(fault) == "rpc-error" and _children(fault).get("error-severity") != "warning":
            said = _children(fault).get("error-message") or "no message"
            raise OcsBadReply("netconf", f"the reply to {name} has an rpc-error: {said[:80]}")
    data = root.find(f"{{{_BASE}}}data")
    if data is None:
        raise OcsBadReply("netconf", f"the reply to {name} has no <data>")
    found = next((child for child in data if _local(child) == name), None)
    if found is not None:
        return found
    if len(data) or (data.text or "").strip():
        raise OcsBadReply("netconf", f"the reply has no <{name}> in <data>")
    return data


def check_done(text: str) -> None:
    """Raise OcsBadReply unless the reply to an edit has ``ok``."""
    if parse(text).find(f"{{{_BASE}}}ok") is None:
        raise OcsBadReply("netconf", "the reply to an edit has no <ok/>")


def parse_pairs(connects: Xml.Element) -> list[Pair]:
    """Parse the pairs of ``cross-connects``, under either list name. Raises OcsBadReply."""
    found = []
    for leaves in _entries(connects, "pair", "pairs"):
        a, b = leaves.get("ingress", ""), leaves.get("egress", "")
        if not is_number(a) or not is_number(b):
            raise OcsBadReply("netconf", f"a cross-connect has the ports {a[:20]!r}, {b[:20]!r}")
        found.append(Pair(a, b))
    return found


def parse_ports(ports: Xml.Element, leaf: str) -> dict[str, str]:
    """Parse one leaf of all ``port`` entries, by port number. Raises OcsBadReply."""
    found = {}
    for leaves in _entries(ports, "port"):
        port = leaves.get("port-id", "")
        if not is_number(port) or leaf not in leaves:
            raise OcsBadReply("netconf", f"port {port[:20]!r} has no number, or no {leaf}")
        found[port] = leaves[leaf]
    return found


def leaf(leaves: Mapping[str, str], name: str) -> str:
    """Return a leaf's text. Raises OcsBadReply when it is absent or empty."""
    if not leaves.get(name):
        raise OcsBadReply("netconf", f"the reply has no {name}")
    return leaves[name]


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


def _entries(parent: Xml.Element, *names: str) -> list[dict[str, str]]:
    """Return the leaves of a list's entries; it is empty only where its parent is."""
    found = [_children(entry) for entry in parent if _local(entry) in names]
    if not found and (len(parent) or (parent.text or "").strip()):
        raise OcsBadReply("netconf", f"<{_local(parent)}> has no <{names[0]}>, yet is not empty")
    return found


def _children(entry: Xml.Element) -> dict[str, str]:
    return {_local(child): (child.text or "").strip() for child in entry}
