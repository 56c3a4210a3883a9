"""A real HTTP server on loopback over a rack in memory, and the command run in-process."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest
import structlog
import uvicorn
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from console.cli.main import main
from controller.base.errors import ServiceError
from controller.schema.insight.comms import CommsRowView, CommsView, RankCommsView
from controller.schema.insight.usage import UsageLineView, UsageSumsView, UsageView
from controller.schema.jobs import JobView
from controller.schema.live import TopRowView, TopView
from controller.schema.submit.request import JobRequest
from sitefile import load_site
from tests.parts.api.apps import app_of
from tests.parts.api.desks import answer
from tests.parts.controller.jobs import submit
from tests.parts.controller.rack import Rack
from tests.parts.sites import PAPER


@dataclass(slots=True, frozen=True)
class Ran:
    """One command line that ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """stdout, which must be one JSON document."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, str]:
        """The last line of stderr, which must be a JSON error."""
        found = json.loads(self.err.splitlines()[-1])
        assert set(found) == {"code", "message", "hint", "object"}
        return dict(found)


Run = Callable[..., Ran]
Done = TypeVar("Done")


@dataclass(slots=True)
class Served:
    """A controller on simulated devices behind a server: the job red runs, on both aggregators."""

    app: FastAPI
    url: str
    loop: asyncio.AbstractEventLoop
    rack: Rack | None = None
    fresh: bool = True
    """Nothing was changed since red runs."""

    def do(self, work: Coroutine[Any, Any, Done]) -> Done:
        """Run a coroutine where the controller runs."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def ready(self, folder: Path) -> Rack:
        """Return the rack of the last test, or another one if that test has changed it."""
        if self.rack is None or not self.fresh:
            self.leave()
            self.rack = self.do(_red(folder))
            self.fresh = True
        self.app.state.desks = self.rack.desks
        return self.rack

    def leave(self) -> None:
        """Stop the controller."""
        if self.rack is not None:
            self.do(self.rack.down())
            self.rack = None


async def _red(folder: Path) -> Rack:
    secret = folder / "secrets" / "vision" / "wandb"
    for directory in (secret.parent.parent, secret.parent):
        directory.mkdir(mode=0o700)
    secret.touch(mode=0o600)
    secret.write_text("a-key")
    rack = Rack(folder, replace(load_site(PAPER), secrets=folder / "secrets"))
    await rack.up()
    ends = ["gpu0", "gpu2", "gpu1", "gpu3"]
    about = {"policy": "live", "rank_order": "placed", "image": "trainer:1"}
    await submit(rack, "red", 4, endpoints=ends, **about)
    await rack.state("red", "running")
    return rack


@pytest.fixture(scope="session")
def _server() -> Iterator[Served]:
    """One server for all tests, with the controller on its loop."""
    app = app_of()
    ready: list[Served] = []

    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") not in (None, "GET"):
            ready[0].fresh = False
        await app(scope, receive, send)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(noting, log_level="error", lifespan="off"))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        async def serve() -> None:
            ready.append(Served(app, url, asyncio.get_running_loop()))
            await server.serve(sockets=[listener])

        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        while not server.started:
            time.sleep(0.005)
        yield ready[0]
        ready[0].leave()
        server.should_exit = True
        thread.join(timeout=60)
        assert not thread.is_alive()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests over a real server are in real time."""
    for item in items:
        if "_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.real_time)


def _unsaid(*_: object) -> NoReturn:
    raise structlog.DropEvent


@pytest.fixture
def url(_server: Served, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of a controller that no test has changed."""
    _server.ready(tmp_path_factory.mktemp("rack"))
    structlog.configure(processors=[_unsaid])  # what the controller says is not the command's
    return _server.url


@pytest.fixture
def served(_server: Served, url: str) -> Served:
    """Return the controller, for a test that orders what it does."""
    _server.fresh = False
    return _server


