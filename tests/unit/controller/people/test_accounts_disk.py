"""Tokens and projects on a failing disk: no partial changes, and admins keep access."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.base.errors import ServiceError
from controller.people.accounts import Accounts, StoredProject
from controller.people.authz import Role
from tests.parts.controller.disk import Disk

NOW = 1000.0


async def opened(folder: Path) -> Accounts:
    accounts = Accounts(folder / "accounts.sqlite", lambda: NOW)
    await accounts.open()
    return accounts


def failing_at(accounts: Accounts, word: str) -> None:
    """Let every statement that begins with ``word`` fail, as on a full disk."""
    Disk(accounts).refuses = word


async def test_a_project_that_cannot_be_changed_stays_as_it_was(tmp_path: Path) -> None:
    accounts = await opened(tmp_path)
    await accounts.put_project(StoredProject("vision", 1.0, 4))
    failing_at(accounts, "INSERT")
    with pytest.raises(ServiceError):
        await accounts.put_project(StoredProject("vision", 1.0, 8))
    again = await opened(tmp_path)
    assert [(p.name, p.quota) for p in again.projects()] == [("default", None), ("vision", 4)]
    await again.close()


async def test_a_first_start_that_cannot_hand_out_the_token_is_repeated(tmp_path: Path) -> None:
    accounts = await opened(tmp_path)
    nowhere = tmp_path / "nowhere"
    with pytest.raises(ServiceError, match="cannot write the admin's token"):
        await accounts.bootstrap(nowhere)
    nowhere.mkdir()
    again = await opened(tmp_path)
    path = await again.bootstrap(nowhere)
    token = again.find(path.read_text(encoding="ascii").strip())
    assert token is not None and token.role is Role.ADMIN
    await again.close()


async def test_a_token_whose_secret_was_not_handed_out_opens_nothing(tmp_path: Path) -> None:
    """The disk is late: the row lands after the caller was told that it failed."""
    accounts = await opened(tmp_path)
    disk = Disk(accounts)
    disk.fault = "slow"
    with pytest.raises(ServiceError, match="did not answer"):
        await accounts.create("ann", Role.OPERATOR)
    with pytest.raises(ServiceError, match="nothing was changed"):
        await accounts.put_project(StoredProject("vision"))
    disk.release()
    await accounts.put_project(StoredProject("audio"))
    assert [t.name for t in accounts.tokens()] == []
    await accounts.close()
    again = await opened(tmp_path)
    assert [t.name for t in again.tokens()] == []
    assert [p.name for p in again.projects()] == ["audio", "default"]
    await again.close()


async def test_a_revoked_token_is_either_told_so_or_still_valid(tmp_path: Path) -> None:
    accounts = await opened(tmp_path)
    token, secret = await accounts.create("ann", Role.OPERATOR)
    failing_at(accounts, "UPDATE")
    with pytest.raises(ServiceError):
        await accounts.revoke(token.id)
    assert accounts.find(secret) is not None
    again = await opened(tmp_path)
    assert again.find(secret) is not None
    await again.close()
