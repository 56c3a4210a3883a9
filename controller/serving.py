"""The API's server and who may come in: the last and heaviest part of a start.

Imported by ``controller.daemon`` only when the recovery is under way.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
import time
from contextlib import AsyncExitStack
from pathlib import Path

import structlog
import uvicorn

from controller.accounts import Accounts
from controller.api.access import Access
from controller.api.app import create_app
from controller.api.idempotency import Book
from controller.audit import AuditLog
from controller.door import Connection, Door, connections_possible
from controller.errors import ServiceError
from controller.listen import PeopleOptions
from controller.origins import Origins, origins_of
from controller.service import Service
from controller.sinks import feed_sinks, sink_of
from controller.tally import Tally
from controller.tasks import Tasks
from controller.tracing import trace_transactions

log = structlog.get_logger(__name__)

DRAIN_S = 3
"""Time that open HTTP requests get at the end."""
BACKLOG = 512
ACCEPT_AT_ONCE = 32
ACCEPT_PAUSE_S = 0.1
SWEEP_EVERY_S = 1.0


async def open_access(state_dir: Path, options: PeopleOptions, stack: AsyncExitStack) -> Access:
    """Open accounts and audit trail in ``state_dir``; they close with ``stack``.

    The first start leaves an admin's token in ``state_dir/admin.token``. ServiceError.
    """
    if options.open:
        log.warning("no_tokens_asked_for", reason="--insecure-no-auth")
        return Access()
    accounts = Accounts(state_dir / "accounts.sqlite", time.time)
    stack.push_async_callback(accounts.close)
    await accounts.open()
    token_file = await accounts.bootstrap(state_dir)
    audit = AuditLog(state_dir)
    stack.push_async_callback(audit.close)
    await audit.open()
    log.info("tokens_asked_for", admin_token=str(token_file))
    return Access(accounts, audit)


def start_followers(service: Service, options: PeopleOptions, stack: AsyncExitStack) -> Tally:
    """Begin to count and trace what happens, and to send events where the options say.

    ServiceError.
    """
    tally, tasks = Tally(), Tasks()
    stack.push_async_callback(tasks.stop)
    tasks.keep("tally", lambda: tally.follow(service.follow()))
    tasks.keep("traces", lambda: trace_transactions(service.follow()))
    sinks = [sink_of(url) for url in options.sinks]
    for sink in sinks:
        tasks.keep(f"sink {sink.name}", sink.run)
    if sinks:
        tasks.keep("sinks", lambda: feed_sinks(service.follow(), sinks))
    return tally


class ApiServer(uvicorn.Server):
    """The server: it accepts connections itself, so that there are never too many of them."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self.door = Door(connections_possible())
        self._tasks: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept at ``sockets``."""
        self.servers = []
        for listener in sockets or ():
            listener.setblocking(False)
            listener.listen(BACKLOG)
            self._tasks.append(asyncio.create_task(self._accept(listener), name="api accept"))
        self._tasks.append(asyncio.create_task(self._sweep(), name="api sweep"))
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, let the streams end, then the other requests."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._service.hang_up()
        await super().shutdown(sockets)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for number in itertools.count():
            if number % ACCEPT_AT_ONCE == 0:  # a full backlog must not be all that is done
                await asyncio.sleep(0)
            try:
                accepted, address = await loop.sock_accept(listener)
            except OSError as error:  # no file is left, or the client is gone already
                log.warning("connection_not_accepted", error=str(error))
                self.door.make_room()
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            connection = Connection(
                self.door,
                address[0],
                config=self.config,
                server_state=self.server_state,
                app_state={},
            )
            if self.door.enter(connection):
                connection.welcome(accepted, self.config.ssl)
            else:
                accepted.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            self.door.sweep()


def server_of(
    service: Service, access: Access, tally: Tally, book: Book, options: PeopleOptions
) -> ApiServer:
    """Return the HTTP server of ``service``. ServiceError when the TLS files are of no use."""
    config = uvicorn.Config(
        create_app(service, access, tally=tally, book=book, origins=_origins(options)),
        proxy_headers=bool(options.proxies),
        forwarded_allow_ips=list(options.proxies),
        log_config=None,
        log_level="error",  # below that are complaints about clients, as many as they like
        access_log=False,
        lifespan="off",
        ws="none",  # a connection that changes its protocol would leave the door's count
        timeout_graceful_shutdown=DRAIN_S,
        server_header=False,
        ssl_certfile=options.cert,
        ssl_keyfile=options.key,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise _unusable(options, error) from error
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_3
    return ApiServer(config, service)


def _origins(options: PeopleOptions) -> Origins:
    try:
        return origins_of(options.cert, options.public_urls)
    except (OSError, ValueError) as error:
        raise _unusable(options, error) from error


def _unusable(options: PeopleOptions, error: Exception) -> ServiceError:
    return ServiceError(
        "invalid",
        f"the TLS files can not be used: {error}",
        object=f"file/{options.cert}",
        hint="give a certificate and its key in PEM form",
    )
