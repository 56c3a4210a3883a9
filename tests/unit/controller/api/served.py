"""The API behind its real server, as the daemon puts it there, over a controller that pretends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from controller.api.gate.access import Access
from controller.api.gate.idempotency import AnswersInMemory
from controller.api.server.server import ApiServer
from controller.daemon.listen import PeopleOptions
from controller.daemon.serving import server_of
from controller.stream.counters import Counters
from tests.unit.controller.api.fake_service import FakeService


@contextlib.asynccontextmanager
async def serving(
    options: PeopleOptions, access: Access | None = None
) -> AsyncIterator[tuple[ApiServer, int]]:
    """Serve at a free port of loopback; return the server and the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        service: Any = FakeService()
        server = server_of(service, access or Access(), Counters(), AnswersInMemory(), options)
        task = asyncio.create_task(server._serve([listener]))
        try:
            yield server, listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


async def _for_ever(folder: Path) -> None:
    async with serving(PeopleOptions(open=True)) as (_, port):
        (folder / "port.new").write_text(str(port))
        (folder / "port.new").rename(folder / "port")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_for_ever(Path(sys.argv[1])))
