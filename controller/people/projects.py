"""Projects as scheduling input: the site file's figures, then later changes."""

from __future__ import annotations

from collections.abc import Callable

from controller.people.accounts import Accounts
from controller.people.accounts import Project as Account
from scheduler.queue.model import DEFAULT_PROJECT, Project
from sitefile import CabledSite


async def shared_projects(site: CabledSite, accounts: Accounts) -> Callable[[], list[Project]]:
    """Return a function that lists the present projects.

    At every start the projects in the site file are created, or set to its figures; other
    projects stay as they are. ServiceError if the accounts cannot be written.
    """
    for project in site.scheduling.projects:
        if project == Project(DEFAULT_PROJECT):
            continue  # it exists without the site file
        await accounts.put_project(Account(project.name, project.weight, project.quota))
    return lambda: [Project(p.name, p.weight, p.quota) for p in accounts.projects()]
