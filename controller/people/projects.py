"""Projects as scheduling input: the site file's figures, then later changes."""

from __future__ import annotations

from collections.abc import Sequence

from controller.people.accounts import Accounts
from controller.people.accounts import StoredProject as Account
from scheduler.queue.model import DEFAULT_PROJECT, ProjectShare
from sitefile import CabledSite


class SharedProjects:
    """Lists the projects when called: those of the site file until the accounts are open."""

    def __init__(self, site: CabledSite) -> None:
        self._named = site.scheduling.projects
        self._accounts: Accounts | None = None

    def __call__(self) -> Sequence[ProjectShare]:
        """Return quota and fair share of every project as they are now."""
        if self._accounts is None:
            return self._named
        return [ProjectShare(p.name, p.weight, p.quota) for p in self._accounts.projects()]

    async def open(self, accounts: Accounts) -> None:
        """List the projects of ``accounts`` from now on.

        Creates the projects of the site file, or sets them to its figures; other projects stay as
        they are. ServiceError if the accounts cannot be written.
        """
        for project in self._named:
            if project == ProjectShare(DEFAULT_PROJECT):
                continue  # it exists without the site file
            await accounts.put_project(Account(project.name, project.weight, project.quota))
        self._accounts = accounts
