"""Events to syslog and webhooks: in order, bounded, retried, without blocking."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re

import httpx
import pytest

from controller.base.errors import ServiceError
from controller.schema.fabric import EventView
from controller.stream.sinks import QUEUED, SyslogSink, WebhookSink, sink_of, syslog_line


def event(number: int, message: str = "light moved") -> EventView:
    return EventView(
        id=number,
        time=1.5,
        severity="warning",
        object="job/red",
        reason="RegroupStarted",
        message=message,
        epoch=3,
    )


def test_a_line_is_rfc_5424_with_any_message() -> None:
    line = syslog_line(event(7, 'a\n<0>1 forged "]'), "host")
    assert "\n" not in line
    assert re.fullmatch(
        r"<28>1 1970-01-01T00:00:01\.500\+00:00 host lightloom - RegroupStarted "
        r'\[lightloom@32473 id="7" object="job/red" epoch="3"\] a\\n<0>1 forged "\]',
        line,
    )


@pytest.mark.real_time
async def test_syslog_gets_every_event() -> None:
    got: asyncio.Queue[bytes] = asyncio.Queue()

    class Server(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: object) -> None:
            got.put_nowait(data)

    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(Server, local_addr=("127.0.0.1", 0))
    port = transport.get_extra_info("sockname")[1]
    sink = SyslogSink("127.0.0.1", port)
    running = asyncio.ensure_future(sink.run())
    for number in range(3):
        sink.put(event(number))
    async with asyncio.timeout(60):
        lines = [(await got.get()).decode() for _ in range(3)]
    assert [re.search(r'id="(\d)"', line).group(1) for line in lines] == ["0", "1", "2"]  # type: ignore[union-attr]
    running.cancel()
    transport.close()


async def test_a_webhook_is_retried_and_gets_every_event_once_in_order() -> None:
    seen: list[int] = []
    whole = asyncio.Event()
    failures = 2

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal failures
        assert request.headers["authorization"] == "Bearer s3cret"
        if failures:
            failures -= 1
            return httpx.Response(503)
        seen.extend(e["id"] for e in json.loads(request.content)["events"])
        if len(seen) >= 250:
            whole.set()
        return httpx.Response(204)

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    sink = WebhookSink("https://hooks.example/very-secret-path", "s3cret", client)
    assert "secret" not in sink.name
    running = asyncio.ensure_future(sink.run())
    for number in range(250):
        sink.put(event(number))
    async with asyncio.timeout(60):
        await whole.wait()
    assert seen == list(range(250))
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_a_full_sink_drops_the_oldest_events() -> None:
    sink = WebhookSink("https://nowhere.example", None)
    for number in range(QUEUED + 10):
        sink.put(event(number))
    assert sink.dropped == 10
    assert sink._queue[0].id == 10
    assert len(sink._queue) == QUEUED


@pytest.mark.parametrize(
    "url",
    ["", "ftp://x", "syslog://", "http://", "https://user:pw@host/x", "syslog://h:bad", "http://["],
)
def test_a_bad_url_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(ServiceError) as caught:
        sink_of(url)
    assert caught.value.code == "invalid"
    assert "pw" not in f"{caught.value} {caught.value.object} {caught.value.hint}"
