"""A rank's secrets between the agent and its entry script."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentlink.ranks import RankKey, RankSpec
from agentlink.values import NicSpec
from container_mgr.docker.entry import SECRETS_FILE, TAKEN_FILE
from container_mgr.ranks import policy, secrets
from container_mgr.ranks.policy import MAX_SECRETS_BYTES
from container_mgr.values import AgentError
from controller.devices.engine import EngineError
from tests.parts.agent.docker import IMAGE
from tests.parts.agent.ranks import SLEEP, until
from tests.parts.agent.rig import AgentRig, agent_rig

NIC = NicSpec("e-gpu0", "10.77.0.1", 24, "02:77:00:00:00:01")
SPEC = RankSpec(RankKey("red", 0, 1), "gpu0", IMAGE, ("true",), NIC)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[AgentRig]:
    async with agent_rig(tmp_path) as one:
        yield one


@settings(max_examples=60, deadline=None)
@given(TEXTS)
@example('it\'s "$HOME" `id` $(id) \\ * ~ #\n\n; exit 1\r\t')
@example("\u0081\u0088ü€\U0001f600 ")
@example("")
def test_a_shell_reads_back_every_value(value: str) -> None:
    script = secrets.assignments({"APP_TOKEN": value, "APP_NEXT": "-n"})
    done = subprocess.run(
        ["/bin/sh", "-c", f"{script}\nexec /usr/bin/env printenv -0 APP_TOKEN APP_NEXT"],
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == value.encode() + b"\0-n\0"


def test_labels_digests_and_texts_do_not_depend_on_a_value() -> None:
    one, other = (replace(SPEC, secrets={"APP_TOKEN": v}) for v in ("canary-1", "canary-2"))
    assert one.digest() == other.digest() != SPEC.digest()
    assert one.labels("srv0", 1) == other.labels("srv0", 1)
    assert "canary" not in repr(one)


@pytest.mark.parametrize(
    ("env", "values", "message"),
    [
        ({"APP_A": "x"}, {"APP_A": "y"}, "a secret and a plain variable"),
        ({}, {"LD_PRELOAD": "y"}, "not allowed"),
        ({}, {"APP_A": "a\0b"}, "NUL"),
        ({}, {f"APP_{n}": "x" * 30_000 for n in range(3)}, str(MAX_SECRETS_BYTES)),
    ],
)
def test_an_agent_refuses_secrets_that_are_no_variables(
    env: dict[str, str], values: dict[str, str], message: str
) -> None:
    with pytest.raises(AgentError, match=message):
        policy.check_env("red", {**env, **values})
        policy.check_secrets("red", env, values)


async def test_secrets_are_a_file_until_the_rank_has_read_them(rig: AgentRig) -> None:
    spec = replace(rig.spec(0, *SLEEP), secrets={"APP_TOKEN": "canary-3"})
    await rig.engine.start([spec, rig.spec(1, *SLEEP)], 60)
    home = rig.directory / "agent"
    file = home / "ranks" / "ll-red-0-1" / SECRETS_FILE
    assert file.read_text(encoding="utf-8") == "export APP_TOKEN=canary-3\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o444
    assert stat.S_IMODE((home / "ranks").stat().st_mode) == 0o700
    assert not (home / "ranks" / "ll-red-1-1" / SECRETS_FILE).exists()
    assert "canary-3" not in repr([c.raw for c in rig.docker.containers.values()])
    rig.ranks.sample()
    assert file.exists()
    pid = rig.docker.containers["ll-red-0-1"].raw["State"]["Pid"]
    (rig.docker.proc / str(pid) / "root" / "run" / "lightloom" / TAKEN_FILE).touch()
    rig.ranks.sample()
    assert not file.exists()
    # The same call again, with a new value, is the same rank.
    await rig.engine.start([replace(spec, secrets={"APP_TOKEN": "rotated"})], 60)
    with pytest.raises(EngineError, match="another specification"):
        await rig.engine.start([rig.spec(0, *SLEEP)], 60)


async def test_secrets_of_an_ended_rank_go_at_the_agents_restart(rig: AgentRig) -> None:
    spec = replace(rig.spec(0, "true"), secrets={"APP_TOKEN": "canary-4"})
    await rig.engine.start([spec], 60)
    process = rig.docker.containers["ll-red-0-1"].process
    assert process is not None
    process.wait(60)
    file = rig.directory / "agent" / "ranks" / "ll-red-0-1" / SECRETS_FILE
    file.parent.mkdir(exist_ok=True)
    file.touch()
    await until(lambda: rig.docker.inspect("ll-red-0-1"), lambda c: c is None or not c.alive)
    await rig.ranks.recover()
    assert not file.exists()
