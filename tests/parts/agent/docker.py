"""Fakes of Docker and of the kernel's NICs: plain processes, and a table of each NIC's namespace.

Ranks are real processes with real logs, so the agent's own work (watching, freezing, reading
logs) is real; only the engine's calls are faked. Each call can fail like one of a hung daemon:
before it took effect (``lost``) or after (``late``).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from agentlink.values import NicReport, NicSpec, RegistryLogin
from base import clock
from container_mgr.docker.attached import Stream
from container_mgr.docker.engine import (
    EngineFacts,
    EngineRefusedError,
    EngineTimeoutError,
    ExecState,
    Image,
    ListedImage,
    PullState,
    RegistryDeniedError,
)
from container_mgr.docker.inspection import container_of
from container_mgr.values import AgentError, Attach, Container

IMAGE = "ll-fake:1"
IMAGE_ID = f"sha256:{'a' * 64}"
REGISTRY_DIGEST = f"sha256:{'d' * 64}"


@dataclass
class FakeContainer:
    """One container that is a process of this machine."""

    raw: dict[str, Any]
    command: list[str]
    proc: Path
    process: subprocess.Popen[bytes] | None = None
    copiers: list[threading.Thread] = field(default_factory=list)
    missed: bool = False
    """The engine has missed its end, and neither stops nor removes it."""

    def spawn(self) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(self.command, stdout=pipe, stderr=pipe, process_group=0)
        pid = self.process.pid
        self.raw["State"] |= {"Status": "running", "Pid": pid, "StartedAt": _now()}
        self.appear(pid)
        log = Path(self.raw["LogPath"])
        log.touch()
        lock = threading.Lock()
        for stream in ("stdout", "stderr"):
            source = getattr(self.process, stream)
            copier = threading.Thread(
                target=copy_lines, args=(source, stream, log, lock), daemon=True
            )
            copier.start()
            self.copiers.append(copier)

    def appear(self, pid: int) -> None:
        """Make the fake /proc show this process in the container."""
        as_seen = self.proc / str(pid)
        as_seen.mkdir(parents=True, exist_ok=True)
        with (as_seen / "cgroup").open("a", encoding="ascii") as groups:
            groups.write(f"0::/ll-test/{self.raw['Id']}\n")
        for directory in ("run/lightloom", "lightloom/record"):
            (as_seen / "root" / directory).mkdir(parents=True, exist_ok=True)
        for name in ("ns", "stat"):
            if not (as_seen / name).is_symlink():
                (as_seen / name).symlink_to(f"/proc/{pid}/{name}")

    def refresh(self) -> None:
        state = self.raw["State"]
        if self.process is None or self.missed or state["Status"] == "exited":
            return
        code = self.process.poll()
        # Like Docker: the log is complete before the container is reported as exited.
        if code is not None and not any(copier.is_alive() for copier in self.copiers):
            state |= {"Status": "exited", "Pid": 0, "FinishedAt": _now()}
            state["ExitCode"] = code if code >= 0 else 128 - code


@dataclass
class FakeExec:
    """One command in a container, without a terminal; has the methods of ``Attached``."""

    container: FakeContainer
    command: list[str]
    process: asyncio.subprocess.Process | None = None
    pieces: asyncio.Queue[tuple[Stream, bytes] | None] = field(
        default_factory=lambda: asyncio.Queue(1)
    )
    pump: asyncio.Task[None] | None = None

    async def begin(self) -> FakeExec:
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(
            *self.command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        self.container.appear(self.process.pid)
        self.pump = asyncio.create_task(self._pump())
        return self

    async def _pump(self) -> None:
        assert self.process is not None

        async def copy(stream: Stream, source: Any) -> None:
            while data := await source.read(32 * 1024):
                await self.pieces.put((stream, data))

        await asyncio.gather(
            copy("stdout", self.process.stdout), copy("stderr", self.process.stderr)
        )
        await self.process.wait()
        await self.pieces.put(None)

    async def read(self) -> tuple[Stream, bytes] | None:
        return await self.pieces.get()

    async def write(self, data: bytes) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        await self.process.stdin.drain()

    def close_input(self) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.close()

    def close(self) -> None:
        if self.pump is not None:
            self.pump.cancel()


@dataclass
class FakeDocker:
    """Has the methods of :class:`container_mgr.docker.engine.DockerHost`."""

    logs: Path
    lost: Counter[str] = field(default_factory=Counter)
    late: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    containers: dict[str, FakeContainer] = field(default_factory=dict)
    execs: dict[str, FakeExec] = field(default_factory=dict)
    registry: bool = False
    """Images can be fetched."""
    denied: bool = False
    """The registry refuses every login."""
    pulling: asyncio.Event | None = None
    """A pull ends when this is set; None ends it at once."""
    pulled: list[str] = field(default_factory=list)
    logins: list[RegistryLogin | None] = field(default_factory=list)
    container_type: ClassVar[type[FakeContainer]] = FakeContainer

    @property
    def proc(self) -> Path:
        """A fake /proc with the cgroups of the containers' processes."""
        return self.logs / "proc"

    async def facts(self) -> EngineFacts:
        return EngineFacts("fake", "cgroupfs", 8 << 30)

    async def image(self, reference: str) -> Image | None:
        there = reference in (IMAGE, *self.pulled)
        return Image(IMAGE_ID, 1, (), (), names=(reference,)) if there else None

    async def pull(
        self,
        reference: str,
        login: RegistryLogin | None = None,
        report: Callable[[PullState], None] = lambda state: None,
    ) -> None:
        self._begin("pull")
        self.logins.append(login)
        if self.pulling is not None:
            report(PullState(1, 2, 10, 20))
            await self.pulling.wait()
        if self.denied:
            raise RegistryDeniedError("unauthorized: authentication required")
        if not self.registry:
            raise EngineRefusedError("dial tcp 10.9.8.7:5000: connect: connection refused")
        self.pulled.append(reference)

    async def registry_digest(self, reference: str, login: RegistryLogin | None = None) -> str:
        self._begin("registry_digest")
        self.logins.append(login)
        if self.denied:
            raise RegistryDeniedError("unauthorized: authentication required")
        if not self.registry:
            raise EngineRefusedError("dial tcp 10.9.8.7:5000: connect: connection refused")
        return REGISTRY_DIGEST

    async def images(self) -> list[ListedImage]:
        return [ListedImage(IMAGE_ID, (IMAGE, *self.pulled), 1)]

    async def images_in_use(self) -> dict[str, frozenset[str]]:
        jobs = frozenset(self.seen(name).key.job for name in self.containers)
        return {IMAGE_ID: jobs} if self.containers else {}

    async def remove_image(self, reference: str) -> None:
        self._begin("remove_image")
        if reference in self.pulled:
            self.pulled.remove(reference)

    async def list(self, server: str, job: str | None = None) -> list[Container]:
        self._begin("list")
        found = [self.seen(name) for name in self.containers]
        return sorted((c for c in found if job in (None, c.key.job)), key=lambda c: c.key)

    async def inspect(self, name: str) -> Container | None:
        self._begin("inspect")
        return self.seen(name) if name in self.containers else None

    async def create(self, container: dict[str, Any], host: dict[str, Any]) -> None:
        self._begin("create")
        name = container["name"]
        if name in self.containers:
            raise EngineRefusedError("the name is in use")
        raw = {
            "Id": uuid.uuid4().hex,
            "Name": f"/{name}",
            "Config": {"Labels": container["labels"]},
            "State": {"Status": "created", "Pid": 0, "ExitCode": 0},
            "HostConfig": {"Memory": host["mem_limit"]},
            "LogPath": str(self.logs / f"{name}-json.log"),
        }
        self.containers[name] = self.container_type(raw, container["command"], self.proc)
        self._end("create")

    async def start(self, name: str) -> None:
        self._begin("start")
        self.containers[name].spawn()
        self._end("start")

    async def stop(self, name: str, grace_s: float) -> None:
        self._begin("stop")
        self._refuse_missed(name)
        self._kill(self.containers[name])
        self._end("stop")

    async def remove(self, name: str) -> None:
        self._begin("remove")
        self._refuse_missed(name)
        one = self.containers.pop(name, None)
        if one is not None:
            self._kill(one)
        self._end("remove")

    async def pause(self, name: str) -> None:
        await self._freezer("pause", name, signal.SIGSTOP, "paused")

    async def unpause(self, name: str) -> None:
        await self._freezer("unpause", name, signal.SIGCONT, "running")

    async def limit_cpu(self, name: str, share: float) -> None:
        self._begin("limit_cpu")

    async def exec_create(self, name: str, command: Sequence[str], *, terminal: bool) -> str:
        self._begin("exec_create")
        one = next(c for c in self.containers.values() if c.raw["Id"] == name)
        ident = uuid.uuid4().hex
        self.execs[ident] = FakeExec(one, list(command))
        return ident

    async def exec_attach(self, ident: str, *, terminal: bool) -> FakeExec:
        self._begin("exec_attach")
        return await self.execs[ident].begin()

    async def exec_resize(self, ident: str, rows: int, columns: int) -> None:
        self._begin("exec_resize")

    async def exec_state(self, ident: str) -> ExecState | None:
        self._begin("exec_state")
        process = self.execs[ident].process
        if process is None:
            return ExecState(running=False)
        code = process.returncode
        if code is None:
            return ExecState(running=True, pid=process.pid)
        return ExecState(running=False, exit_code=code if code >= 0 else 128 - code)

    def close(self) -> None:
        for one in self.containers.values():
            self._kill(one)
        for command in self.execs.values():
            if command.process is not None:
                command.process._transport.close()  # type: ignore[attr-defined]  # kills it

    async def _freezer(self, call: str, name: str, sig: signal.Signals, status: str) -> None:
        self._begin(call)
        one = self.containers[name]
        if self.seen(name).state == status:
            raise EngineRefusedError(f"is already {status}")
        assert one.process is not None
        os.killpg(one.process.pid, sig)
        one.raw["State"]["Status"] = status
        self._end(call)

    def seen(self, name: str) -> Container:
        self.containers[name].refresh()
        return container_of(self.containers[name].raw)

    def _refuse_missed(self, name: str) -> None:
        if name in self.containers and self.containers[name].missed:
            raise EngineRefusedError("tried to kill container, but did not receive an exit event")

    def _kill(self, one: FakeContainer) -> None:
        if one.process is not None and one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait(timeout=30)
        for copier in one.copiers:
            copier.join(timeout=30)
        one.refresh()

    def _begin(self, call: str) -> None:
        self.calls[call] += 1
        if self.lost[call] > 0:
            self.lost[call] -= 1
            raise EngineTimeoutError("no answer")

    def _end(self, call: str) -> None:
        if self.late[call] > 0:
            self.late[call] -= 1
            raise EngineTimeoutError("no answer")


