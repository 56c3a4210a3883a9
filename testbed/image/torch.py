"""The PyTorch image, for CPUs: Debian's own ``python3-torch``, made only when somebody asks.

An image of its own beside the trainer's: PyTorch's wheels for x86-64 want several gigabytes of
CUDA, and Debian's build comes with Debian's Python and NumPy, not with the trainer's. It has gloo.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import docker
import requests

from testbed.engine import EngineInfo
from testbed.image.base import bootstrap, codename
from testbed.image.build import CACHE, ROOT, build, image_tag, locked
from testbed.image.errors import ImageError

REPOSITORY = "ll-torch"
LATEST = f"{REPOSITORY}:latest"
"""What a job file may name: the last one made."""

_DOCKERFILE = Path(__file__).with_name("torch.Dockerfile")
_EXAMPLE = Path("examples/torch_ddp.py")
_PACKAGES = "python3,python3-torch,iproute2,ethtool"
_TIMEOUT_S = 900


def ensure_torch_image(engine: EngineInfo, cache: Path = CACHE) -> str:
    """Return the image's tag, building it when ``engine`` lacks it.

    Takes some two minutes the first time, seconds when only the example changed. Raises ImageError.
    """
    tag = image_tag([_DOCKERFILE, ROOT / _EXAMPLE], REPOSITORY)
    base = f"{REPOSITORY}-base:{codename()}"
    files = {"Dockerfile": _DOCKERFILE, f"lightloom/{_EXAMPLE}": ROOT / _EXAMPLE}
    try:
        with (
            closing(docker.DockerClient(engine.host_url, timeout=_TIMEOUT_S)) as client,
            locked(cache / "image.lock"),
        ):
            if not client.images.list(name=tag):
                if not client.images.list(name=base):
                    bootstrap(client, cache, base, _PACKAGES)
                build(client, cache, tag, base, files)
            client.images.get(tag).tag(REPOSITORY, "latest")
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise ImageError(f"the engine refused: {error}", "is the Docker Engine healthy?") from error
    return tag
