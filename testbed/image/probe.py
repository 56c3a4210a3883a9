"""Builds the image of the probes from the host's distribution: UCX, perftest, fio and Python."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import docker
import requests

from testbed.engine import EngineInfo
from testbed.image.base import bootstrap, codename, own_release
from testbed.image.build import CACHE, build, image_tag, lacking
from testbed.image.errors import ImageError

REPOSITORY = "ll-probe"

_DOCKERFILE = Path(__file__).with_name("probe.Dockerfile")
_PACKAGES = "python3,ucx-utils,perftest,fio,iproute2"
_TIMEOUT_S = 900


def ensure_probe_image(engine: EngineInfo, cache: Path = CACHE) -> str:
    """Return the image's tag; build the image if ``engine`` lacks it, which takes a minute.

    Raises ImageError.
    """
    tag = image_tag([_DOCKERFILE], REPOSITORY)
    base = f"{REPOSITORY}-base:{codename()}"
    try:
        with (
            closing(docker.DockerClient(engine.host_url, timeout=_TIMEOUT_S)) as client,
            lacking(client, tag, cache) as missing,
        ):
            if missing:
                if not client.images.list(name=base):
                    bootstrap(client, cache, base, _PACKAGES, own_release())
                build(client, cache, tag, base, {"Dockerfile": _DOCKERFILE})
            client.images.get(tag).tag(REPOSITORY, "latest")
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise ImageError(f"the engine refused: {error}", "check the Docker Engine") from error
    return tag
