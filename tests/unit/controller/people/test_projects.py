"""Projects of the site file and of people's accounts are one list."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from controller.people.accounts import Accounts
from controller.people.accounts import StoredProject as Account
from controller.people.projects import SharedProjects
from scheduler.queue.model import ProjectShare
from sitefile import Scheduling, load_site
from tests.parts.sites import PAPER


async def test_the_site_file_sets_what_it_lists_and_leaves_the_rest(tmp_path: Path) -> None:
    listed = (ProjectShare("default"), ProjectShare("vision", 2.0, 4))
    site = replace(load_site(PAPER), scheduling=Scheduling(projects=listed, named=True))
    accounts = Accounts(tmp_path / "accounts.sqlite", lambda: 0.0)
    await accounts.open()
    try:
        await accounts.put_project(Account("default", 1.0, 3))
        await accounts.put_project(Account("speech", 3.0))
        await accounts.put_project(Account("vision", 9.0, 9))
        projects = SharedProjects(site)
        assert set(projects()) == set(listed), "until the accounts are open"
        await projects.open(accounts)
        expected = {
            ProjectShare("default", 1.0, 3),
            ProjectShare("speech", 3.0),
            ProjectShare("vision", 2.0, 4),
        }
        assert set(projects()) == expected
        await accounts.put_project(Account("vision", 1.0, 1))
        assert ProjectShare("vision", 1.0, 1) in projects()
    finally:
        await accounts.close()
