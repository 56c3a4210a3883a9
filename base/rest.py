"""A client of the controller's REST API: a time-out for every call, errors that say what to do."""

from __future__ import annotations

import json
import ssl
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from base.errors import ExplainedError

PREFIX = "/api/v1"
Document = dict[str, Any]
_CONNECT_S = 5.0
_LIST_TRIES = 5


class RestClient:
    """One controller. Methods return parsed documents or raise ``error``.

    ``error`` is made with one of ``codes``, or ``failed``.
    """

    error: type[ExplainedError] = ExplainedError
    codes: Collection[str] = ()
    late = ""
    """What to do when no answer comes in time."""

    def __init__(
        self,
        url: str,
        token: str | None,
        timeout_s: float,
        *,
        trust: ssl.SSLContext | None = None,
        trust_env: bool = False,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """``trust``: instead of the system's certificates; ``trust_env``: use a proxy of the
        environment, which reaches no controller on this machine.
        """
        self.url = url
        self._timeout_s = timeout_s
        headers = {"User-Agent": "lightloom"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        try:
            self._http = httpx.Client(
                base_url=url + PREFIX,
                headers=headers,
                timeout=httpx.Timeout(timeout_s, connect=_CONNECT_S),
                # Loading the certificate store takes longer than a whole verb over plain HTTP.
                verify=trust or url.startswith("https:"),
                trust_env=trust_env,
                transport=transport,
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise self._bad_url(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def unreached(self) -> str:
        """Return what to do when nothing answers at its address."""
        return self.late

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
            except ExplainedError as error:
                if error.code != "conflict":
                    raise
                continue
            return {**first, "next": None}
        raise self.error(
            "conflict",
            "the list changes faster than it can be read",
            object=path,
            hint="try again",
        )

    def post(
        self, path: str, body: Document | None = None, *, extra_s: float = 0.0, **params: Any
    ) -> Document:
        """Send a change; ``extra_s`` extends the time-out for work known to take long."""
        timeout = httpx.Timeout(self._timeout_s + extra_s, connect=_CONNECT_S)
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
        timeout = httpx.Timeout(self._timeout_s + extra_s, connect=_CONNECT_S)
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
        timeout = httpx.Timeout(self._timeout_s + extra_s, connect=_CONNECT_S)
        return self._request("DELETE", path, params=_given(params), timeout=timeout)

    @staticmethod
    def part(name: str) -> str:
        """Return ``name`` encoded for a URL path."""
        return quote(name, safe="")

    def lines(
        self, path: str, *, follow: bool, silence_s: float | None = None, **params: Any
    ) -> Iterator[Document]:
        """Read a stream of JSON lines; a problem document in the stream raises ``error``.

        ``silence_s`` is the longest time without a line; None has no limit while ``follow``.
        """
        read_s = silence_s if follow or silence_s is not None else self._timeout_s
        yield from self._lines(path, read_s, _given({**params, "follow": follow}))

    def live(self, path: str, *, silence_s: float) -> Iterator[Document]:
        """Read a stream of JSON lines that is never silent for longer, without its empty lines."""
        yield from self._lines(path, silence_s, {})

    def _lines(self, path: str, read_s: float | None, query: Document) -> Iterator[Document]:
        timeout = httpx.Timeout(self._timeout_s, connect=_CONNECT_S, read=read_s)
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
                        raise self._from_problem(document)
                    yield document

    def _request(self, method: str, path: str, **options: Any) -> Document:
        with self._mapped():
            response = self._http.request(method, path, **options)
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

    def _problem(self, response: httpx.Response) -> ExplainedError:
        document = self._parsed(response.content)
        known = "detail" in document and "code" in document
        return self._from_problem(document) if known else self._not_a_controller()

    def _from_problem(self, document: Document) -> ExplainedError:
        code = str(document.get("code", "failed"))
        return self.error(
            code if code in self.codes else "failed",
            str(document.get("detail", "")),
            object=str(document.get("object") or ""),
            hint=str(document.get("hint") or ""),
        )

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        url = self.url
        try:
            yield
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise self._bad_url(error) from None
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise self.error(
                "unreachable",
                f"no controller at {url}: {error or 'no connection'}",
                object=url,
                hint=self.unreached(),
            ) from None
        except httpx.TimeoutException:
            raise self.error(
                "timeout",
                f"the controller at {url} did not answer in time",
                object=url,
                hint=self.late,
            ) from None
        except httpx.HTTPError as error:
            raise self.error(
                "unreachable",
                f"the connection to {url} was lost: {error or type(error).__name__}",
                object=url,
                hint="a change may or may not have been made; check before you repeat it",
            ) from None

    def _bad_url(self, error: Exception) -> ExplainedError:
        return self.error(
            "usage",
            f"{self.url!r} is not a controller's URL: {error}",
            hint="for example http://127.0.0.1:8470",
        )

    def _not_a_controller(self) -> ExplainedError:
        return self.error(
            "failed",
            f"the server at {self.url} is not a lightloom controller",
            object=self.url,
            hint="check LIGHTLOOM_URL",
        )


def _given(params: Document) -> Document:
    return {key: value for key, value in params.items() if value is not None}