@pytest.fixture
def requests(rack: Rack) -> list[JobRequest]:
    """Return what jobs the controller will have been asked for."""
    desk, asked = rack.desks.jobs, list[JobRequest]()
    submit, submit_all = desk.submit, desk.submit_all

    async def one(request: JobRequest, user: str = "") -> JobView:
        asked.append(request)
        return await submit(request, user)

    async def several(requests: Sequence[JobRequest], user: str = "") -> list[str]:
        asked.extend(requests)
        return await submit_all(requests, user)

    answer(desk, submit=one, submit_all=several)
    return asked


@pytest.fixture
def rack(served: Served) -> Rack:
    """Return the rack of ``served``."""
    assert served.rack is not None
    return served.rack


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("LIGHTLOOM_URL", "LIGHTLOOM_TOKEN", "LIGHTLOOM_TIMEOUT", "LIGHTLOOM_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr("testbed.token.running_racks", list)


@pytest.fixture
def offline(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line that meets no controller."""

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def run(offline: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line against the controller."""
    monkeypatch.setenv("LIGHTLOOM_URL", url)
    return offline


@pytest.fixture
def busy(rack: Rack) -> Rack:
    """A controller whose job sends and receives, and whose GPU tells what it does."""
    row = TopRowView(name="red", state="running", rx_bps=1e8, tx_bps=2e8, utilisation=0.5)
    told = {"source": "nvml", "temperature_c": 61.0, "power_w": 350.5}
    top = TopView(
        time=1.0,
        epoch=4,
        jobs=[row.model_copy(update={"spread": {"as0": 2, "as1": 2}, "excess_span": 1})],
        containers=[row.model_copy(update={"name": "ll-red-0-4", "job": "red", "rank": 0} | told)],
        endpoints=[row.model_copy(update={"name": "gpu0", "home": "as0"})],
        access_bps=250e6,
        excess_span=1,
    )
    answer(rack.desks.jobs, top=top)
    return rack


@pytest.fixture
def used(rack: Rack) -> None:
    """One job has held endpoints for two hours."""

    async def over(since: float | None, until: float | None, by: Any, _: object) -> UsageView:
        end = 1_700_000_000.0 if until is None else until
        sums = {"held_s": 7200.0, "frozen_s": 600.0, "dark_s": 0.5, "weighted_s": 9000.0, "jobs": 1}
        total = UsageSumsView.model_validate(sums)
        job = {"job": "red", "submitted_at": 1_700_000_000.0, "project": "vision", "user": "=cmd()"}
        about = job if by == "job" else {by: job[by]}
        return UsageView(
            since=end - 86400.0 if since is None else since,
            until=end,
            by=by,
            lines=[UsageLineView.model_validate(about | sums)],
            others=UsageSumsView(),
            total=total,
        )

    answer(rack.desks.usage, over=over)


@pytest.fixture
def talking(rack: Rack) -> None:
    """The ranks of red recorded what they communicate."""

    async def view(name: str, rank: int | None, since_s: float | None) -> CommsView:
        job = rack.desks.jobs.job(name)
        if rank is not None and rank >= job.count:
            raise ServiceError("not_found", f"no rank {rank}", object=f"job/{name}")
        row = CommsRowView(
            op="all_reduce",
            bytes=4 * 2**20,
            dtype="float",
            calls=80,
            total_s=8.0,
            avg_s=0.1,
            min_s=0.09,
            max_s=0.2,
            p50_s=0.1,
            source="torch",
            timing="host",
            rank=rank,
            last_rank=1,
            last_share=0.75,
        )
        return CommsView(
            job=name,
            epoch=1,
            record="counts",
            state=job.state,
            since=None if since_s is None else 1_700_000_000.0,
            updated_at=1_700_000_000.0,
            ranks=[RankCommsView(rank=0, endpoint="gpu0", recorder="recording", source="torch")],
            rows=[row],
            efficiency=0.5,
            efficiency_of="all_reduce of 4194304 bytes, to 4194304 bytes of m7",
        )

    answer(rack.desks.comms, view=view)
