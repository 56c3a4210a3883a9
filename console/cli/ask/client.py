"""The REST client of every on-line verb; its errors are :class:`CliError`."""

from __future__ import annotations

import ssl
from typing import Any

from base.rest import Document, RestClient
from console.cli.ask.settings import ConnectionSettings, is_loopback, running_racks
from console.cli.errors import EXIT_CODES, CliError, usage


class ControllerClient(RestClient):
    """One controller. Methods return parsed documents or raise CliError."""

    error = CliError
    codes = EXIT_CODES
    late = "see `lightloom get events`; allow more time with --request-timeout"

    def __init__(self, settings: ConnectionSettings) -> None:
        super().__init__(
            settings.url,
            settings.token,
            settings.timeout_s,
            trust=_trust(settings),
            trust_env=not is_loopback(settings.url),
        )

    def unreached(self) -> str:
        """Return what to do when nothing answers: ask other racks here, or start one."""
        return _where_to_ask(self.url)

    def _request(self, method: str, path: str, **options: Any) -> Document:
        try:
            return super()._request(method, path, **options)
        except KeyboardInterrupt:
            if method == "GET":
                raise
            raise CliError(
                "interrupted",
                "the request was sent, and may be carried out without this command",
                object=path,
                hint="look before you repeat it: lightloom get jobs, lightloom get transactions",
            ) from None


def _trust(settings: ConnectionSettings) -> ssl.SSLContext | None:
    if settings.ca_file is None or not settings.url.startswith("https:"):
        return None
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise usage(
            f"{settings.ca_file} cannot be used: {error}", "name a file of PEM certificates"
        ) from None


def _where_to_ask(url: str) -> str:
    others = [rack for rack in running_racks() if rack != url]
    if others:
        return f"an emulated rack runs here: lightloom --url {' or '.join(others)}"
    return (
        "start one with `lightloom testbed up` (emulated rack) or "
        "`lightloom controller --site FILE`, or set LIGHTLOOM_URL"
    )
