"""Decides what an image's name means, from the answers of the servers. Pure."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence

from container_mgr.ranks.images import repository
from controller.base.errors import ServiceError
from controller.base.texts import clipped
from controller.devices.engine import Pull, ServerImage
from controller.schema.submit.request import JobRequest
from sitefile import CabledSite

ID = re.compile(r"(sha256:)?[0-9a-f]{64}")
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
_NAMED = 10
"""Most servers that one message lists."""


def hosts(site: CabledSite, request: JobRequest) -> frozenset[str]:
    """Return the servers where ranks of a job can be placed."""
    return frozenset(
        e.server
        for e in site.endpoints
        if (not request.endpoints or e.name in request.endpoints)
        and request.model in (None, e.model)
        and e.memory_bytes >= request.min_memory_bytes
    )


def pin_key(request: JobRequest) -> Hashable:
    """Return what the meaning of a job's image depends on, besides the site and the moment."""
    where = request.model, request.min_memory_bytes, tuple(request.endpoints)
    return request.image, request.project, request.pull, where


def pinned(image: str, digest: str) -> str:
    """Return the name of an image with a digest of its registry."""
    name = image.partition("@")[0]
    path, colon, tag = name.rpartition(":")
    return f"{path if colon and '/' not in tag else name}@{digest}"


def decide(image: str, pull: Pull, found: Sequence[ServerImage]) -> str | None:
    """Return the reference that every rank starts with; None when only the registry can say it.

    That is NAME@sha256:... where the servers know a digest of the registry, and else the image's
    id. Empty when no server answers. ServiceError when a server that can host the job lacks the
    image and would not fetch it, or when two servers have different images under the name.
    """
    if not found:
        return ""
    holders = [server for server in found if server.present]
    if pull is Pull.ALWAYS:
        _check_pulls(image, [server for server in found if server.refusal])
        return image if _DIGEST.search(image) else None
    lacking = [server for server in found if not server.present]
    if pull is Pull.NEVER:
        _check_present(image, lacking, holders)
    else:
        _check_pulls(image, [server for server in lacking if server.refusal])
    if not holders:
        return image if _DIGEST.search(image) else None
    pin = _common(image, holders)
    if lacking and ID.fullmatch(pin):
        raise _unfit(
            image,
            f"image {clipped(image)} of {holders[0].server} comes from no registry, and"
            f" {_servers(lacking)} cannot fetch it",
            "load it there, or name endpoints of other servers with --endpoints",
        )
    return pin


def reference(image: str, found: ServerImage) -> str:
    """Return NAME@sha256:... or the id of an image that is on a server."""
    return _common(image, [found])


def _common(image: str, holders: Sequence[ServerImage]) -> str:
    """Return the digest, or else the id, that all these servers share."""
    wanted = repository(image)
    digests = frozenset.intersection(
        *(
            frozenset(n for n in s.names if _DIGEST.search(n) and repository(n) == wanted)
            for s in holders
        )
    )
    if digests:
        return image if image in digests else min(digests)
    first = holders[0]
    other = next((server for server in holders if server.id != first.id), None)
    if other is None:
        return first.id
    raise ServiceError(
        "conflict",
        f"image {clipped(image)} is {first.id[:19]} on {first.server} and {other.id[:19]} on"
        f" {other.server}",
        object=f"image/{clipped(image)}",
        hint="load the same image on both, submit with --pull always, or name a digest",
    )


def _check_present(
    image: str, lacking: Sequence[ServerImage], holders: Sequence[ServerImage]
) -> None:
    if lacking:
        elsewhere = "" if not holders else ", or name endpoints of other servers with --endpoints"
        raise _unfit(
            image,
            f"image {clipped(image)} is not on {_servers(lacking)}",
            f"load it there, submit with --pull missing{elsewhere}",
        )


def _check_pulls(image: str, refusing: Sequence[ServerImage]) -> None:
    if refusing:
        raise _unfit(
            image,
            f"{_servers(refusing)} would not fetch image {clipped(image)}: {refusing[0].refusal}",
            "see docs/images.md",
        )


def _unfit(image: str, text: str, hint: str) -> ServiceError:
    return ServiceError("invalid", text, object=f"image/{clipped(image)}", hint=hint)


def _servers(found: Sequence[ServerImage]) -> str:
    names = [server.server for server in found]
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + rest
