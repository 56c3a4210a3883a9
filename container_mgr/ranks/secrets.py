"""The secrets of a rank, from the agent to its entry script.

They are a file in the rank's directory, which only its container has: in the container's
configuration everyone who may ask the engine would see them. The directory is in memory below a
directory of mode 0700, so the file can be readable: the rank's user, whatever its number is inside,
must read it. It goes when the entry script has read it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from container_mgr import atomic_file
from container_mgr.docker.entry import SECRETS_FILE
from container_mgr.values import AgentError


def assignments(secrets: Mapping[str, str]) -> str:
    """Return shell lines that export the variables; a value is any text without NUL."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in secrets.items())


def write(directory: Path, container: str, secrets: Mapping[str, str]) -> None:
    """Write a rank's secrets into its directory; no file without secrets. AgentError."""
    if not secrets:
        return
    try:
        atomic_file.write(directory / SECRETS_FILE, assignments(secrets), mode=0o444, durable=False)
    except OSError as error:
        raise AgentError(
            "failed",
            container,
            f"its secrets cannot be handed over: {error.strerror}",
            "free space in the agent's state directory",
        ) from None


def are_in(directory: Path) -> bool:
    """Whether a rank's directory still has its secrets."""
    return (directory / SECRETS_FILE).exists()


def remove(directory: Path) -> None:
    """Remove a rank's secrets from its directory; nothing happens without any. OSError."""
    (directory / SECRETS_FILE).unlink(missing_ok=True)
