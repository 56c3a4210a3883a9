"""The REST client of every on-line verb: a time-out for every call, errors as :class:`CliError`."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx

from console.cli.ask.settings import Settings, is_loopback, running_racks
from console.cli.errors import EXIT_CODES, CliError, usage

PREFIX = "/api/v1"
Document = dict[str, Any]
_CONNECT_S = 5.0
_LIST_TRIES = 5


class Client:
    """One controller. Methods return parsed documents or raise CliError."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        headers = {"User-Agent": "lightloom"}
        if settings.token:
            headers["Authorization"] = f"Bearer {settings.token}"
        try:
            self._http = httpx.Client(
                base_url=settings.url + PREFIX,
                headers=headers,
                timeout=httpx.Timeout(settings.timeout_s, connect=_CONNECT_S),
                # Loading the certificate store takes longer than a whole verb over plain HTTP.
                verify=_trust(settings),
                # A proxy of the environment cannot reach a controller on this machine.
                trust_env=not is_loopback(settings.url),
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise self._bad_url(error) from None

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def get(self, path: str, **params: Any) -> Document:
        """Read one document."""
        return self._request("GET", path, params=_given(params))

    def whole(self, path: str) -> Document:
        """Read a whole list, page by page; start again when it changes meanwhile."""
        for _ in range(_LIST_TRIES):
            try:
                first = page = self.get(path)
                while page.get("next"):
                    page = self.get(path, cursor=page["next"])
                    first["items"] += page["items"]
            except CliError as error:
                if error.code != "conflict":
                    raise
                continue
            return {**first, "next": None}
        raise CliError(
            "conflict",
            "the list changes faster than it can be read",
            object=path,
            hint="try again",
        )

    def post(
        self, path: str, body: Document | None = None, *, extra_s: float = 0.0, **params: Any
    ) -> Document:
        """Send a change; ``extra_s`` extends the time-out for work known to take long."""
        timeout = httpx.Timeout(self._settings.timeout_s + extra_s, connect=_CONNECT_S)
        return self._request("POST", path, json=body, params=_given(params), timeout=timeout)

    def put(
        self,
        path: str,
        body: Document,
        *,
        epoch: int | None = None,
        extra_s: float = 0.0,
        **params: Any,
    ) -> Document:
        """Create or replace one object; with ``epoch`` only if the fabric is still at it."""
        timeout = httpx.Timeout(self._settings.timeout_s + extra_s, connect=_CONNECT_S)
        headers = {} if epoch is None else {"If-Match": f'"{epoch}"'}
        given = _given(params)
        return self._request("PUT", path, json=body, params=given, headers=headers, timeout=timeout)

    def text(self, path: str, **params: Any) -> str:
        """Read a document that is not JSON."""
        with self._mapped():
            response = self._http.get(path, params=_given(params))
        if not response.is_success:
            raise self._problem(response)
        return response.text

    def delete(self, path: str, *, extra_s: float = 0.0, **params: Any) -> Document:
        """Remove or end one object; ``extra_s`` as for ``post``."""
        timeout = httpx.Timeout(self._settings.timeout_s + extra_s, connect=_CONNECT_S)
        return self._request("DELETE", path, params=_given(params), timeout=timeout)

    @staticmethod
    def part(name: str) -> str:
        """Return ``name`` encoded for a URL path."""
        return quote(name, safe="")

    def lines(self, path: str, *, follow: bool, **params: Any) -> Iterator[Document]:
        """Read a stream of JSON lines; a problem document in the stream raises CliError."""
        read_s = None if follow else self._settings.timeout_s
        yield from self._lines(path, read_s, _given({**params, "follow": follow}))

    def live(self, path: str, *, silence_s: float) -> Iterator[Document]:
        """Read a stream of JSON lines that is never silent for longer, without its empty lines."""
        yield from self._lines(path, silence_s, {})

    def _lines(self, path: str, read_s: float | None, query: Document) -> Iterator[Document]:
        timeout = httpx.Timeout(self._settings.timeout_s, connect=_CONNECT_S, read=read_s)
        with (
            self._mapped(),
            self._http.stream("GET", path, params=query, timeout=timeout) as response,
        ):
            if response.is_error:
                response.read()
                raise self._problem(response)
            for line in response.iter_lines():
                if line:
                    document = self._parsed(line)
                    if "status" in document and "code" in document:
                        raise _from_problem(document)
                    yield document

    def _request(self, method: str, path: str, **options: Any) -> Document:
        try:
            with self._mapped():
                response = self._http.request(method, path, **options)
        except KeyboardInterrupt:
            if method == "GET":
                raise
            raise CliError(
                "interrupted",
                "the request was sent, and may be carried out without this command",
                object=path,
                hint="look before you repeat it: lightloom get jobs, lightloom get transactions",
            ) from None
        if not response.is_success:
            raise self._problem(response)
        return self._parsed(response.content)

    def _parsed(self, text: str | bytes) -> Document:
        try:
            document = json.loads(text)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise self._not_a_controller()
        return document

    def _problem(self, response: httpx.Response) -> CliError:
        document = self._parsed(response.content)
        known = "detail" in document and "code" in document
        return _from_problem(document) if known else self._not_a_controller()

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        url = self._settings.url
        try:
            yield
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise self._bad_url(error) from None
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise CliError(
                "unreachable",
                f"no controller at {url}: {error or 'no connection'}",
                object=url,
                hint=_where_to_ask(url),
            ) from None
        except httpx.TimeoutException:
            raise CliError(
                "timeout",
                f"the controller at {url} did not answer in time",
                object=url,
                hint="see `lightloom get events`; allow more time with --request-timeout",
            ) from None
        except httpx.HTTPError as error:
            raise CliError(
                "unreachable",
                f"the connection to {url} was lost: {error or type(error).__name__}",
                object=url,
                hint="a change may or may not have been made; check before you repeat it",
            ) from None

    def _bad_url(self, error: Exception) -> CliError:
        return usage(
            f"{self._settings.url!r} is not a controller's URL: {error}",
            "for example http://127.0.0.1:8470",
        )

    def _not_a_controller(self) -> CliError:
        return CliError(
            "failed",
            f"the server at {self._settings.url} is not a lightloom controller",
            object=self._settings.url,
            hint="check LIGHTLOOM_URL",
        )


def _from_problem(document: Document) -> CliError:
    code = str(document.get("code", "failed"))
    return CliError(
        code if code in EXIT_CODES else "failed",
        str(document.get("detail", "")),
        object=str(document.get("object") or ""),
        hint=str(document.get("hint") or ""),
    )


def _trust(settings: Settings) -> bool | ssl.SSLContext:
    if settings.ca_file is None or not settings.url.startswith("https:"):
        return settings.url.startswith("https:")
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


def _given(params: Document) -> Document:
    return {key: value for key, value in params.items() if value is not None}
