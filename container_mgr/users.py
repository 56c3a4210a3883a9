"""Decides as which user and group a rank runs. Pure. It is never root."""

from __future__ import annotations

import re
from dataclasses import dataclass

from container_mgr.values import AgentError

DEFAULT_ID = 60600
"""A number that Debian, systemd and the usual ranges of accounts leave free."""
MAX_ID = 2**31 - 1
_USER = re.compile(r"([0-9]{1,10})(?::([0-9]{1,10}))?")
_RANGE = re.compile(r"([0-9]{1,10})-([0-9]{1,10})")


@dataclass(slots=True, frozen=True)
class RankUser:
    """A numeric user and group, as the container sees them."""

    uid: int
    gid: int

    @property
    def name(self) -> str:
        """The name that it has in containers."""
        return f"u{self.uid}"

    def passwd(self, home: str) -> str:
        """Return the container's ``/etc/passwd``."""
        return (
            "root:x:0:0:root:/:/usr/sbin/nologin\n"
            f"{self.name}:x:{self.uid}:{self.gid}::{home}:/bin/sh\n"
            "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
        )

    def group(self) -> str:
        """Return the container's ``/etc/group``.

        An image's own could name group 0 with the rank's number, and runtimes look up names too.
        """
        return f"root:x:0:\n{self.name}:x:{self.gid}:\nnogroup:x:65534:\n"


@dataclass(slots=True, frozen=True)
class RankUsers:
    """The users that an agent runs ranks as: its default, and any from ``low`` to ``high``."""

    default: RankUser
    low: int
    high: int

    def choose(self, obj: str, uid: int | None, gid: int | None) -> RankUser:
        """Return a rank's user; None means the default. Raises AgentError(invalid, forbidden)."""
        user = RankUser(
            self.default.uid if uid is None else uid, self.default.gid if gid is None else gid
        )
        for what, number, usual in (
            ("uid", user.uid, self.default.uid),
            ("gid", user.gid, self.default.gid),
        ):
            if number == 0:
                raise AgentError("invalid", obj, f"{what} 0 is root's, a rank never has it")
            if number != usual and not self.low <= number <= self.high:
                raise AgentError(
                    "forbidden",
                    obj,
                    f"{what} {number} is not one of {self.low} to {self.high}",
                    "give the project another one, or the agent another --uids",
                )
        return user


DEFAULT = RankUsers(RankUser(DEFAULT_ID, DEFAULT_ID), 1000, 60000)


def parse_user(text: str) -> RankUser:
    """Read ``UID[:GID]``; without GID the group has the user's number. Raises ValueError."""
    match = _USER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not UID[:GID]")
    user = RankUser(int(match[1]), int(match[2] or match[1]))
    if not (0 < user.uid <= MAX_ID and 0 < user.gid <= MAX_ID):
        raise ValueError(f"a uid or gid must be 1 to {MAX_ID}")
    return user


def parse_range(text: str) -> tuple[int, int]:
    """Read ``LOW-HIGH``. Raises ValueError."""
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not LOW-HIGH")
    low, high = int(match[1]), int(match[2])
    if not 0 < low <= high <= MAX_ID:
        raise ValueError(f"the numbers must rise, from 1 to {MAX_ID} at most")
    return low, high
