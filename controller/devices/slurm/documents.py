"""Reads Slurm's JSON documents: strictly, and item by item where they are long.

The shapes are those of ``data_parser`` v0.0.39 to v0.0.45, which slurmrestd and the programs share:
numbers are plain or ``{"set": true, "infinite": false, "number": 7}``.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

Document = Mapping[str, object]
Body = Sequence[bytes]
"""The pieces of a document, as they came."""

LARGEST = 2**53
AT_ONCE = 2**20
"""Bytes of a document that is parsed at once: 10 ms, a tenth of what its items take one by one."""
_STEP = 2**18
"""Bytes that are taken at once."""
_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def items_of(body: Body, key: str) -> Iterator[object]:
    """Yield the items of the list ``key`` of a JSON object.

    In a document of more than AT_ONCE bytes each item is parsed by itself, so that a parser holds
    the interpreter for one item at a time. Nothing is yielded where the key is missing or null.
    Raises ValueError for any other document.
    """
    if sum(map(len, body)) <= AT_ONCE:
        found = document_of(body).get(key)
        if found is not None and not isinstance(found, list):
            raise ValueError(f"{key} is not a list")
        yield from found or ()
        return
    window = _Window(body)
    window.expect("{")
    if window.next_is("}"):
        return
    while True:
        name = window.value()
        window.expect(":")
        if name == key and window.next_is("["):
            yield from _list(window)
            return
        if window.value() is not None and name == key:
            raise ValueError(f"{key} is not a list")
        if not window.next_is(","):
            window.expect("}")
            return
        window.expect(",")


def document_of(body: Body) -> Document:
    """Return a short JSON object. ValueError."""
    try:
        return mapping(json.loads(b"".join(body).decode("utf-8", errors="replace")), "the answer")
    except RecursionError:
        raise ValueError("nested too deep") from None


def mapping(value: object, what: str) -> Document:
    """Return ``value`` as an object of JSON. ValueError."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not an object")
    return cast("Document", value)


def text_of(document: Document, key: str) -> str:
    """Return a text; empty for null and where it is missing. ValueError."""
    value = document.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{key} is not a text")
    return value


def texts_of(document: Document, key: str) -> tuple[str, ...]:
    """Return a list of texts; one text is a list of one. Missing and null are empty. ValueError."""
    value = document.get(key)
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise ValueError(f"{key} is not a list of texts")


def number_of(document: Document, key: str) -> float | None:
    """Return a number; None where it is missing, not set or infinite. ValueError."""
    value = document.get(key)
    if isinstance(value, dict):
        if value.get("set") is not True or value.get("infinite") is True:
            return None
        value = value.get("number")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key} is not a number")
    if not abs(value) <= LARGEST or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{key} is out of range")
    return float(value)


def count_of(document: Document, key: str, most: int = LARGEST) -> int:
    """Return a number of things; 0 where it is missing, not set or infinite. ValueError."""
    value = number_of(document, key) or 0.0
    if not 0 <= value <= most or value != int(value):
        raise ValueError(f"{key} is not a count up to {most}")
    return int(value)


def clean(text: str, most: int) -> str:
    """Return the beginning of a text from outside, without what does not print."""
    short = text if len(text) <= most else f"{text[: most - 1]}…"
    return "".join(char if char.isprintable() else "�" for char in short)


class _Window:
    """The part of a long JSON text that is being parsed."""

    def __init__(self, body: Body) -> None:
        self._pieces = iter(body)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._at = 0

    def next_is(self, char: str) -> bool:
        """Whether this is the next character other than a space."""
        while True:
            found = _SPACE.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text) or not self._more():
                return self._text.startswith(char, self._at)

    def expect(self, char: str) -> None:
        """Step over the next character. ValueError when it is another."""
        if not self.next_is(char):
            found = self._text[self._at : self._at + 20]
            raise ValueError(f"not a JSON object: {char!r} is missing before {found!r}")
        self._at += 1

    def value(self) -> object:
        """Return the next value and step over it. ValueError."""
        self.next_is("")
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except RecursionError:
                raise ValueError("nested too deep") from None
            except ValueError:
                if not self._more():
                    raise
                continue
            if end < len(self._text) or not self._more():
                self._at = end
                return value

    def _more(self) -> bool:
        """Take as much again as there is; False at the end of the text."""
        rest = self._text[self._at :]
        texts = [rest]
        missing = max(_STEP, len(rest))
        while missing > 0 and (piece := next(self._pieces, None)) is not None:
            texts.append(self._decoder.decode(piece))
            missing -= max(1, len(piece))
        if len(texts) == 1:
            return False
        self._text, self._at = "".join(texts), 0
        return True


def _list(window: _Window) -> Iterator[object]:
    window.expect("[")
    if window.next_is("]"):
        return
    while True:
        yield window.value()
        if not window.next_is(","):
            window.expect("]")
            return
        window.expect(",")
