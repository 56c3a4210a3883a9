"""Slurm's short form of name lists: ``gpu[0-2,5],spare1``."""

from __future__ import annotations

import re

from console.cli.errors import usage

_ITEM = re.compile(r"(?P<head>[a-z0-9-]*)(?:\[(?P<ranges>[0-9,-]+)\])?(?P<tail>[a-z0-9-]*)")
_LIMIT = 65536


def expand(text: str) -> list[str]:
    """Return the names of a host list, in its order; CliError when it is malformed."""
    names: list[str] = []
    for item in re.split(r",(?![^\[]*\])", text):
        found = _ITEM.fullmatch(item)
        if not item or found is None:
            raise _malformed(text)
        if found["ranges"] is None:
            names.append(item)
            continue
        for part in found["ranges"].split(","):
            low, _, high = part.partition("-")
            if not low.isdigit() or not (high or low).isdigit():
                raise _malformed(text)
            first, last = int(low), int(high or low)
            if last < first or last - first >= _LIMIT:
                raise _malformed(text)
            names += [
                f"{found['head']}{n:0{len(low)}d}{found['tail']}" for n in range(first, last + 1)
            ]
    return names


def _malformed(text: str) -> Exception:
    return usage(f"{text!r} is not a list of names", "write gpu0,gpu3 or gpu[0-3,5]")
