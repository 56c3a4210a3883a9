"""Builds the PyTorch image for CPUs from Debian's ``python3-torch``, only on request.

It is separate from the trainer's image: PyTorch's wheels for x86-64 need several gigabytes of
CUDA, and Debian's build comes with Debian's Python and NumPy, not with the trainer's. It has gloo.
Debian 13 has version 2.6, with distributed checkpoints that are written beside the training.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import docker
import requests

from testbed.engine import EngineInfo
from testbed.image.base import NEWER_DEBIAN, bootstrap, newer_debian
from testbed.image.build import CACHE, ROOT, build, image_tag, lacking
from testbed.image.errors import ImageError

REPOSITORY = "ll-torch"
LATEST = f"{REPOSITORY}:latest"
"""Tag of the latest build, for job files."""

_DOCKERFILE = Path(__file__).with_name("torch.Dockerfile")
_EXAMPLES = tuple(
    Path("examples") / name for name in ("torch_ddp.py", "torch_checkpoint.py", "torch_dcp.py")
)
_PACKAGES = "python3,python3-torch,iproute2,ethtool"
_TIMEOUT_S = 900


def ensure_torch_image(engine: EngineInfo, cache: Path = CACHE) -> str:
    """Return the image's tag; build the image if ``engine`` lacks it.

    The first build takes about a minute, a build after a change of the example seconds.
    Raises ImageError.
    """
    tag = image_tag([_DOCKERFILE, *(ROOT / example for example in _EXAMPLES)], REPOSITORY)
    base = f"{REPOSITORY}-base:{NEWER_DEBIAN}"
    files = {"Dockerfile": _DOCKERFILE}
    files |= {f"lightloom/{example}": ROOT / example for example in _EXAMPLES}
    try:
        with (
            closing(docker.DockerClient(engine.host_url, timeout=_TIMEOUT_S)) as client,
            lacking(client, tag, cache) as missing,
        ):
            if missing:
                if not client.images.list(name=base):
                    bootstrap(client, cache, base, _PACKAGES, newer_debian())
                build(client, cache, tag, base, files)
            client.images.get(tag).tag(REPOSITORY, "latest")
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise ImageError(f"the engine refused: {error}", "check the Docker Engine") from error
    return tag
