"""A rank's secrets in a real container: they reach its program, and are seen nowhere else."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from container_mgr.docker.entry import SECRETS_FILE
from tests.integration.agent_parts import PrivateEngine, Rig
from tests.integration.machine import command_lines, files_with
from tests.parts.agent.ranks import output, until

pytestmark = pytest.mark.root

MARK = "canary-5d7c"
VALUE = f'{MARK} it\'s "$HOME" `id` \\ \n$(id)'
SHOW = 'echo "${#APP_TOKEN} of rank"; exec sleep 600'
LOOK = "cat /lightloom/rank/* ; env; echo looked; exec sleep 600"


async def test_a_secret_reaches_its_rank_and_no_other_place(
    rig: Rig, private: PrivateEngine
) -> None:
    mine = replace(rig.spec(0, "/bin/sh", "-c", SHOW), secrets={"APP_TOKEN": VALUE})
    other = rig.spec(1, "/bin/sh", "-c", LOOK, job="blue")
    with structlog.testing.capture_logs() as logged:
        await rig.engine.start([mine], 60)
        await rig.engine.start([other], 60)
        lines = await until(lambda: output(rig, 0), bool)
        assert lines == [f"{len(VALUE)} of rank"]
        await until(lambda: output(rig, 1, "blue"), lambda found: "looked" in found)
        given = rig.config.directory / "ranks" / "ll-red-0-1" / SECRETS_FILE

        async def is_there() -> bool:
            return given.exists()

        await until(is_there, lambda there: not there)
        await rig.down()
        await rig.up()  # a restarted agent takes the rank over without its secrets
    with private.api() as api:
        shown = [await asyncio.to_thread(api.inspect_container, c["Id"]) for c in api.containers()]
    assert len(shown) == 2
    pid = next(c["State"]["Pid"] for c in shown if c["Name"] == "/ll-red-0-1")
    assert MARK not in json.dumps(shown) + repr(logged) + "".join(await output(rig, 1, "blue"))
    assert MARK not in command_lines()
    for place in (rig.config.directory, private.run_dir / "data" / "containers"):
        assert files_with(place, MARK) == []
    assert has_in_environment(pid, MARK)


def has_in_environment(pid: int, text: str) -> bool:
    """Whether a child of a container's first process has a text in its environment."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return any(text in Path(f"/proc/{c}/environ").read_text(errors="replace") for c in children)
