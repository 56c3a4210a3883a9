"""Texts from clients: which ones are unusable, and how to show one in a message."""

from __future__ import annotations

from base.figures import figure

SHOWN = 120
"""Characters of a client's text that a message repeats."""


def sound(text: str) -> bool:
    """Whether ``text`` is valid Unicode without NUL: it can be encoded, stored and sent."""
    if "\0" in text:
        return False
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(text: str) -> str:
    r"""Return ``text`` as it can be encoded: a lone surrogate becomes its escape, ``\ud800``."""
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text  # no copy: views share the texts of the records that they show


def clipped(text: str, most: int = SHOWN) -> str:
    """Return the beginning of ``text``, fit for a message."""
    text = shown(text[: most + 1])
    return text if len(text) <= most else f"{text[: most - 1]}…"


def duration(seconds: float) -> str:
    """Return a duration for a message, in its largest whole unit: ``90 s``, ``2 h``."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length and seconds % length == 0:
            return f"{figure(seconds / length, 6)} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{figure(seconds, 2)} s"


def unsound_at(value: object) -> str | None:
    """Return the path of the first unsound text in a JSON document; None without one.

    Keys count as well as values; ``.`` joins the parts.
    """
    stack: list[tuple[str, object]] = [("", value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, str):
            if not sound(item):
                return path
        elif isinstance(item, dict):
            for key, inner in item.items():
                here = f"{path}.{clipped(str(key))}" if path else clipped(str(key))
                if isinstance(key, str) and not sound(key):
                    return here
                stack.append((here, inner))
        elif isinstance(item, list):
            stack.extend((f"{path}.{i}", inner) for i, inner in enumerate(item))
    return None


def fewer_parts(value: object, most: int) -> bool:
    """Whether a JSON document has at most ``most`` parts, nested ones included."""
    stack, left = [value], most
    while stack:
        item = stack.pop()
        if isinstance(item, dict | list):
            left -= len(item)
            if left < 0:
                return False
            stack.extend(item.values() if isinstance(item, dict) else item)
    return True
