"""The API's server and its access: the last and heaviest part of a start.

Imported by ``controller.daemon.compose`` only when the recovery is under way.
"""

from __future__ import annotations

import ssl
from contextlib import AsyncExitStack
from pathlib import Path

import structlog
import uvicorn

from base import clock
from controller.api.app import create_app
from controller.api.gate.access import Access
from controller.api.gate.idempotency import AnswerStore
from controller.api.gate.origins import Origins, origins_of
from controller.api.server.server import ApiServer
from controller.base.errors import ServiceError
from controller.base.tasks import Tasks
from controller.daemon.listen import PeopleOptions
from controller.people.accounts import Accounts
from controller.people.audit import AuditLog
from controller.service.service import Service
from controller.stream.counters import Counters
from controller.stream.sinks import feed_sinks, sink_of
from controller.stream.tracing import trace_transactions

log = structlog.get_logger(__name__)

DRAIN_S = 3
"""Time that open HTTP requests get at shutdown."""


async def open_access(state_dir: Path, options: PeopleOptions, stack: AsyncExitStack) -> Access:
    """Open accounts and audit trail in ``state_dir``; they close with ``stack``.

    The first start writes an admin's token to ``state_dir/admin.token``. ServiceError.
    """
    if options.open:
        log.warning("no_tokens_asked_for", reason="--insecure-no-auth")
        return Access()
    accounts = Accounts(state_dir / "accounts.sqlite", clock.time)
    stack.push_async_callback(accounts.close)
    await accounts.open()
    token_file = await accounts.bootstrap(state_dir)
    audit = AuditLog(state_dir)
    stack.push_async_callback(audit.close)
    await audit.open()
    log.info("tokens_asked_for", admin_token=str(token_file))
    return Access(accounts, audit)


def start_followers(service: Service, options: PeopleOptions, stack: AsyncExitStack) -> Counters:
    """Start to count, to trace, and to send events to the sinks of the options.

    ServiceError.
    """
    counters, tasks = Counters(), Tasks()
    stack.push_async_callback(tasks.stop)
    tasks.keep("counters", lambda: counters.follow(service.desks.feed.follow()))
    tasks.keep("traces", lambda: trace_transactions(service.desks.feed.follow()))
    sinks = [sink_of(url) for url in options.sinks]
    for sink in sinks:
        tasks.keep(f"sink {sink.name}", sink.run)
    if sinks:
        tasks.keep("sinks", lambda: feed_sinks(service.desks.feed.follow(), sinks))
    return counters


def server_of(
    service: Service,
    access: Access,
    counters: Counters,
    answers: AnswerStore,
    options: PeopleOptions,
) -> ApiServer:
    """Return the HTTP server of ``service``. ServiceError if the TLS files cannot be used."""
    config = uvicorn.Config(
        create_app(
            service.desks,
            access,
            counters=counters,
            answers=answers,
            origins=_origins(options),
        ),
        proxy_headers=bool(options.proxies),
        forwarded_allow_ips=list(options.proxies),
        log_config=None,
        log_level="error",  # below that are messages about clients, without a limit
        access_log=False,
        lifespan="off",
        ws="none",  # a connection that changes its protocol would leave the limit's count
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
    return ApiServer(config, service.hang_up)


def _origins(options: PeopleOptions) -> Origins:
    try:
        return origins_of(options.cert, options.public_urls)
    except (OSError, ValueError) as error:
        raise _unusable(options, error) from error


def _unusable(options: PeopleOptions, error: Exception) -> ServiceError:
    return ServiceError(
        "invalid",
        f"the TLS files cannot be used: {error}",
        object=f"file/{options.cert}",
        hint="give a certificate and its key in PEM form",
    )
