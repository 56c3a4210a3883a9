"""Decides which images a server runs and which it may fetch. Pure: it checks names only."""

from __future__ import annotations

import re
from collections.abc import Collection

from container_mgr.values import AgentError

DEFAULT_REGISTRY = "docker.io"
"""The registry that an engine uses when a name has none."""

IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")
_DIGEST = re.compile(r"(^|@)sha256:[0-9a-f]{64}$")
_REGISTRY = re.compile(
    r"[a-z0-9]([a-z0-9.-]{0,252}[a-z0-9])?(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*){0,8}"
)


def check(image: str, obj: str, *, digest_only: bool = False) -> None:
    """Raise AgentError(invalid) for an invalid name, or a tag where digests are required."""
    if IMAGE.fullmatch(image) is None:
        raise AgentError("invalid", obj, f"{image[:80]!r} is not an image reference")
    if digest_only and _DIGEST.search(image) is None:
        raise AgentError(
            "invalid", obj, f"image {image} is named by a tag, this agent accepts digests only",
            "name@sha256:… or the id that `docker image ls --no-trunc` shows",
        )  # fmt: skip


def check_pull(image: str, obj: str, registries: Collection[str]) -> None:
    """Raise AgentError(invalid) unless ``image`` is in one of ``registries``.

    Each is HOST or HOST:PORT, optionally with a path; it covers everything below.
    """
    if re.fullmatch(r"(sha256:)?[0-9a-f]{64}", image):
        raise AgentError(
            "invalid", obj, f"image {image} is named by its id, by which no registry can find it",
            "load it on the server, or name it NAME@sha256:…",
        )  # fmt: skip
    name = repository(image)
    if not any(name == entry or name.startswith(f"{entry}/") for entry in registries):
        raise AgentError(
            "invalid", obj, f"image {image} may not be fetched: its registry is not listed",
            "ask the operator for --registry on the agents, or to load it on the servers",
        )  # fmt: skip


def repository(image: str) -> str:
    """Return REGISTRY/PATH of an image, without tag and digest, as an engine reads it."""
    name = image.partition("@")[0]
    first, slash, rest = name.partition("/")
    if not slash or not (set(".:") & set(first) or first == "localhost" or first != first.lower()):
        host, path = DEFAULT_REGISTRY, name if slash else f"library/{name}"
    else:
        host, path = first.lower(), rest
        if host == f"index.{DEFAULT_REGISTRY}":
            host = DEFAULT_REGISTRY
        if host == DEFAULT_REGISTRY and "/" not in path:
            path = f"library/{path}"
    return f"{host}/{path.partition(':')[0]}"


def is_registry(text: str) -> bool:
    """Return whether this is a valid registry: HOST[:PORT][/PATH]."""
    return _REGISTRY.fullmatch(text) is not None
