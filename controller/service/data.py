"""Removes on request what jobs left in volumes."""

from __future__ import annotations

from controller.base.errors import ServiceError
from controller.devices.engine import Scope
from controller.schema.volumes import DataRemovalRequest, DataRemovalView, RemovedDataView
from controller.state.offers import Directory
from controller.state.state import State
from controller.volumes.removal import DataRemover, Removed


class DataCommands:
    """The command that removes data. Raises ServiceError."""

    def __init__(self, state: State, remover: DataRemover) -> None:
        self._state = state
        self._remover = remover

    async def remove(self, volume: str, request: DataRemovalRequest) -> DataRemovalView:
        """Remove a project's or a job's directory; with ``dry_run`` only say what would go.

        ServiceError ``not_found`` without such a directory, ``conflict`` while a job uses it.
        """
        directory = self._directory(volume, request)
        places = self._remover.find(directory, request.server)
        if not places:
            raise self._nothing(volume, request)
        if request.dry_run:
            self._remover.check_unused(directory)
            done = [Removed(one) for one in places]
        else:
            done = await self._remover.remove(directory, places, "removed on request")
        project, _, job = directory.owner.partition(".")
        return DataRemovalView(
            volume=volume,
            project=project,
            job=job or None,
            dry_run=request.dry_run,
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

    def _directory(self, volume: str, request: DataRemovalRequest) -> Directory:
        if request.job is None:
            return Directory(volume, Scope.PROJECT, str(request.project))
        if request.project is not None:
            return Directory(volume, Scope.JOB, f"{request.project}.{request.job}")
        found = {
            directory
            for offer in self._state.offers.servers.values()
            for directory in offer.data.get(volume, ())
            if directory.scope is Scope.JOB and directory.owner.partition(".")[2] == request.job
        }
        if not found:
            raise self._nothing(volume, request)
        if len(found) > 1:
            projects = sorted(directory.owner.partition(".")[0] for directory in found)
            raise ServiceError(
                "conflict",
                f"jobs {request.job} of projects {', '.join(projects)} left data in {volume}",
                object=f"volume/{volume}",
                hint="name the project as well",
            )
        return found.pop()

    def _nothing(self, volume: str, request: DataRemovalRequest) -> ServiceError:
        whose = f"project {request.project}" if request.job is None else f"job {request.job}"
        where = "" if request.server is None else f" on {request.server}"
        return ServiceError(
            "not_found",
            f"{whose} left nothing in volume {volume}{where}",
            object=f"volume/{volume}",
            hint="see `lightloom get volumes`",
        )
