"""A site whose aggregators speak TLS: its authority, its controller, and switches of all kinds."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from controller.daemon.relay import relayed
from controller.devices.aggregators import AggregatorEvent
from controller.devices.openflow.aggregators import OpenFlowAggregators
from controller.devices.openflow.session.tls import Speech, read_speech
from pki import Authority
from sitefile.model import AggregatorCable, CabledSite
from testbed.simulated.loop import settled
from tests.parts.openflow.sites import make_site

PATIENCE_S = 60.0


class Trust:
    """An authority in a directory, and contexts of switches that it has issued for."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority.create(directory / "ca", "test", now=datetime.now(UTC))
        self.authority.issue_controller(directory / "controller", now=datetime.now(UTC))

    @property
    def controller(self) -> Path:
        """Directory of the controller's certificate."""
        return self.directory / "controller"

    def switch(self, *names: str) -> Path:
        """Directory of a certificate of these aggregators."""
        where = self.directory / "-".join(names)
        self.authority.issue_aggregators(names, where, now=datetime.now(UTC))
        return where

    def agent(self, server: str) -> Path:
        """Directory of an agent's certificate."""
        where = self.directory / server
        self.authority.issue_agent(server, where, now=datetime.now(UTC))
        return where


def shows(directory: Path | None, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    """Return a switch's TLS settings: as Open vSwitch, it does not look at names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if directory is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(directory / "ca.pem")
        context.load_cert_chain(directory / "cert.pem", directory / "key.pem")
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context


def tls_site(plain: CabledSite | None = None, **pins: dict[str, object]) -> CabledSite:
    """A site whose aggregators speak TLS; ``pins`` changes fields of one by its name."""
    site = plain or make_site()

    def cable(one: AggregatorCable) -> AggregatorCable:
        return dataclasses.replace(one, **{"tls": True, **pins.get(one.name, {})})

    return dataclasses.replace(site, aggregators=tuple(map(cable, site.aggregators)))


@dataclass
class TlsControl:
    """A running controller: where it listens, and what it posted."""

    site: CabledSite
    aggregators: OpenFlowAggregators
    address: tuple[str, int]
    events: list[AggregatorEvent] = field(default_factory=list)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until ``condition`` holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await settled()


@contextlib.asynccontextmanager
async def tls_control(
    site: CabledSite, tls: Path, speech: Speech | None = None
) -> AsyncIterator[TlsControl]:
    """Serve ``site`` with the certificate in ``tls``."""
    events: list[AggregatorEvent] = []
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        relayed(tcp, speech or read_speech(site, tls)) as listener,
    ):
        aggregators = OpenFlowAggregators(site, events.append, listener)
        try:
            address = await aggregators.start()
            yield TlsControl(site, aggregators, address, events)
        finally:
            await aggregators.stop()
