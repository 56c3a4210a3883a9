"""Accounts with one administrator."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from controller.api.gate.access import Access
from controller.people.accounts import Accounts
from tests.parts.api.people import Clock


@contextlib.asynccontextmanager
async def people(folder: Path) -> AsyncIterator[tuple[Access, str]]:
    """Open accounts; return them and an admin's token."""
    accounts = Accounts(folder / "accounts.sqlite", Clock())
    await accounts.open()
    token = (await accounts.bootstrap(folder)).read_text().strip()
    try:
        yield Access(accounts, clock=Clock()), token
    finally:
        await accounts.close()
