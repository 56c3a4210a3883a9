"""Invalid plan files are refused with a reason before any device is touched.

Runs the command line against the REST API over HTTP and the service over in-memory devices.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import uvicorn

from console.cli.main import main
from controller.schema.plans import PlanRequest
from testbed.simulated.work import WorkEvent
from tests.parts.api.apps import app_of
from tests.parts.controller.jobs import scattered
from tests.parts.controller.rack import Rack

Document = dict[str, Any]


def two_on_one_port(plan: Document) -> None:
    plan["circuits"]["make"][1]["b"] = plan["circuits"]["make"][0]["b"]


def another_port(plan: Document) -> None:
    plan["circuits"]["make"][0]["b"] = "9.9.9"


def another_home_afterwards(plan: Document) -> None:
    move = plan["moves"][0]
    plan["homes_after"][move["endpoint"]] = move["from"]


def from_elsewhere(plan: Document) -> None:
    plan["moves"][0]["from"] = plan["moves"][0]["to"]


BAD: list[tuple[str, Callable[[Document], object], int, str]] = [
    ("a port used twice", two_on_one_port, 2, "two circuits on port ocs0/2."),
    ("a circuit edited by hand", another_port, 2, "do not match the plan's moves"),
    ("homes edited by hand", another_home_afterwards, 2, "afterwards"),
    ("another target", lambda p: p["moves"][0].update(to="as9"), 6, "no aggregator as9"),
    ("an unknown endpoint", lambda p: p["moves"][0].update(endpoint="gpu9"), 2, "no endpoint gpu9"),
    ("an endpoint twice", lambda p: p["moves"].append(p["moves"][0]), 2, "twice"),
    ("a move left out", lambda p: p["moves"].pop(), 2, "do not match the plan's moves"),
    ("another site", lambda p: p.update(site="elsewhere"), 2, "the plan is for site elsewhere"),
    ("an older epoch", lambda p: p.update(epoch=p["epoch"] - 1, basis=None), 6, "moved since"),
    ("a later epoch", lambda p: p.update(epoch=p["epoch"] + 1), 6, "the fabric moved since"),
    ("another start", from_elsewhere, 6, "the fabric moved since"),
    ("not a plan", lambda p: p.update(moves="all of them"), 2, "not a saved plan"),
]


class Blocking(httpx.BaseTransport):
    """Lets a client that blocks, in pool work, talk with a server of the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answered = WorkEvent()
        asked = self._loop.create_task(self._ask(request))
        asked.add_done_callback(lambda _: answered.set())
        answered.wait()
        return asked.result()

    @staticmethod
    async def _ask(request: httpx.Request) -> httpx.Response:
        body = httpx.ByteStream(request.read())
        asked = httpx.Request(request.method, request.url, headers=request.headers, stream=body)
        async with httpx.AsyncHTTPTransport() as transport:
            answer = await transport.handle_async_request(asked)
            whole = b"".join([part async for part in answer.aiter_raw()])
        return httpx.Response(
            answer.status_code, headers=answer.headers, stream=httpx.ByteStream(whole)
        )


@pytest_asyncio.fixture
async def url(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The API over the rack's service, on a loopback port, for clients that block."""
    made, by = httpx.Client, {"transport": Blocking()}
    monkeypatch.setattr(httpx, "Client", lambda **asked: made(**asked | by))
    server = uvicorn.Server(uvicorn.Config(app_of(rack.service), port=8470, log_level="error"))
    serving = asyncio.create_task(server.serve())
    await rack.until(lambda: server.started)
    yield "http://127.0.0.1:8470"
    server.should_exit = True
    with contextlib.suppress(asyncio.CancelledError):
        await serving


@pytest.mark.parametrize(
    ("spoil", "code", "text"), [case[1:] for case in BAD], ids=[case[0] for case in BAD]
)
async def test_a_bad_plan_file_touches_nothing(
    rack: Rack,
    url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    spoil: Callable[[Document], object],
    code: int,
    text: str,
) -> None:
    await scattered(rack)
    made = await rack.desks.plans.make_plan(PlanRequest())
    plan = json.loads(made.model_dump_json(by_alias=True))
    asked, calls = len(rack.switch.applied), len(rack.engine.calls)
    spoil(plan)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    capsys.readouterr()
    ended = await asyncio.to_thread(main, ["--url", url, "apply", str(file), "--yes"])
    out, err = capsys.readouterr()
    assert (ended, out) == (code, ""), err
    assert text in err
    assert "Traceback" not in err
    assert (len(rack.switch.applied), len(rack.engine.calls)) == (asked, calls)


async def test_the_unmodified_plan_is_carried_out(
    rack: Rack, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await scattered(rack)
    made = await rack.desks.plans.make_plan(PlanRequest())
    file = tmp_path / "plan.json"
    file.write_text(made.model_dump_json(by_alias=True))
    argv = ["--url", url, "apply", str(file), "--yes", "--wait"]
    assert await asyncio.to_thread(main, argv) == 0, capsys.readouterr().err
    assert {e.name: e.home for e in await rack.desks.fabric.endpoints()} == made.homes_after