@dataclass
class FakeNics:
    """Has the methods of ``nic.Nics``. ``where`` is NIC -> namespace, "" for the server's."""

    where: dict[str, str]
    broken: set[str] = field(default_factory=set)

    def present(self, name: str) -> bool:
        return self.where.get(name) == ""

    def bind(
        self,
        nic: NicSpec,
        namespace: str,
        pid: int,
        attach: Attach = Attach.MOVE,
        rdma_device: str = "",
    ) -> NicReport:
        if nic.name in self.broken:
            raise AgentError("failed", nic.name, "the kernel refused to move the NIC")
        self.where[nic.name] = namespace
        return NicReport(nic.mtu or 1500, rdma_device, None, nic.dscp)

    def release(self, namespace: str) -> None:
        if namespace in self.broken:
            raise AgentError("failed", namespace, "the kernel refused to move the NIC")
        self.where.update({nic: "" for nic, place in self.where.items() if place == namespace})

    def namespaces(self) -> dict[str, str]:
        return {place: nic for nic, place in self.where.items() if place.startswith("ll-c-")}


def copy_lines(source: Any, stream: str, log: Path, lock: threading.Lock) -> None:
    for raw in source:
        record = {"log": raw.decode(), "stream": stream, "time": _now()}
        with lock, log.open("a", encoding="utf-8") as out:
            out.write(json.dumps(record) + "\n")


def _now() -> str:
    return datetime.fromtimestamp(clock.time(), UTC).isoformat().replace("+00:00", "Z")
