"""Sends events to syslog (RFC 5424) and webhooks, with bounded queues and time-outs.

A sink that does not keep up loses its oldest events and logs how many; the events themselves stay
in the controller's log, with their ids, and can be exported from there.
"""

from __future__ import annotations

import asyncio
import os
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterable, Sequence
from datetime import UTC, datetime
from urllib.parse import urlsplit

import httpx
import structlog

from base.addresses import join_address
from controller.base.errors import ServiceError
from controller.schema.fabric import EventView
from controller.stream.feed import Frame

log = structlog.get_logger(__name__)

QUEUED = 1000
BATCH = 100
TIMEOUT_S = 5.0
BACKOFF_S = (1.0, 5.0, 30.0)
TOKEN_VARIABLE = "LIGHTLOOM_SINK_TOKEN"  # noqa: S105 - a variable's name
_FACILITY_DAEMON = 3
_PRIORITY = {"error": 3, "warning": 4, "info": 6}


class Sink(ABC):
    """A destination of events; it gets them in order, in batches."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dropped = 0
        """Events that were discarded before they were sent."""
        self._queue: deque[EventView] = deque()
        self._ready = asyncio.Event()

    def put(self, event: EventView) -> None:
        """Queue an event; discard the oldest if the queue is full."""
        if len(self._queue) >= QUEUED:
            self._queue.popleft()
            self.dropped += 1
        self._queue.append(event)
        self._ready.set()

    async def run(self) -> None:
        """Send batch after batch; retry a batch that fails, with growing pauses."""
        failures = reported = 0
        while True:
            await self._ready.wait()
            batch = list(self._queue)[:BATCH]
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await self.send(batch)
            except (OSError, TimeoutError, httpx.HTTPError) as error:
                if failures == 0:
                    log.warning("sink_away", sink=self.name, error=str(error) or "time-out")
                await asyncio.sleep(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])
                failures += 1
                continue
            failures = 0
            if self.dropped > reported:
                log.warning("sink_lost_events", sink=self.name, count=self.dropped - reported)
                reported = self.dropped
            sent = {event.id for event in batch}
            while self._queue and self._queue[0].id in sent:
                self._queue.popleft()
            if not self._queue:
                self._ready.clear()

    @abstractmethod
    async def send(self, batch: Sequence[EventView]) -> None:
        """Deliver a batch. OSError, TimeoutError or httpx.HTTPError if that fails."""


class SyslogSink(Sink):
    """RFC 5424 over UDP, one datagram per event."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"syslog://{join_address(host, port)}")
        self._address = (host, port)
        self._hostname = socket.gethostname() or "-"

    async def send(self, batch: Sequence[EventView]) -> None:
        """Send every event of the batch."""
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=self._address
        )
        try:
            for event in batch:
                transport.sendto(syslog_line(event, self._hostname).encode())
        finally:
            transport.close()


class WebhookSink(Sink):
    """HTTP POST of ``{"events": [...]}``; any status but 2xx is retried."""

    def __init__(
        self, url: str, token: str | None, client: httpx.AsyncClient | None = None
    ) -> None:
        parts = urlsplit(url)
        super().__init__(f"{parts.scheme}://{parts.netloc}")  # its path may be a secret
        self._url = url
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = client or httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False)
        self._http.headers.update(headers)

    async def send(self, batch: Sequence[EventView]) -> None:
        """Send the batch as one document."""
        body = {"events": [event.model_dump(mode="json") for event in batch]}
        (await self._http.post(self._url, json=body)).raise_for_status()


def sink_of(url: str) -> Sink:
    """Return the sink of ``syslog://HOST[:PORT]`` or ``http(s)://…``. ServiceError ``invalid``."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if port == 0:
        parts = urlsplit("")
    if parts.scheme == "syslog" and parts.hostname and not parts.path.strip("/"):
        return SyslogSink(parts.hostname, port or 514)
    if parts.scheme in ("http", "https") and parts.hostname and parts.username is None:
        return WebhookSink(url, os.environ.get(TOKEN_VARIABLE))
    raise ServiceError(
        "invalid",
        "events cannot be sent there",
        object=f"sink/{parts.scheme or 'unknown'}",
        hint=f"syslog://HOST[:514] or https://HOST/PATH; a token goes in {TOKEN_VARIABLE}",
    )


async def feed_sinks(frames: AsyncIterable[Frame], sinks: Sequence[Sink]) -> None:
    """Queue every event at every sink."""
    async for item in frames:
        if isinstance(item.data, EventView):
            for sink in sinks:
                sink.put(item.data)


def syslog_line(event: EventView, hostname: str) -> str:
    """Return an event as a line of RFC 5424; control characters are escaped."""
    priority = _FACILITY_DAEMON * 8 + _PRIORITY[event.severity]
    when = datetime.fromtimestamp(event.time, UTC).isoformat(timespec="milliseconds")
    data = " ".join(
        f'{name}="{_escaped(str(value))}"'
        for name, value in (("id", event.id), ("object", event.object), ("epoch", event.epoch))
    )
    message = "".join(c if c.isprintable() else repr(c)[1:-1] for c in event.message)
    reason = event.reason[:32] or "-"
    return (
        f"<{priority}>1 {when} {hostname} lightloom - {reason} [lightloom@32473 {data}] {message}"
    )


def _escaped(text: str) -> str:
    plain = "".join(c if c.isprintable() else "?" for c in text)
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("]", "\\]")
