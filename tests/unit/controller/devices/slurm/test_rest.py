"""slurmrestd in memory, with recorded answers; once over a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import unquote

import pytest
import pytest_asyncio

from controller.devices.observed import ObservedError
from controller.devices.slurm import rest
from controller.devices.slurm.documents import items_of
from controller.devices.slurm.rest import RestTransport, states_of
from controller.devices.slurm.token import TokenFile
from tests import recorded

Answer = tuple[int, bytes]


class Restd:
    """A server that answers as slurmrestd of 24.11 or 26.05 did."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.answers: dict[str, str] = {}
        """Path below the version -> name of the recorded answer."""
        self.raw: dict[str, Answer] = {}
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.silent = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                method, path, _ = line.decode().split()
                headers = {}
                while (header := (await reader.readline()).decode().strip()) != "":
                    key, _, value = header.partition(": ")
                    headers[key.lower()] = value
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.asked.append((method, unquote(path), headers, body))
                if self.silent:
                    await asyncio.sleep(60)
                status, said = self._answer(path)
                head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(said)}\r\n\r\n"
                writer.write(head.encode() + said)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _answer(self, path: str) -> Answer:
        start = f"/slurm/{self.version}/"
        below = path.removeprefix(start)
        if not path.startswith(start):
            return recorded.answer("v0.0.42", "unknown-version")
        if below in self.raw:
            return self.raw[below]
        return recorded.answer(self.version, self.answers.get(below, "states"))

    def paths(self) -> list[str]:
        return [path for _, path, _, _ in self.asked]


