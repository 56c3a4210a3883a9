"""Whole blocks of rules as OpenFlow 1.3 bytes. Pure.

The messages of two blocks of one shape differ only in a cookie, an address, a tag and a few ports.
So the messages of a shape are packed once, rule by rule (``wire.packing``), for a sample of unique
values; the bytes between those values become a template, and every other block is one formatting of
it. ``tests/unit/controller/devices/openflow/wire/test_blocks.py`` compares the bytes of blocks with
those of ``wire.packing``, and hence os-ken's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from operator import itemgetter
from typing import Any

from controller.devices.openflow.rules.blocks import RuleBlock
from controller.devices.openflow.rules.rule import FlowRule

Pack = Callable[[FlowRule], bytes]
"""Turns one rule into one message."""

_Template = tuple[bytes, Callable[[Any], Any] | None]
"""A format, and the order in which it takes the holes; None without holes."""

_templates: dict[tuple[Hashable, int, Pack], _Template] = {}


def packed(block: RuleBlock, table: int, holes: tuple[bytes, ...], pack: Pack) -> bytes:
    """Return the messages of a block's rules in ``table``, each packed as ``pack`` would.

    ``holes`` are the block's own; all transaction ids are 0.
    """
    shape = block.shape
    if shape is None:
        return b"".join([pack(rule) for rule in block.of(table)])
    known = _templates.get((shape, table, pack))
    if known is None:
        known = _templates[shape, table, pack] = _learned(block.sample(), table, pack)
    form, order = known
    return form if order is None else form % order(holes)


def _learned(sample: RuleBlock, table: int, pack: Pack) -> _Template:
    data = b"".join(pack(rule) for rule in sample.of(table))
    holes = sample.holes()
    found = re.compile(b"|".join(re.escape(hole) for hole in holes))
    order = [holes.index(match.group()) for match in found.finditer(data)]
    if not order:
        return data, None
    form = b"%b".join(piece.replace(b"%", b"%%") for piece in found.split(data))
    # With one index itemgetter returns the hole itself, which ``%`` takes too.
    return form, itemgetter(*order)
