"""What a job's owner wishes of lightloom, written into the job's comment.

``sbatch --comment=lightloom:policy=pause,locality=regroup,dark=2s,pinned``: one word of the
comment, wherever it stands. The owner may be hostile: what is not understood becomes a problem in
words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from scheduler.model import Locality, Policy

MARK = "lightloom:"
LONGEST_DARK_S = 3600.0
MAX_WISHES = 16
MAX_PROBLEMS = 8
_LONGEST = 4096
_DARK = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|)", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0}
_POLICIES = {policy.value: policy for policy in (Policy.LIVE, Policy.PAUSE)}
"""Restarts are the engine's own."""
_LOCALITIES = {locality.value: locality for locality in Locality}


@dataclass(slots=True, frozen=True)
class Wishes:
    """What was understood of a comment; None leaves a choice to the site."""

    locality: Locality | None = None
    policy: Policy | None = None
    dark_tolerance_s: float | None = None
    pinned: bool = False
    problems: tuple[str, ...] = ()
    """In words for the owner, clipped."""


def wishes_of(comment: str) -> Wishes:
    """Return what a comment wishes. Never raises."""
    word = next((w for w in re.split(r"[\s;]+", comment[:_LONGEST]) if w.startswith(MARK)), None)
    wishes = Wishes()
    if word is None:
        return wishes
    parts = [part for part in word.removeprefix(MARK).split(",") if part]
    problems = []
    if len(parts) > MAX_WISHES:
        problems.append(f"only the first {MAX_WISHES} of {len(parts)} wishes are read")
    seen: set[str] = set()
    for part in parts[:MAX_WISHES]:
        key, _, value = part.partition("=")
        if key in seen:
            problems.append(f"{key} is given twice: the first counts")
        elif (read := _KEYS.get(key)) is None:
            problems.append(f"unknown wish {_shown(key)}: use {', '.join(sorted(_KEYS))}")
        else:
            seen.add(key)
            try:
                wishes = read(wishes, value)
            except ValueError as error:
                problems.append(str(error))
    return replace(wishes, problems=tuple(problems[:MAX_PROBLEMS]))


def _locality(wishes: Wishes, value: str) -> Wishes:
    if (locality := _LOCALITIES.get(value)) is None:
        raise ValueError(f"locality {_shown(value)}: use {', '.join(_LOCALITIES)}")
    return replace(wishes, locality=locality)


def _policy(wishes: Wishes, value: str) -> Wishes:
    if (policy := _POLICIES.get(value)) is None:
        raise ValueError(f"policy {_shown(value)}: use {', '.join(_POLICIES)}")
    return replace(wishes, policy=policy)


def _dark(wishes: Wishes, value: str) -> Wishes:
    found = _DARK.fullmatch(value)
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= LONGEST_DARK_S:
        raise ValueError(f"dark {_shown(value)}: use a time up to an hour, such as 500ms or 2s")
    return replace(wishes, dark_tolerance_s=seconds)


def _pinned(wishes: Wishes, value: str) -> Wishes:
    if value not in ("", "true", "false"):
        raise ValueError(f"pinned {_shown(value)}: write pinned alone")
    return replace(wishes, pinned=value != "false")


_KEYS: dict[str, Callable[[Wishes, str], Wishes]] = {
    "locality": _locality,
    "policy": _policy,
    "dark": _dark,
    "pinned": _pinned,
}


def _shown(text: str) -> str:
    return ascii(text[:40])
