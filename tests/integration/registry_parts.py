"""A registry with a password on loopback, which Docker Engine accepts without TLS."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

USER = "ll-puller"
PASSWORD = "ll-s3cret-pull"  # noqa: S105 - of the registry in this file only
_HASH = "$2b$04$qo.q/RFRl.AXD6zVJCZnd.fEemddyWVb7ZmGFZZnnJiRwae8pEimO"
_CONFIG = """
version: 0.1
log: {{accesslog: {{disabled: false}}, level: info}}
storage: {{filesystem: {{rootdirectory: {root}}}}}
http: {{addr: {address}, secret: ll-test}}
auth: {{htpasswd: {{realm: ll-test, path: {users}}}}}
"""


@dataclass
class Registry:
    """A running registry at ``address`` (HOST:PORT); ``log`` has a line per request."""

    address: str
    log: Path

    def manifests_read(self, name: str) -> int:
        """Return how often an image's manifest was downloaded."""
        return len(re.findall(rf'"GET /v2/{name}/manifests/[^"]*" 200', self.log.read_text()))


@contextlib.contextmanager
def registry(directory: Path) -> Iterator[Registry]:
    """Run Debian's docker-registry with one user."""
    program = shutil.which("docker-registry")
    assert program is not None, "install docker-registry, see testbed/setup/setup.sh"
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    directory.mkdir()
    users, config, log = (directory / n for n in ("users", "config.yml", "log"))
    users.write_text(f"{USER}:{_HASH}\n", encoding="ascii")
    text = _CONFIG.format(root=directory / "images", address=address, users=users)
    config.write_text(text, encoding="ascii")
    with log.open("wb") as out:
        process = subprocess.Popen(
            [program, "serve", str(config)], stdout=out, stderr=out, env=_plain_environment()
        )
    try:
        _wait_for(address, process, log)
        yield Registry(address, log)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _plain_environment() -> dict[str, str]:
    """Return the environment without variables that the registry would read as settings."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("REGISTRY_", "OTEL_"))}


def _wait_for(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            urllib.request.urlopen(f"http://{address}/v2/", timeout=5)
        except urllib.error.HTTPError as error:
            assert error.code == 401
            return
        except OSError:
            time.sleep(0.05)
