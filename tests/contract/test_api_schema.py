"""Schemathesis: the API does what its published schema says, for good requests and bad ones."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from starlette.types import Message, Receive, Scope, Send

from controller.api.gate.pace import RateLimit
from tests.parts.api.apps import app_of
from tests.parts.api.people import PLENTY, Site, people_site

pytestmark = pytest.mark.real_time
Result = TypeVar("Result")
EXAMPLES = 12
"""Requests an operation and phase; all together take about a minute."""


APP = app_of(rate_limit=RateLimit(changes=PLENTY, reads=PLENTY, failures=PLENTY))
# What is possible by the schema may still not be possible here: an epoch that is gone (412), a
# job larger than the site, a token for a project that is not there (422).
HERE = ["2xx", 401, 403, 404, 409, 412, 429]
REFUSED = [400, 401, 403, 404, 405, 409, 412, 413, 415, 422, 429]
JUDGED = [
    "/jobs",
    "/submissions",
    "/tokens",
    "/projects/{name}",
    "/transactions",
    "/rollouts",
    "/endpoints/{name}/attachment",
    "/allocation",
    "/usage",
    "/plans",
    "/measurements",
    "/imports",
]
CONFIG = schemathesis.Config.from_dict(
    {
        # No text may hold a NUL (test_bad_input); a schema would say so at every text.
        "generation": {"allow-x00": False},
        "checks": {
            "positive_data_acceptance": {"expected-statuses": HERE},
            "negative_data_rejection": {"expected-statuses": REFUSED},
        },
        "operations": [
            {
                "include-path": f"/api/v1{path}",
                "checks": {"positive_data_acceptance": {"expected-statuses": [*HERE, 422]}},
            }
            for path in JUDGED
        ],
    }
)


class InItsLoop:
    """The application in the loop of its controller; schemathesis has loops of its own."""

    loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.loop is None or scope["type"] != "http":
            await APP(scope, receive, send)
            return
        body = [await receive()]
        while body[-1].get("more_body"):
            body.append(await receive())
        running = asyncio.run_coroutine_threadsafe(self._answer(scope, body), self.loop)
        for message in await asyncio.wrap_future(running):
            await send(message)

    @staticmethod
    async def _answer(scope: Scope, body: list[Message]) -> list[Message]:
        left, sent = deque(body), list[Message]()

        async def receive() -> Message:
            return left.popleft() if left else await asyncio.Event().wait()

        async def send(message: Message) -> None:
            sent.append(message)

        await APP(scope, receive, send)
        return sent


ASKED = InItsLoop()
APP.openapi()  # made here: schemathesis waits ten seconds at most for a machine under load
# The stream never ends by design; tests/unit/controller/stream/test_feed.py reads it.
schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", ASKED, config=CONFIG).exclude(
    path="/api/v1/stream"
)


async def _entered(stack: AsyncExitStack, directory: Path) -> Site:
    return await stack.enter_async_context(people_site(directory))


@pytest.fixture(scope="module", autouse=True)
def site() -> Iterator[Site]:
    """Put people behind the application whose schema was read."""
    loop, stack = asyncio.new_event_loop(), AsyncExitStack()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, loop).result(timeout=60)

    with TemporaryDirectory() as directory:
        try:
            made = run(_entered(stack, Path(directory)))
            for part in ("desks", "access"):
                setattr(APP.state, part, getattr(made.app.state, part))
            ASKED.loop = loop
            yield made
            run(stack.aclose())
        finally:
            ASKED.loop = None
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_operation_keeps_its_promise(case: schemathesis.Case, site: Site) -> None:
    case.call_and_validate(headers={"Authorization": f"Bearer {site.secrets['admin']}"})
