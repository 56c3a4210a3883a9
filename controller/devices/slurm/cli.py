"""Slurm by its own programs: ``scontrol`` and ``squeue`` with ``--json``."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE

from controller.devices.observed import ObservedError
from controller.devices.slurm.documents import Body, clean
from controller.devices.slurm.token import TokenFile
from controller.devices.slurm.transport import (
    JOBS_BYTES,
    NO_JOB,
    NO_JOBS,
    NO_NODE,
    NO_SUCH_NODE,
    OBJ,
    OVER,
    STATES_BYTES,
    fault,
    late,
    too_long,
)

TIMEOUT_S = 15.0
"""The programs themselves give slurmctld about 10 s."""
JOBS_TIMEOUT_S = 60.0
AT_ONCE = 4
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ERROR_BYTES = 65_536
_REAP_S = 5.0
_STATE = "%A|%T|%Q|%N|%r"
"""Job, state, priority, nodes, reason."""


class CliTransport:
    """Runs Slurm's programs; also reads how Slurm is set up, which slurmrestd does not say."""

    def __init__(
        self,
        programs: Path,
        prefix: Sequence[str] = (),
        token: TokenFile | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """``prefix`` is put before each program, such as ``/usr/sbin/chroot /srv/slurm``."""
        self._programs = programs
        self._prefix = tuple(prefix)
        self._token = token
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(AT_ONCE)

    @property
    def name(self) -> str:
        """What it is."""
        return "scontrol"

    async def release(self) -> str:
        """Return slurmctld's release."""
        config = await self.config()
        if not (release := config.get("SLURM_VERSION", "")):
            raise ObservedError("invalid", OBJ, "scontrol show config names no SLURM_VERSION")
        return clean(release, 40)

    async def states(self) -> Mapping[int, str]:
        """Return for every job its state, priority, nodes and reason, in one word."""
        arguments = ("-a", "-h", "-t", "all", "-o", _STATE)
        body = await self._run("squeue", *arguments, what="states of jobs", most=STATES_BYTES)
        try:
            return await asyncio.to_thread(states_of, body)
        except ValueError as error:
            raise ObservedError("invalid", OBJ, f"states of jobs: {error}") from error

    async def job(self, number: int) -> Body:
        """Return the document of one job."""
        arguments = ("show", "job", str(number), "--json")
        what = f"job {number}"
        try:
            return await self._run("scontrol", *arguments, what=what, most=STATES_BYTES)
        except ObservedError as error:
            if NO_JOB in error.message:
                return NO_JOBS
            raise

    async def jobs(self) -> Body:
        """Return the document of all jobs."""
        arguments = ("-a", "-t", "all", "--json")
        return await self._run(
            "squeue", *arguments, what="all jobs", most=JOBS_BYTES, limit_s=JOBS_TIMEOUT_S
        )

    async def nodes(self) -> Body:
        """Return the document of all nodes."""
        arguments = ("show", "nodes", "--json")
        return await self._run("scontrol", *arguments, what="nodes", most=STATES_BYTES)

    async def comment(self, number: int, text: str) -> bool:
        """Set the job's AdminComment."""
        arguments = ("update", f"jobid={number}", f"admincomment={text}")
        try:
            await self._run("scontrol", *arguments, what=f"comment of job {number}")
        except ObservedError as error:
            if NO_JOB in error.message or OVER in error.message:
                return False
            raise
        return True

    async def place(self, nodes: str, unit: str) -> None:
        """Put nodes under a unit of the topology; Slurm before 25.05 refuses it."""
        arguments = ("update", f"nodename={nodes}", f"topology={unit}")
        await self._run("scontrol", *arguments, what=f"topology of {clean(nodes, 80)}")

    async def reconfigure(self) -> None:
        """Make Slurm read its files again."""
        await self._run("scontrol", "reconfigure", what="reconfigure")

    async def administrates(self) -> bool:
        """Whether a change of a node that does not exist is refused for the node's name."""
        try:
            await self._run(
                "scontrol", "update", f"nodename={NO_SUCH_NODE}", "comment=x", what="rights"
            )
        except ObservedError as error:
            if NO_NODE in error.message:
                return True
            if error.code == "forbidden":
                return False
            raise
        return True

    async def config(self) -> Mapping[str, str]:
        """Return the configuration in force."""
        body = await self._run("scontrol", "show", "config", what="config", most=_ERROR_BYTES * 16)
        pairs = (line.partition("=") for line in _text(body).splitlines())
        return {key.strip(): value.strip() for key, equals, value in pairs if equals}

    async def topology(self) -> str:
        """Return the topology in force."""
        body = await self._run(
            "scontrol", "show", "topology", what="topology", most=_ERROR_BYTES * 256
        )
        return _text(body)

    async def close(self) -> None:
        """Do nothing: nothing is kept open."""

    async def _run(
        self,
        program: str,
        *arguments: str,
        what: str,
        most: int = _ERROR_BYTES,
        limit_s: float | None = None,
    ) -> Body:
        """Return what a program printed. ObservedError when it fails, prints more or is late."""
        limit_s = limit_s or self._timeout_s
        command = (*self._prefix, str(self._programs / program), *arguments)
        async with self._slots:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=DEVNULL,
                    stdout=PIPE,
                    stderr=PIPE,
                    env=await asyncio.to_thread(self._environment),
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                text = f"{what}: cannot run {command[0]} ({error.strerror})"
                hint = "correct engine.programs or engine.prefix in the site file"
                raise ObservedError("unavailable", OBJ, text, hint) from error
            errors = asyncio.create_task(_bounded(process.stderr, _ERROR_BYTES))
            try:
                async with asyncio.timeout(limit_s):
                    printed = await _bounded(process.stdout, most)
                    if sum(map(len, printed)) > most:
                        raise too_long(what, most)
                    said = await errors
                    code = await process.wait()
            except TimeoutError as error:
                raise late(what, limit_s) from error
            finally:
                errors.cancel()
                await asyncio.gather(errors, return_exceptions=True)
                await _end(process)
        if code:
            raise fault(_text(said) or f"exit code {code}", what)
        return printed

    def _environment(self) -> dict[str, str]:
        env = {"PATH": _PATH, "LANG": "C.UTF-8"}
        if self._token is not None:
            env["SLURM_JWT"] = self._token.read()
        return env


def states_of(body: Body) -> Mapping[int, str]:
    """Return job -> a digest of its lines. ValueError."""
    lines: dict[int, list[bytes]] = {}
    for line in b"".join(body).splitlines():
        number, bar, rest = line.partition(b"|")
        if not bar or not number.isdigit() or len(number) > 10:
            raise ValueError(f"not a line of squeue: {clean(line[:80].decode('latin-1'), 80)!r}")
        lines.setdefault(int(number), []).append(rest)
    return {
        number: hashlib.blake2b(b"\n".join(sorted(rest)), digest_size=12).hexdigest()
        for number, rest in lines.items()
    }


async def _bounded(stream: asyncio.StreamReader | None, most: int) -> Body:
    """Read a stream to its end, or a little beyond ``most`` bytes."""
    parts, size = [], 0
    while stream is not None and size <= most and (part := await stream.read(2**16)):
        parts.append(part)
        size += len(part)
    return parts


def _text(body: Body) -> str:
    return b"".join(body).decode("utf-8", errors="replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill a program that still runs, with its children, and take what it left in its pipes."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REAP_S):
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    await stream.read()
            await process.wait()