@pytest_asyncio.fixture(params=["v0.0.42", "v0.0.45"])
async def both(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[Restd, RestTransport]]:
    restd = Restd(request.param)
    server = await asyncio.start_server(restd.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    transport = RestTransport(f"http://{host}:{port}", token(tmp_path), "lightloom", timeout_s=20)
    async with server:
        yield restd, transport
        await transport.close()


def token(folder: Path) -> TokenFile:
    file = folder / "token"
    file.write_text("a.b.c\n")
    file.chmod(0o600)
    return TokenFile(file)


@pytest.mark.real_time
async def test_over_a_unix_socket(tmp_path: Path) -> None:
    restd, socket = Restd("v0.0.45"), tmp_path / "s.sock"
    transport = RestTransport(f"unix:{socket}", token(tmp_path))
    async with await asyncio.start_unix_server(restd.serve, socket):
        assert 1 in await transport.states()
        await transport.close()


async def test_the_newest_version_that_both_know(both: tuple[Restd, RestTransport]) -> None:
    restd, transport = both
    states = await transport.states()
    assert states[1] == "RUNNING*1"
    assert states[8] == "PENDING*3"
    assert {9, 10} <= states.keys()
    assert transport.name == f"slurmrestd {restd.version}"
    tried = [path for path in restd.paths() if restd.version not in path]
    assert len(tried) == rest.VERSIONS.index(restd.version)
    asked = len(restd.asked)
    await transport.states()
    assert len(restd.asked) == asked + 1
    _, _, headers, _ = restd.asked[-1]
    assert headers["x-slurm-user-token"] == "a.b.c"
    assert headers["x-slurm-user-name"] == "lightloom"


async def test_another_version_after_an_upgrade(both: tuple[Restd, RestTransport]) -> None:
    restd, transport = both
    await transport.states()
    restd.version = "v0.0.42" if restd.version == "v0.0.45" else "v0.0.45"
    assert 1 in await transport.states()
    assert transport.name == f"slurmrestd {restd.version}"


async def test_no_version_in_common(both: tuple[Restd, RestTransport]) -> None:
    restd, transport = both
    restd.version = "v0.0.99"
    with pytest.raises(ObservedError, match=r"none of v0\.0\.40 to v0\.0\.45") as error:
        await transport.states()
    assert error.value.code == "invalid"


async def test_reading(both: tuple[Restd, RestTransport]) -> None:
    restd, transport = both
    restd.answers = {"job/1": "job-running", "job/7": "nojob", "ping/": "admincomment"}
    restd.answers |= {"nodes/": "nodes", "jobs/": "job-arraysplit"}
    assert len(list(items_of(await transport.job(1), "jobs"))) == 1
    assert list(items_of(await transport.job(7), "jobs")) == []
    assert len(list(items_of(await transport.jobs(), "jobs"))) == 3
    assert len(list(items_of(await transport.nodes(), "nodes"))) == 4
    assert await transport.release() in ("24.11.5", "26.05.5")


async def test_a_comment(both: tuple[Restd, RestTransport]) -> None:
    restd, transport = both
    restd.answers = {"job/1": "admincomment", "job/7": "admincomment-nojob"}
    assert await transport.comment(1, "lightloom go")
    method, _, _, body = restd.asked[-1]
    assert (method, json.loads(body)) == ("POST", {"admin_comment": "lightloom go"})
    assert not await transport.comment(7, "x")
    restd.answers = {"job/1": "admincomment-alice"}
    with pytest.raises(ObservedError, match="denied") as error:
        await transport.comment(1, "x")
    assert error.value.code == "forbidden"


async def test_a_live_topology(both: tuple[Restd, RestTransport]) -> None:
    restd, transport = both
    restd.answers = {"node/n%5B0-1%5D": "nodetopo", "node/n2": "nodetopo-unknown"}
    if restd.version == "v0.0.42":
        with pytest.raises(ObservedError, match="cannot change it alone"):
            await transport.place("n[0-1]", "default:lightloom_core:as0")
    else:
        await transport.place("n[0-1]", "default:lightloom_core:as0")
        with pytest.raises(ObservedError, match="not available"):
            await transport.place("n2", "default:nowhere")
    assert restd.asked[-1][0] == "POST"


async def test_rights(both: tuple[Restd, RestTransport]) -> None:
    restd, transport = both
    node = "node/lightloom-no-such-node"
    restd.answers = {node: "rights", "reconfigure/": "reconfigure"}
    assert await transport.administrates()
    await transport.reconfigure()
    restd.answers = {node: "rights-alice", "reconfigure/": "reconfigure-alice"}
    assert not await transport.administrates()
    with pytest.raises(ObservedError, match="Invalid user id") as error:
        await transport.reconfigure()
    assert error.value.code == "forbidden"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("badtoken", "forbidden"),
        ("notoken", "forbidden"),
        ("expired", "forbidden"),
        ("down", "unavailable"),
    ],
)
async def test_what_fails(both: tuple[Restd, RestTransport], name: str, code: str) -> None:
    restd, transport = both
    restd.answers = {"jobs/state/": name}
    with pytest.raises(ObservedError) as error:
        await transport.states()
    assert error.value.code == code
    assert error.value.hint


async def test_no_answer_and_no_server(both: tuple[Restd, RestTransport], tmp_path: Path) -> None:
    restd, transport = both
    restd.silent = True
    with pytest.raises(ObservedError) as error:
        await transport.states()
    assert error.value.code == "timeout"
    gone = RestTransport(f"unix:{tmp_path}/none", TokenFile(tmp_path / "token"))
    with pytest.raises(ObservedError) as error:
        await gone.states()
    assert error.value.code == "unavailable"
    await gone.close()


async def test_answers_are_bounded(
    both: tuple[Restd, RestTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    restd, transport = both
    monkeypatch.setattr(rest, "STATES_BYTES", 1000)
    restd.raw = {"jobs/state/": (200, b" " * 2000)}
    with pytest.raises(ObservedError, match="more than 1000 bytes"):
        await transport.states()
    restd.raw = {"jobs/state/": (200, b'{"jobs": [{"job_id": "x"}]}')}
    with pytest.raises(ObservedError, match="not a job"):
        await transport.states()


def test_states_of_arrays_and_components() -> None:
    states = states_of([recorded.answer("v0.0.42", "states2")[1]])
    assert states[8] == "PENDING*1"
    assert states[16] == "RUNNING*1"
    assert states[15] == "COMPLETED*1"
