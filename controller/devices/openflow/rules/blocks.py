"""Blocks: rules that come and go together, stored as one value; sequences of blocks. Pure.

A big site has a million rules, but only a few shapes of them: what one aggregator needs for one
member of a job is five rules that follow from one address, one tag and one way. Such a block is
one small value. It is compared and packed as one (``wire.blocks``), and unfolded only where single
rules are needed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, overload

from controller.devices.openflow.rules.rule import FlowRule

TABLES = (0, 1, 2)
"""All tables of the pipeline, in the order in which a frame meets them."""


class RuleBlock(Protocol):
    """Rules of one aggregator that follow from one thing, ``key``; no two blocks share a rule."""

    @property
    def key(self) -> Hashable:
        """What the block is about; a program has one block per key."""

    @property
    def shape(self) -> Hashable:
        """Blocks of one shape have the same messages except for ``holes``; None: no shape."""

    def same(self, other: Any) -> bool:
        """Whether ``other``, of the same key, asks for the same rules, ignoring epochs."""

    def count(self, table: int) -> int:
        """Return the number of rules in a table."""

    def of(self, table: int) -> tuple[FlowRule, ...]:
        """Return the rules in a table."""

    def holes(self) -> tuple[bytes, ...]:
        """Return the bytes that distinguish this block's messages from others of its shape."""

    def sample(self) -> RuleBlock:
        """Return a block of this shape whose holes occur nowhere else in its messages."""


@dataclass(slots=True, frozen=True)
class Loose:
    """Single rules that belong to no shape."""

    rules: tuple[FlowRule, ...]
    key: Hashable = None
    shape: Hashable = None

    def same(self, other: Any) -> bool:
        """Whether the other one has the same rules, ignoring epochs."""
        return isinstance(other, Loose) and [r.effect for r in self.rules] == [
            r.effect for r in other.rules
        ]

    def count(self, table: int) -> int:
        """Return the number of rules in a table."""
        return len(self.of(table))

    def of(self, table: int) -> tuple[FlowRule, ...]:
        """Return the rules in a table."""
        return tuple(rule for rule in self.rules if rule.table == table)

    def holes(self) -> tuple[bytes, ...]:
        """Return nothing: loose rules have no shape."""
        return ()

    def sample(self) -> Loose:
        """Return itself."""
        return self


class RuleSet(Sequence[FlowRule]):
    """The rules of some blocks, table by table. Immutable; equal to a tuple of the same rules."""

    __slots__ = ("blocks", "tables")

    def __init__(self, blocks: Iterable[RuleBlock], tables: tuple[int, ...] = TABLES) -> None:
        """``tables``: the tables of the rules, in their order."""
        self.blocks = tuple(blocks)
        self.tables = tables

    def __len__(self) -> int:
        return sum(block.count(table) for table in self.tables for block in self.blocks)

    def __bool__(self) -> bool:
        return bool(self.blocks)

    def __iter__(self) -> Iterator[FlowRule]:
        for table in self.tables:
            for block in self.blocks:
                yield from block.of(table)

    @overload
    def __getitem__(self, index: int) -> FlowRule: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[FlowRule]: ...
    def __getitem__(self, index: int | slice) -> FlowRule | Sequence[FlowRule]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RuleSet) and other.blocks == self.blocks:
            return other.tables == self.tables or tuple(self) == tuple(other)
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))
