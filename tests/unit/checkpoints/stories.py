"""Shorthands for histories of checkpoints."""

from __future__ import annotations

from functools import reduce

from checkpoints.ledger import (
    Began,
    Coded,
    Copied,
    Flushed,
    Key,
    Ledger,
    LedgerRun,
    Member,
    Report,
    Wrote,
    fold,
)
from checkpoints.schemes import Layout
from checkpoints.values import Place, Scheme

PLACES = {f"gpu{i}": Place(f"gpu{i}", f"srv{i}", f"as{i % 2}") for i in range(8)}
SERVERS = {place.server for place in PLACES.values()}
SIZE = 10


def digest(key: Key, rank: int) -> str:
    return f"{key.epoch}-{key.step}-{rank}"


def wrote(key: Key, rank: int, holder: str) -> Wrote:
    return Wrote(key, rank, holder, digest(key, rank), SIZE)


def copied(key: Key, rank: int, holder: str) -> Copied:
    return Copied(key, rank, holder, digest(key, rank), SIZE)


def flushed(key: Key, rank: int) -> Flushed:
    return Flushed(key, rank, digest(key, rank), SIZE)


def coded(key: Key, rank: int, holder: str, members: tuple[int, ...]) -> Coded:
    ring = tuple(Member(m, digest(key, m), SIZE) for m in members)
    return Coded(key, rank, holder, ring)


def told(*reports: Report, ledger: Ledger | None = None) -> Ledger:
    return reduce(fold, reports, ledger or Ledger())


def began(epoch: int, ranks: int, scheme: Scheme, resumed: Key | None = None) -> Began:
    return Began(epoch, LedgerRun(ranks, Layout(scheme), resumed))


def written(key: Key, ranks: int) -> list[Wrote]:
    return [wrote(key, rank, f"gpu{rank}") for rank in range(ranks)]


def copies(key: Key, ranks: int) -> list[Copied]:
    return [copied(key, rank, f"gpu{(rank + 1) % ranks}") for rank in range(ranks)]
