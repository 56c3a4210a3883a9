"""People's projects as scheduling input: the site file's figures, then what was changed since."""

from __future__ import annotations

from collections.abc import Callable

from controller.people.accounts import Accounts
from controller.people.accounts import Project as Account
from scheduler.queue.model import DEFAULT_PROJECT, Project
from sitefile import CabledSite


async def shared_projects(site: CabledSite, accounts: Accounts) -> Callable[[], list[Project]]:
    """Return what lists the projects at any moment.

    The projects that the site file lists are made, or set to its figures, at every start; what
    it does not list is left as people made it. ServiceError when the accounts can not be
    written.
    """
    for project in site.scheduling.projects:
        if project == Project(DEFAULT_PROJECT):
            continue  # there without a word of the site file
        await accounts.put_project(Account(project.name, project.weight, project.quota))
    return lambda: [Project(p.name, p.weight, p.quota) for p in accounts.projects()]
