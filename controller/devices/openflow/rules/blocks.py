"""Rules that come and go together, kept folded: blocks, and sequences of rules made of them. Pure.

A big site has a million rules, but only a few shapes of them: what one aggregator needs for one
member of a job is five rules that follow from one address, one tag and one way. Such a block is
one small value. It is compared as one, packed as one (``of_pack``), and unfolded into rules only
where somebody looks at a rule.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, overload

from controller.devices.openflow.rules.rule import FlowRule

TABLES = (0, 1, 2)
"""All tables of the pipeline, in the order in which a frame meets them."""


class Block(Protocol):
    """Rules of one aggregator that follow from one thing: ``key``. Other blocks share none."""

    @property
    def key(self) -> Hashable:
        """What the block is about; a program has one block of a key."""

    @property
    def shape(self) -> Hashable:
        """Blocks of the same shape have the same messages but for ``holes``; None: no such."""

    def same(self, other: Any) -> bool:
        """Whether ``other``, of the same key, asks for the same rules, whatever their epoch."""

    def count(self, table: int) -> int:
        """Return the number of rules in a table."""

    def of(self, table: int) -> tuple[FlowRule, ...]:
        """Return the rules in a table."""

    def holes(self) -> tuple[bytes, ...]:
        """Return the bytes that tell this block's messages from others of its shape."""

    def sample(self) -> Block:
        """Return a block of this shape whose holes are found nowhere else in its messages."""


@dataclass(slots=True, frozen=True)
class Loose:
    """Single rules that belong to no shape."""

    rules: tuple[FlowRule, ...]
    key: Hashable = None
    shape: Hashable = None

    def same(self, other: Any) -> bool:
        """Whether the other one has the same rules, whatever their epoch."""
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
        """Return nothing: no two are alike."""
        return ()

    def sample(self) -> Loose:
        """Return itself."""
        return self


class Rules(Sequence[FlowRule]):
    """The rules of some blocks, table by table. Immutable; equal to a tuple of the same rules."""

    __slots__ = ("blocks", "tables")

    def __init__(self, blocks: Iterable[Block], tables: tuple[int, ...] = TABLES) -> None:
        """``tables``: whose rules, and in which order."""
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
        if isinstance(other, Rules) and other.blocks == self.blocks:
            return other.tables == self.tables or tuple(self) == tuple(other)
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))
