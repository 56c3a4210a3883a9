"""Parses requests and writes replies of the Polatis NETCONF subset. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lxml import etree  # type: ignore[import-untyped]

BASE = "urn:ietf:params:xml:ns:netconf:base:1.0"
NOTIFY = "urn:ietf:params:xml:ns:netconf:notification:1.0"
OPTICAL = "http://www.polatis.com/yang/optical-switch"
SWITCH = "http://www.polatis.com/yang/polatis-switch"

_PARSER_OPTIONS = {"resolve_entities": False, "no_network": True, "huge_tree": False}
_REVISIONS = {"pair": "2018-03-22", "pairs": "2017-03-21"}
_OPERATION = f"{{{BASE}}}operation"

Element = Any
"""An lxml element; the library has no types."""


class RpcError(Exception):
    """An rpc-error of RFC 6241 appendix A."""

    def __init__(self, tag: str, message: str) -> None:
        super().__init__(tag, message)
        self.tag = tag
        self.message = message


@dataclass(slots=True, frozen=True)
class Edit:
    """One change of the list of pairs; ``egress`` is empty if a delete omits it."""

    operation: str
    ingress: str
    egress: str


def parse(text: bytes) -> Element:
    """Parse a message without resolving entities. Raises ValueError when it is not XML."""
    try:
        return etree.fromstring(text, etree.XMLParser(**_PARSER_OPTIONS))
    except etree.XMLSyntaxError as error:
        raise ValueError(str(error)) from None


def name(element: Element) -> str:
    """Return an element's name without its namespace."""
    return str(etree.QName(element).localname)


def hello(session: int, pair_node: str) -> bytes:
    """Return the server's hello."""
    capabilities = [
        "urn:ietf:params:netconf:base:1.0",
        "urn:ietf:params:netconf:base:1.1",
        "urn:ietf:params:netconf:capability:writable-running:1.0",
        "urn:ietf:params:netconf:capability:notification:1.0",
        f"{OPTICAL}?module=optical-switch&revision={_REVISIONS[pair_node]}",
        f"{SWITCH}?module=polatis-switch&revision=2017-09-11",
    ]
    root = etree.Element(f"{{{BASE}}}hello", nsmap={None: BASE})
    group = etree.SubElement(root, f"{{{BASE}}}capabilities")
    for capability in capabilities:
        etree.SubElement(group, f"{{{BASE}}}capability").text = capability
    etree.SubElement(root, f"{{{BASE}}}session-id").text = str(session)
    return _bytes(root)


def _reply_to(message_id: str) -> Element:
    """Return an empty rpc-reply element."""
    attributes = {"message-id": message_id}
    return etree.Element(f"{{{BASE}}}rpc-reply", nsmap={None: BASE}, attrib=attributes)


def reply(message_id: str, content: Sequence[Element] | None = None) -> bytes:
    """Return an rpc-reply: ``ok``, or ``data`` with content."""
    root = _reply_to(message_id)
    if content is None:
        etree.SubElement(root, f"{{{BASE}}}ok")
    else:
        data = etree.SubElement(root, f"{{{BASE}}}data")
        data.extend(content)
    return _bytes(root)


def hollow_reply(message_id: str, content: str) -> bytes:
    """Return an rpc-reply with any text or elements in place of ``ok`` or ``data``."""
    return f'<rpc-reply xmlns="{BASE}" message-id="{message_id}">{content}</rpc-reply>'.encode()


def refusal(message_id: str, error: RpcError) -> bytes:
    """Return an rpc-reply with an error."""
    root = _reply_to(message_id)
    fault = etree.SubElement(root, f"{{{BASE}}}rpc-error")
    for tag, text in (
        ("error-type", "application"),
        ("error-tag", error.tag),
        ("error-severity", "error"),
        ("error-message", error.message),
    ):
        etree.SubElement(fault, f"{{{BASE}}}{tag}").text = text
    return _bytes(root)


def notification(stamp: str, event: str, fields: dict[str, str]) -> bytes:
    """Return a notification of the Polatis stream."""
    root = etree.Element(f"{{{NOTIFY}}}notification", nsmap={None: NOTIFY})
    etree.SubElement(root, f"{{{NOTIFY}}}eventTime").text = stamp
    root.append(tree(OPTICAL, event, fields))
    return _bytes(root)


def tree(namespace: str, tag: str, fields: dict[str, str]) -> Element:
    """Return an element with one text child per field."""
    root = etree.Element(f"{{{namespace}}}{tag}", nsmap={None: namespace})
    for key, value in fields.items():
        etree.SubElement(root, f"{{{namespace}}}{key}").text = value
    return root


def container(namespace: str, tag: str, children: Sequence[Element]) -> Element:
    """Return an element with children."""
    root = etree.Element(f"{{{namespace}}}{tag}", nsmap={None: namespace})
    root.extend(children)
    return root


def filter_names(rpc: Element) -> list[Element]:
    """Return the requested subtrees of a get; an empty list means everything."""
    wanted = rpc.find(f"{{{BASE}}}filter")
    return [] if wanted is None else [e for e in wanted if isinstance(e.tag, str)]


def edits(rpc: Element, pair_node: str) -> tuple[list[Edit], bool]:
    """Parse an edit-config: its edits, and whether it first removes all. Raises RpcError."""
    config = rpc.find(f"{{{BASE}}}config")
    default = rpc.findtext(f"{{{BASE}}}default-operation") or "merge"
    if config is None:
        raise RpcError("missing-element", "config")
    found: list[Edit] = []
    wipe = False
    for container_ in config:
        if etree.QName(container_).namespace != OPTICAL or name(container_) != "cross-connects":
            raise RpcError("unknown-element", str(container_.tag))
        operation = container_.get(_OPERATION, default)
        if operation in ("delete", "remove", "replace"):
            wipe = True
        inherited = "merge" if operation == "replace" else operation
        if operation in ("delete", "remove"):
            continue
        for node in container_:
            if name(node) != pair_node:
                raise RpcError("unknown-element", name(node))
            # Public code also writes the attribute without a namespace.
            operation = node.get(_OPERATION) or node.get("operation") or inherited
            ingress = node.findtext(f"{{{OPTICAL}}}ingress") or ""
            egress = node.findtext(f"{{{OPTICAL}}}egress") or ""
            if not ingress or (not egress and operation not in ("delete", "remove")):
                raise RpcError("missing-element", "ingress" if not ingress else "egress")
            found.append(Edit(operation, ingress.strip(), egress.strip()))
    return found, wipe


def _bytes(root: Element) -> bytes:
    return bytes(etree.tostring(root, xml_declaration=True, encoding="UTF-8"))
