"""Documents of volumes and of what jobs left in them. Changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from controller.base.slices import in_slices
from controller.devices.engine import OfferedVolume, VolumeData
from controller.schema.volumes import VolumeDataView, VolumeView
from controller.state.offers import Directory
from controller.state.state import State
from controller.volumes import keep

NOT_IN_SITE = "the site file does not have it"


class VolumeViews:
    """Makes the views of volumes."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def volumes(self) -> list[VolumeView]:
        """Return the volumes of every server: the site's first, then others that it offers."""
        state = self._state
        offers, records = dict(state.offers.servers), list(state.jobs.values())
        # In a thread: a site may hold many thousands of directories.
        using, kept = await asyncio.to_thread(
            lambda: (
                keep.users(state.site, records, keep.left(offers)),
                keep.ends(state.site, records, keep.left(offers)),
            )
        )
        named: list[tuple[str, str]] = []
        for server in state.site.servers:
            offer = offers.get(server.name)
            names = dict.fromkeys([*state.site.volumes, *(offer.volumes if offer else ())])
            named += [(server.name, name) for name in names]
        return await in_slices(named, lambda pair: self._volume(*pair, using, kept))

    def _volume(
        self,
        server: str,
        name: str,
        using: Mapping[Directory, tuple[str, ...]],
        kept: Mapping[Directory, float],
    ) -> VolumeView:
        state = self._state
        offer, volume = state.offers.servers.get(server), state.site.volumes.get(name)
        offered = offer.volumes.get(name) if offer else None
        read_only = volume.read_only if volume else offered is None or offered.read_only
        shown = offered or OfferedVolume(name, read_only)
        return VolumeView(
            name=name,
            server=server,
            mode="ro" if read_only else "rw",
            per=volume.per if volume else "site",
            projects=sorted(volume.projects) if volume else [],
            problem=state.offers.why(server, name) if volume else NOT_IN_SITE,
            filesystem=shown.filesystem,
            total_bytes=shown.total_bytes,
            free_bytes=shown.free_bytes,
            quota=shown.quota,
            read_at=offer.read_at if offer else None,
            data=[
                _data(directory, data, using, kept)
                for directory, data in (offer.data.get(name, {}) if offer else {}).items()
            ],
        )


def _data(
    directory: Directory,
    data: VolumeData,
    using: Mapping[Directory, tuple[str, ...]],
    kept: Mapping[Directory, float],
) -> VolumeDataView:
    project, _, job = data.owner.partition(".")
    return VolumeDataView(
        owner=data.owner,
        project=project,
        job=job or None,
        uid=data.uid,
        bytes=data.bytes,
        files=data.files,
        quota_bytes=data.quota_bytes,
        created_at=data.created_at,
        used_at=data.used_at,
        measured_at=data.measured_at,
        used_by=list(using.get(directory, ())),
        kept_until=kept.get(directory),
    )
