"""What a part of a checkpoint can be: bounds on reports of steps, members and parts. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated

from agentlink.bounds import Field, only, require
from checkpoints.ledger import Key, Member
from checkpoints.manifest import MAX_LENGTH
from checkpoints.values import MAX_RANKS, MAX_STEP

MAX_MEMBERS = 64
"""Most members of one set."""
_DIGEST = re.compile(r"[0-9a-f]{8}")

rank_number: Callable[[int], int] = only(
    lambda rank: rank < MAX_RANKS, f"a rank is 0 to {MAX_RANKS - 1}"
)
digest_of_part = only(_DIGEST.fullmatch, "{} is not the digest of a part")


def digest_or_empty(text: str) -> str:
    """Return the digest of a part where it may be unknown. Raises Refused."""
    return digest_of_part(text) if text else text


def size_of_part(number: int, least: int = 1) -> int:
    """Return a number of bytes. Raises Refused."""
    require(least <= number <= MAX_LENGTH, f"a part has {least} to {MAX_LENGTH} bytes")
    return number


def possible_step(key: Key) -> Key:
    """Return a step that a run can have. Raises Refused."""
    require(0 <= key.step <= MAX_STEP, f"a step is 0 to {MAX_STEP}")
    require(0 <= key.epoch <= MAX_STEP, f"an epoch is 0 to {MAX_STEP}")
    return key


def whole_set(covers: Sequence[Member], least: int = 1) -> Sequence[Member]:
    """Return the members of a set, each with ``least`` bytes. Raises Refused."""
    for member in covers:
        rank_number(member.rank)
        digest_of_part(member.digest)
        size_of_part(member.bytes, least)
    ranks = {member.rank for member in covers}
    require(len(ranks) == len(covers) > 1, "a set has two members or more, each once")
    return covers


RankNumber = Annotated[int, rank_number]
Digest = Annotated[str, digest_of_part]
PartBytes = Annotated[int, size_of_part]
StepKey = Annotated[Key, Field(name="step", missing="the step is missing"), possible_step]
