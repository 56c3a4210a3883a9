"""Whatever a program writes, and whenever the agent dies: no torn part is ever held.

The program's writes come between any two of the agent's calls that change or read names, and the
agent dies before any of them; then it starts again from what is on disk.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from agentlink.checkpoints import Folder, Holding, HoldingKind
from agentlink.values import Where
from checkpoints.rules import BATCHES
from container_mgr.checkpoints import layout
from container_mgr.checkpoints.parts import About
from container_mgr.checkpoints.rank_folder import RankFolder
from container_mgr.checkpoints.values import HeldPart, PartPlace
from container_mgr.checkpoints.watching.live import FolderRun, LiveFolder
from tests.unit.container_mgr.checkpoints.agent_parts import FOLDER, SECRET, SIZE, PlainSpace

CALLS = ("rename", "link", "mkdir", "scandir", "sendfile")
WHOLE = {b"one", b"twofold"}


class Killed(BaseException):
    """The agent's process is gone."""


class Program:
    """Writes step 1 in small actions, each with one of two contents; a step may be replaced."""

    def __init__(self, live: Path) -> None:
        self.live = live
        self.state = 0
        self.rounds = 0

    def act(self) -> None:
        temporary, final = self.live / "step-1.tmp", self.live / "step-1"
        content = sorted(WHOLE)[self.rounds % 2]
        if self.state == 0:
            temporary.mkdir()
        elif self.state == 1:
            (temporary / "a").write_bytes(content[:1])
        elif self.state == 2:
            with (temporary / "a").open("ab") as file:
                file.write(content[1:])
            (temporary / "b").write_bytes(content)
        elif final.exists() and self.state == 3:
            (final).rename(self.live / f"old{self.rounds}")
            return
        else:
            temporary.rename(final)
            self.rounds += 1
        self.state = (self.state + 1) % 4


class InPlace:
    """Overwrites its weights in place, then says of which epoch they are; time is a count."""

    def __init__(self, live: Path) -> None:
        self.live = live
        self.state = 0
        self.rounds = 0
        self.now = 10**9

    def act(self) -> None:
        weights, trained = self.live / "latest.weights.h5", self.live / "training_metadata.json"
        content = content_of(self.rounds)
        if self.state == 0:
            weights.write_bytes(content[:2])
        elif self.state == 1:
            with weights.open("ab") as file:
                file.write(content[2:])
        else:
            trained.write_text(json.dumps({"epoch": self.rounds}), encoding="ascii")
            self.rounds += 1
        self.now += 10**7
        os.utime(trained if self.state == 2 else weights, ns=(self.now, self.now))
        self.state = (self.state + 1) % 3


def content_of(epoch: int) -> bytes:
    return b"%06d" % epoch


class Told:
    """What is held, by the agent that lives now."""

    def __init__(self) -> None:
        self.parts: dict[PartPlace, HeldPart] = {}

    def held(self, part: HeldPart, about: About) -> None:
        check(part)
        self.parts[part.place] = part

    def holds(self, place: PartPlace) -> bool:
        return place in self.parts

    def names_bytes(self, folder: str, endpoint: str) -> int:
        return 0

    def report(self, holding: Holding) -> None:
        assert holding.kind is not HoldingKind.OWN

    def exceeded(self, container: str, why: str) -> None:
        raise AssertionError(why)


def check(part: HeldPart) -> None:
    """One step of the program's, whole: both files of the same round."""
    if part.manifest.rule == "keras":
        found = (part.root / "latest.weights.h5").read_bytes()
        assert found == content_of(part.place.key.step // BATCHES)
        return
    step = part.root / "step-1"
    contents = {(step / name).read_bytes() for name in ("a", "b")}
    assert len(contents) == 1
    assert contents <= WHOLE
    assert {f.bytes for f in part.manifest.files.values()} == {len(contents.pop())}


@contextmanager
def between(happens: Callable[[], None]) -> Iterator[None]:
    """Let something happen before each of the agent's calls."""
    inside = False

    def around(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal inside
            if not inside:
                inside = True
                try:
                    happens()
                finally:
                    inside = False
            return real(*args, **options)

        return call

    patches = [patch.object(os, name, around(getattr(os, name))) for name in CALLS]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()


def start(root: Path, told: Told, rule: str) -> LiveFolder:
    """Do what an agent does at its start."""
    folder = Folder(FOLDER, SECRET, Where.MEMORY, SIZE)
    rank_folder = RankFolder(root, folder, "gpu0", PlainSpace(), lambda: False)
    rank_folder.prepare()
    rank_folder.clean(layout.ARRIVING)
    rank_folder.clean(layout.REMOVED)
    live = LiveFolder(rank_folder, FolderRun("ll-red-0-1", 0, 1, 1, rule), told, clock=lambda: 1e9)
    for place, part, about, why in rank_folder.stocktake():
        assert part is not None, why
        told.held(part, about)
        live.remember(place.key.step, about.stamp)
    return live


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["rename", "keras"]),
    st.lists(st.sampled_from([0, 0, 0, 1, 1, 2, 5, 6, -1]), max_size=80),
    st.integers(1, 6),
)
def test_no_torn_part_is_ever_held(rule: str, script: list[int], scans: int) -> None:
    """A number is the program's actions before the agent's next call; -1 kills the agent."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        (root / FOLDER).mkdir()
        told = Told()
        live = start(root, told, rule)
        folder = live.rank_folder.path.joinpath(*live.run.place)
        folder.mkdir(parents=True)
        program = Program(folder) if rule == "rename" else InPlace(folder)
        steps = iter(script)

        def happens() -> None:
            actions = next(steps, 0)
            if actions < 0:
                raise Killed
            for _ in range(actions):
                program.act()

        for _ in range(scans):
            try:
                with between(happens):
                    live.scan()
            except Killed:
                told = Told()
                live = start(root, told, rule)
        while program.state != 0 or not program.rounds:
            program.act()
        live.scan()
        newest = max(told.parts, key=lambda place: place.key)
        if rule == "rename":
            size = (folder / "step-1" / "b").stat().st_size
            assert told.parts[newest].manifest.bytes == 2 * size
        else:
            assert newest.key.step == (program.rounds - 1) * BATCHES
