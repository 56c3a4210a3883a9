"""One delivery to a command: what it gets, and what confirms it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controller.notices import command
from controller.notices.command import Command
from controller.state.records import Notice
from tests.parts.agent.ranks import until

pytestmark = pytest.mark.real_time  # each starts a child process

NOTICE = Notice("0123abcd", "receiver", "red", json.dumps({"job": "red; $(id)"}), 1.0)


async def run(*words: str) -> str:
    return await Command(words).deliver(NOTICE, 0.0)


async def test_a_command_gets_the_facts_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTLOOM_OCS_PASSWORD", "canary")
    script = f"cat >{tmp_path}/body; env >{tmp_path}/env; pwd >{tmp_path}/cwd"
    assert await run("/bin/sh", "-c", script) == ""
    assert json.loads((tmp_path / "body").read_text()) == {"job": "red; $(id)"}
    assert (tmp_path / "cwd").read_text() == "/\n"
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "LANG", "LIGHTLOOM_NOTICE_ID"}
    assert "LIGHTLOOM_NOTICE_ID=0123abcd" in (tmp_path / "env").read_text()


async def test_no_shell_reads_its_words(tmp_path: Path) -> None:
    assert await run("/usr/bin/touch", f"{tmp_path}/a;b $(id)") == ""
    assert (tmp_path / "a;b $(id)").exists()


async def test_another_exit_code_is_no_confirmation() -> None:
    assert await run("/bin/sh", "-c", "exit 3") == "its command ended with exit code 3"


async def test_a_command_may_ignore_its_input() -> None:
    assert await run("/bin/true") == ""


async def test_a_command_that_is_not_there_is_told_without_its_path() -> None:
    assert await run("/nowhere/notify") == "its command cannot be run (No such file or directory)"


async def test_a_slow_command_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "TIMEOUT_S", 0.5)
    told = await run("/bin/sh", "-c", f"sleep 600 & echo $! >{tmp_path}/pid; wait")
    assert told == "its command did not end in 0.5 s"
    child = int((tmp_path / "pid").read_text())

    async def alive() -> bool:
        return is_alive(child)

    await until(alive, lambda answer: not answer)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and is not reaped yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
