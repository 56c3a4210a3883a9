"""The ways to Slurm: what the engine asks of them, and what their errors mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from controller.devices.observed import ObservedError
from controller.devices.slurm.documents import Body, clean

OBJ = "slurm"
STATES_BYTES = 64 * 2**20
"""Most bytes of an answer about states, nodes or one job."""
JOBS_BYTES = 512 * 2**20
"""Most bytes of an answer with all jobs; 5,000 of them are about 85 MB."""
NO_SUCH_NODE = "lightloom-no-such-node"
"""To change it is refused: for its name, or for who asks."""
NO_JOBS: Body = (b'{"jobs": []}',)

NO_JOB = "Invalid job id specified"
NO_NODE = "Invalid node name specified"
OVER = "Job/step already completing or completed"

_FORBIDDEN = (
    "Authentication failure",
    "Protocol authentication error",
    "Access/permission denied",
    "Invalid user id",
    "Operation not permitted",
)
_AWAY = (
    "Unable to contact slurm controller",
    "Unspecified error",
    "Connection refused",
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Slurm backup controller in standby mode",
)


class Transport(Protocol):
    """Reads Slurm's jobs and nodes and changes a little. Every call ends by its own time limit.

    All methods raise ObservedError. Documents are raw JSON: their lists are ``jobs`` and ``nodes``.
    """

    @property
    def name(self) -> str:
        """What it is, with its version: ``slurmrestd v0.0.42``, ``scontrol``."""
        ...

    async def release(self) -> str:
        """Return Slurm's release: ``24.11.5``."""
        ...

    async def states(self) -> Mapping[int, str]:
        """Return for every job a text that changes when its state does."""
        ...

    async def job(self, number: int) -> Body:
        """Return the document of one job; of several for an array. Without jobs: none is known."""
        ...

    async def jobs(self) -> Body:
        """Return the document of all jobs."""
        ...

    async def nodes(self) -> Body:
        """Return the document of all nodes."""
        ...

    async def comment(self, number: int, text: str) -> bool:
        """Show a text to a job's owner; False when the job has gone."""
        ...

    async def place(self, nodes: str, unit: str) -> None:
        """Put nodes, a hostlist, under a unit of the topology, until the next reconfigure."""
        ...

    async def reconfigure(self) -> None:
        """Make Slurm read its files again. It answers before it has."""
        ...

    async def administrates(self) -> bool:
        """Whether it may change nodes and jobs of others. Changes nothing."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


class Setup(Protocol):
    """Reads how Slurm is set up; only its own programs say all of it. Raises ObservedError."""

    async def config(self) -> Mapping[str, str]:
        """Return the configuration in force: ``TopologyPlugin`` -> ``topology/tree``."""
        ...

    async def topology(self) -> str:
        """Return the topology in force, as ``scontrol show topology`` writes it."""
        ...


def fault(text: str, what: str) -> ObservedError:
    """Return the error that Slurm's words mean; ``what`` says what was tried."""
    words = clean(" ".join(text.split()), 300)
    message = f"{what}: {words or 'no answer that can be read'}"
    if any(known in text for known in _FORBIDDEN):
        hint = "give lightloom's user AdminLevel=Administrator, and a token that is valid"
        return ObservedError("forbidden", OBJ, message, hint)
    if any(known in text for known in _AWAY):
        return ObservedError("unavailable", OBJ, message, "see whether slurmctld runs")
    return ObservedError("invalid", OBJ, message, "see slurmctld's log")


def late(what: str, limit_s: float) -> ObservedError:
    """Return the error of a call whose outcome is not known."""
    hint = "see whether slurmctld is up and not overloaded"
    return ObservedError("timeout", OBJ, f"{what}: no answer in {limit_s:g} s", hint)


def too_long(what: str, most: int) -> ObservedError:
    """Return the error of an answer that exceeds its bound."""
    return ObservedError("invalid", OBJ, f"{what}: an answer of more than {most} bytes")
