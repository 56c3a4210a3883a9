"""Slurm's short form of many node names: ``n[0-3,7],m[01-03]``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby, product
from math import prod

MAX_NAMES = 65_536
MAX_TEXT = 2**20
_ITEM = re.compile(r"(?:[A-Za-z0-9._-]|\[[0-9,-]+\])+")
_PART = re.compile(r"\[([0-9,-]+)\]|([A-Za-z0-9._-]+)")
_SPAN = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,15}))?")
_NUMBERED = re.compile(r"(.*?)([0-9]{1,15})")


def expand(text: str) -> tuple[str, ...]:
    """Return the names of a hostlist in its order; none for an empty text.

    Raises ValueError for what is not a hostlist, and for more than 65,536 names.
    """
    if len(text) > MAX_TEXT:
        raise ValueError(f"a hostlist of {len(text)} characters")
    names: list[str] = []
    for item in _items(text):
        if not _ITEM.fullmatch(item):
            raise ValueError(f"not a hostlist: {item[:80]!r}")
        parts = [
            _spans(found[1]) if found[1] is not None else (range(1), found[2])
            for found in _PART.finditer(item)
        ]
        if len(names) + prod(sum(map(len, _ranges(part))) for part in parts) > MAX_NAMES:
            raise ValueError(f"a hostlist of more than {MAX_NAMES} names")
        names.extend("".join(words) for words in product(*map(_words, parts)))
    return tuple(names)


def compress(names: Iterable[str]) -> str:
    """Return the shortest usual hostlist of ``names``, sorted; each name counts once."""
    numbered: list[tuple[str, int, str]] = []
    plain: list[str] = []
    for name in set(names):
        if found := _NUMBERED.fullmatch(name):
            numbered.append((found[1], len(found[2]), found[2]))
        else:
            plain.append(name)
    items = sorted(plain)
    for prefix, group in groupby(sorted(numbered), key=lambda entry: entry[0]):
        runs = list(_runs([digits for _, _, digits in group]))
        spans = ",".join(low if low == high else f"{low}-{high}" for low, high in runs)
        single = len(runs) == 1 and runs[0][0] == runs[0][1]
        items.append(f"{prefix}{spans}" if single else f"{prefix}[{spans}]")
    return ",".join(items)


_Spans = list[tuple[range, int]]
_Part = _Spans | tuple[range, str]


def _items(text: str) -> Iterator[str]:
    """Split at the commas outside of brackets."""
    if not text:
        return
    depth = start = 0
    for i, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            yield text[start:i]
            start = i + 1
    yield text[start:]


def _spans(text: str) -> _Spans:
    """Return the numbers of a bracket with the digits that each has at least."""
    spans = []
    for word in text.split(","):
        found = _SPAN.fullmatch(word)
        if found is None:
            raise ValueError(f"not numbers of a hostlist: {text[:80]!r}")
        low, high = int(found[1]), int(found[2] or found[1])
        if high < low:
            raise ValueError(f"numbers of a hostlist run backwards: {word!r}")
        spans.append((range(low, high + 1), len(found[1])))
    return spans


def _ranges(part: _Part) -> list[range]:
    return [part[0]] if isinstance(part, tuple) else [numbers for numbers, _ in part]


def _words(part: _Part) -> list[str]:
    if isinstance(part, tuple):
        return [part[1]]
    return [str(number).zfill(width) for numbers, width in part for number in numbers]


def _runs(digits: list[str]) -> Iterator[tuple[str, str]]:
    """Join what counts on: ``0 1 2 7`` is (0, 2) and (7, 7). Sorted by length, then by value."""
    low = high = digits[0]
    for word in digits[1:]:
        following = str(int(high) + 1).zfill(len(low))
        if word == following:
            high = word
        else:
            yield low, high
            low = high = word
    yield low, high
