"""The operator's hand over HTTP and on the command line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

import httpx
import pytest
import pytest_asyncio
import typer
from typer.testing import CliRunner

from console.cli.ask import asking
from console.cli.verbs.light import repairs
from controller.state.records import Quarantine
from tests.parts.api.apps import app_of
from tests.parts.controller.rack import Rack


@pytest_asyncio.fixture
async def client(rack: Rack) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app_of(rack.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/api/v1") as client:
        yield client


async def test_attach_and_abort(client: httpx.AsyncClient) -> None:
    body = {"aggregator": "as1"}
    done = await client.post("/endpoints/gpu0/attachment", json=body, params={"wait_s": 10})
    assert (done.status_code, done.json()["state"]) == (202, "committed")
    assert done.headers["location"] == f"/api/v1/transactions/{done.json()['id']}"
    late = await client.post(f"/transactions/{done.json()['id']}/abort")
    assert (late.status_code, late.json()["code"]) == (409, "conflict")
    assert (await client.post("/endpoints/gpu0/attachment", json={})).status_code == 422


async def test_quarantine_and_repair(client: httpx.AsyncClient, rack: Rack) -> None:
    rack.parts.state.light.quarantine.put(Quarantine("as0/4", "no light", 1.0))
    page = (await client.get("/quarantine")).json()
    assert page["items"] == [{"object": "as0/4", "reason": "no light", "since": 1.0}]
    assert (await client.post("/quarantine/as0/4/release")).json()["object"] == "as0/4"
    assert (await client.post("/quarantine/as0/4/release")).status_code == 404
    assert (await client.post("/quarantine/..%2F..%2Fx/release")).status_code in (404, 422)
    assert (await client.post("/switches/ocs0/repair")).json()["circuits"] == 6
    assert (await client.post("/switches/ocs9/repair")).status_code == 404


class FakeClient:
    """Answers as the controller does and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.state = "committed"

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def get(self, path: str) -> dict[str, Any]:
        self.asked.append((path, None))
        return {"items": [{"object": "as0/4", "reason": "no light", "since": 1.0}], "epoch": 3}

    @staticmethod
    def part(name: str) -> str:
        return name

    def post(self, path: str, body: object = None, **_: object) -> dict[str, Any]:
        self.asked.append((path, body))
        return {
            "id": "t3",
            "state": self.state,
            "phase": "done",
            "moves": [1],
            "started_at": 1.0,
            "error": "",
            "result": "the old paths are back",
            "circuits": 6,
            "how_to_stop": "it turns back",
        }


@pytest.mark.parametrize(
    ("line", "asked", "said"),
    [
        (
            ["attach", "endpoint/gpu0", "as1"],
            ("/endpoints/gpu0/attachment", {"aggregator": "as1"}),
            "t3 committed",
        ),
        (["detach", "gpu0"], ("/endpoints/gpu0/attachment", {"aggregator": None}), "1 move"),
        (["abort", "transaction/t3"], ("/transactions/t3/abort", None), "it turns back"),
        (["repair", "ocs0"], ("/switches/ocs0/repair", None), "6 circuits"),
        (["quarantine", "list"], ("/quarantine", None), "no light"),
        (["quarantine", "release", "as0/4"], ("/quarantine/as0/4/release", None), "back in use"),
    ],
)
def test_verbs(
    line: list[str], asked: tuple[str, object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeClient()
    for module in (asking, repairs):
        monkeypatch.setattr(module, "connect", lambda _: client)
    done = CliRunner().invoke(_app(), line)
    assert (done.exit_code, client.asked) == (0, [asked])
    assert said in done.output
    done = CliRunner().invoke(_app(), [*line, "-o", "json"])
    assert done.exit_code == 0
    assert done.output.startswith("{")


def test_a_move_that_was_taken_back_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient()
    client.state = "rolled_back"
    for module in (asking, repairs):
        monkeypatch.setattr(module, "connect", lambda _: client)
    done = CliRunner().invoke(_app(), ["attach", "gpu0", "as1"])
    assert done.exit_code == 1
    assert "rolled_back" in str(done.exception)


def _app() -> typer.Typer:
    app = typer.Typer()
    for verb in (repairs.attach, repairs.detach, repairs.abort, repairs.repair):
        app.command()(verb)
    app.add_typer(repairs.quarantine, name="quarantine")
    return app
