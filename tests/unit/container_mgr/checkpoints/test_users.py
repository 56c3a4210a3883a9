"""Whose a rank's folders are, when the engine maps the users of containers."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentlink.checkpoints import GetLocal, GetPart, HoldingKind
from checkpoints.ledger import Key
from container_mgr.checkpoints.holder import DiskHolder
from container_mgr.checkpoints.values import PartPlace
from container_mgr.users import RankUser
from container_mgr.values import AgentError
from tests.unit.container_mgr.checkpoints.agent_parts import (
    FOLDER,
    PlainSpace,
    container,
    overwrite,
    rank,
)

INSIDE, BASE = RankUser(5000, 6000), RankUser(100_000, 200_000)


@asynccontextmanager
async def mapped(root: Path) -> AsyncIterator[DiskHolder]:
    held = DiskHolder(root / "checkpoints", remapped=BASE, remaps=True, space=PlainSpace())
    await held.recover()
    try:
        yield held
    finally:
        await held.close()


def owner(path: Path) -> RankUser:
    return RankUser(path.stat().st_uid, path.stat().st_gid)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
@pytest.mark.parametrize("remapped", [True, False])
async def test_a_rank_owns_what_it_writes_and_resumes_from(tmp_path: Path, remapped: bool) -> None:
    """One with RDMA stays in the initial user namespace. What was fetched is the agent's."""
    outside = RankUser(105_000, 206_000) if remapped else INSIDE
    async with mapped(tmp_path) as held:
        begun = await held.begin(rank(rule="keras"), INSIDE, remapped=remapped)
        assert begun is not None
        assert owner(begun.live) == outside
        assert held.owner(FOLDER, "gpu0") == outside
        held.watch(container(rank()))
        overwrite(begun.live, {"latest.weights.h5": b"weights"})
        overwrite(begun.live, {"training_metadata.json": b'{"epoch": 0, "batch": 2}'})
        async for news in held.news():
            if any(told.kind is HoldingKind.OWN for told in news.holdings):
                break
        key = Key(2, 1)
        part = held.find(PartPlace(FOLDER, "gpu0", HoldingKind.OWN, 0, key))
        assert part is not None
        get = GetPart(0, "gpu0", 0, part.manifest.digest, part.manifest.bytes, GetLocal("gpu0"))
        held.restore_from(part, get)
        begun = await held.begin(
            rank(epoch=2, rule="keras", resumed=key), INSIDE, remapped=remapped
        )
        assert begun is not None
        assert begun.restore is not None
        for folder in (begun.live, begun.restore):
            files = list(folder.iterdir())
            assert [owner(path) for path in files] == [outside] * 2
            assert all(path.stat().st_mode & 0o400 for path in files)
        assert begun.restore.stat().st_mode & 0o777 == 0o755


async def test_an_engine_that_does_not_say_to_whom_it_maps(tmp_path: Path) -> None:
    """The folder would be somebody else's."""
    held = DiskHolder(tmp_path / "checkpoints", remaps=True, space=PlainSpace())
    await held.recover()
    try:
        with pytest.raises(AgentError, match="does not show to which"):
            await held.begin(rank(), INSIDE)
        me = RankUser(os.geteuid(), os.getegid())
        assert await held.begin(rank(), me, remapped=False) is not None
    finally:
        await held.close()
