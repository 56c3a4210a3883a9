"""Removes on request what jobs left in volumes."""

from __future__ import annotations

from agentlink.values import Scope
from controller.base.errors import ServiceError
from controller.schema.volumes import DataRemovalView, RemovedDataView
from controller.state.offers import Directory
from controller.volumes.removal import DataRemover, Removed


class DataDesk:
    """Removes data on request. Raises ServiceError."""

    def __init__(self, remover: DataRemover) -> None:
        self._remover = remover

    async def remove(
        self, volume: str, owner: str, *, server: str | None, dry_run: bool
    ) -> DataRemovalView:
        """Remove the directory of ``PROJECT`` or ``PROJECT.JOB``, on one server or on all.

        With ``dry_run`` only return what would go. ServiceError ``not_found`` without such a
        directory, ``conflict`` while a job uses it.
        """
        directory = Directory(volume, Scope.JOB if "." in owner else Scope.PROJECT, owner)
        places = self._remover.find(directory, server)
        if not places:
            raise nothing_left(volume, owner, server)
        if dry_run:
            self._remover.check_unused(directory)
            done = [Removed(one) for one in places]
        else:
            done = await self._remover.remove(directory, places, "removed on request")
        return DataRemovalView(
            volume=volume,
            owner=owner,
            dry_run=dry_run,
            directories=[
                RemovedDataView(
                    server=one.left.server,
                    bytes=one.left.data.bytes,
                    files=one.left.data.files,
                    problem=one.problem,
                )
                for one in done
            ],
        )


def nothing_left(volume: str, owner: str, server: str | None = None) -> ServiceError:
    """Return the refusal for data that are not there, or that the caller may not see."""
    where = "" if server is None else f" on {server}"
    return ServiceError(
        "not_found",
        f"{owner} left nothing in volume {volume}{where}",
        object=f"volume/{volume}",
        hint="see `lightloom get volumes`",
    )
