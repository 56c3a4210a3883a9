"""Flow entries as values: matches, actions, rules, groups and cookies. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address

_CACHED = 1 << 17

EPOCH_BITS = 40
ENDPOINT_BITS = 24
ENDPOINT_MASK = (1 << ENDPOINT_BITS) - 1

MatchValue = int | str | tuple[int | str, int | str]
"""An OXM value; a pair is value and mask."""

Match = tuple[tuple[str, MatchValue], ...]
"""OXM fields by their OpenFlow 1.3 names, sorted by name."""


def match(**fields: MatchValue) -> Match:
    """Return the canonical form of a match: sorted by field name."""
    return tuple(sorted(fields.items()))


@dataclass(slots=True, frozen=True)
class ToPort:
    """Send the frame out of ``port``."""

    port: int

    def __str__(self) -> str:
        return f"output:{self.port}"


@dataclass(slots=True, frozen=True)
class ToGroup:
    """Send the frame to group ``group``."""

    group: int

    def __str__(self) -> str:
        return f"group:{self.group}"


@dataclass(slots=True, frozen=True)
class ToController:
    """Send the whole frame to the controller."""

    def __str__(self) -> str:
        return "controller"


@dataclass(slots=True, frozen=True)
class SetField:
    """Overwrite one header field."""

    field: str
    value: int | str

    def __str__(self) -> str:
        return f"set_field:{self.field}={self.value}"


@dataclass(slots=True, frozen=True)
class SetQueue:
    """Choose the output queue of the port the frame leaves by."""

    queue: int

    def __str__(self) -> str:
        return f"set_queue:{self.queue}"


@dataclass(slots=True, frozen=True)
class WriteMetadata:
    """Tag the frame inside the pipeline; all 64 bits are written."""

    value: int

    def __str__(self) -> str:
        return f"write_metadata:{self.value:#x}"


@dataclass(slots=True, frozen=True)
class Goto:
    """Continue in table ``table``."""

    table: int

    def __str__(self) -> str:
        return f"goto_table:{self.table}"


@dataclass(slots=True, frozen=True)
class Foreign:
    """Part of a rule that lightloom never writes, as read from an aggregator: no rule of ours."""

    text: str

    def __str__(self) -> str:
        return self.text


Action = ToPort | ToGroup | ToController | SetField | SetQueue | WriteMetadata | Goto | Foreign
RuleKey = tuple[int, int, Match]


@dataclass(slots=True, frozen=True)
class FlowRule:
    """One flow entry. No actions means drop.

    ``actions`` holds what is applied in order, then at most one ``WriteMetadata``, then at most
    one ``Goto`` (OpenFlow 1.3.5 section 5.9 fixes that order of instructions).
    ``==`` compares everything; ``effect`` is what ``diff`` compares.
    """

    table: int
    priority: int
    match: Match
    actions: tuple[Action, ...]
    cookie: int

    @property
    def key(self) -> RuleKey:
        """The identity of a table entry: a second rule with this key replaces the first."""
        return (self.table, self.priority, self.match)

    @property
    def effect(self) -> tuple[RuleKey, tuple[Action, ...], int]:
        """Everything but the epoch in the cookie."""
        return (self.key, self.actions, self.cookie & ENDPOINT_MASK)

    def __str__(self) -> str:
        fields = ",".join(f"{name}={_show(name, value)}" for name, value in self.match)
        actions = ",".join(str(action) for action in self.actions) or "drop"
        return f"table={self.table},priority={self.priority},{fields} actions={actions}"


@dataclass(slots=True, frozen=True)
class GroupRule:
    """A SELECT group that spreads flows evenly over ``ports`` and skips ports without carrier.

    ``foreign`` is not empty for a group on an aggregator that lightloom did not write.
    """

    group: int
    ports: tuple[int, ...]
    foreign: str = ""

    def __str__(self) -> str:
        return f"group={self.group} select {','.join(map(str, self.ports))}{self.foreign}"


def pack_cookie(epoch: int, endpoint: int) -> int:
    """Pack the epoch that wrote a rule (upper 40 bits) and the endpoint's number (lower 24).

    Endpoints count from 1 in site-file order; 0 is a rule of the aggregator itself.
    ValueError when a number does not fit (the all-ones cookie is reserved by OpenFlow).
    """
    if not 0 <= epoch < (1 << EPOCH_BITS) - 1 or not 0 <= endpoint <= ENDPOINT_MASK:
        raise ValueError(f"epoch {epoch} or endpoint number {endpoint} does not fit a cookie")
    return epoch << ENDPOINT_BITS | endpoint


def unpack_cookie(cookie: int) -> tuple[int, int]:
    """Return epoch and endpoint number of a cookie."""
    return cookie >> ENDPOINT_BITS, cookie & ENDPOINT_MASK


def _show(name: str, value: MatchValue) -> str:
    if isinstance(value, tuple):
        return f"{_show(name, value[0])}/{_show(name, value[1])}"
    return (
        f"{value:#x}" if isinstance(value, int) and name in {"eth_type", "metadata"} else f"{value}"
    )


@lru_cache(_CACHED)
def mac_bytes(text: str) -> bytes:
    """Return a MAC address as it is sent."""
    return bytes.fromhex(text.replace(":", ""))


@lru_cache(_CACHED)
def ip_bytes(text: str) -> bytes:
    """Return an IPv4 address as it is sent."""
    return IPv4Address(text).packed
