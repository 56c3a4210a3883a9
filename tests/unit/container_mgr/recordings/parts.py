"""A rank of a fake /proc that is a process of this machine, and recorders' files in it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from agentlink.ranks import RankKey
from agentlink.values import NicSpec, Record
from container_mgr.values import Container
from recorder.python.lightloom_writer import Writer

NIC = NicSpec("e-gpu0", "10.77.0.1", 24, "02:77:00:00:00:01")


@dataclass
class FakeRank:
    """One running rank."""

    proc: Path
    key: RankKey = field(default_factory=lambda: RankKey("red", 0, 1))
    record: Record = Record.COUNTS
    refused: str = ""
    profiler_port: int = 0
    process: subprocess.Popen[bytes] = field(init=False)
    sent: int = 0

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(("sleep", "600"))
        entry = self.proc / str(self.process.pid)
        self.directory.mkdir(parents=True)
        (entry / "cgroup").write_text(f"0::/{self.id}\n")
        (entry / "net").mkdir()
        self.send(0)

    @property
    def id(self) -> str:
        return f"id-of-{self.key.container}"

    @property
    def directory(self) -> Path:
        return self.proc / str(self.process.pid) / "root" / "lightloom" / "record"

    @property
    def container(self) -> Container:
        return Container(
            id=self.id,
            key=self.key,
            endpoint=f"gpu{self.key.rank}",
            digest="",
            nic=NIC,
            share=None,
            state="running",
            pid=self.process.pid,
            record=self.record,
            refused=self.refused,
            profiler_port=self.profiler_port,
        )

    def send(self, count: int) -> None:
        self.sent += count
        numbers = " ".join(["7"] * 8 + [str(self.sent)] + ["0"] * 7)
        text = f"Inter-|   Receive\n face |bytes\n    lo: 1 2 3\n    e0: {numbers}\n"
        (self.proc / str(self.process.pid) / "net" / "dev").write_text(text)

    def write(self, name: str = "torch-17.rec", calls: int = 3, size: int = 4096) -> Path:
        """Write a recorder's file with calls of 1 ms, one every 100 ms."""
        path = self.directory / name
        writer = Writer(str(path), name.partition("-")[0])
        row = writer.row("all_reduce", size, "float", "host")
        for call in range(calls):
            ticket = writer.issue(row, 1, call, 100.0 + call / 10)
            writer.end(ticket, row, 100.0 + call / 10, 100.001 + call / 10)
        return path

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
