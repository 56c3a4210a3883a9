"""A notice as a POST to a URL of the site file, signed with a secret of the site."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ssl

import httpx

from controller.state.records import Notice
from sitefile import PasswordRef

TIMEOUT_S = 10.0
"""For the whole delivery: names, connection, request and the head of the answer."""
ID_HEADER = "Lightloom-Notice-Id"
TIME_HEADER = "Lightloom-Notice-Time"
SIGNATURE_HEADER = "Lightloom-Notice-Signature"


def make_client() -> httpx.AsyncClient:
    """Return a client that trusts the system's certificate authorities and follows no redirect.

    It reads neither proxies nor passwords from the environment.
    """
    context = ssl.create_default_context()
    return httpx.AsyncClient(
        verify=context, trust_env=False, follow_redirects=False, timeout=TIMEOUT_S
    )


def signature(key: str, ident: str, time: int, body: bytes) -> str:
    """Return the signature of a notice that is sent at ``time`` (seconds since 1970)."""
    signed = f"{ident}.{time}.".encode() + body
    return "sha256=" + hmac.new(key.encode(), signed, hashlib.sha256).hexdigest()


class Webhook:
    """The way to one URL; any answer of the class 2xx confirms a notice."""

    def __init__(self, client: httpx.AsyncClient, url: str, secret: str) -> None:
        """``secret`` is the path of the file with the key; empty sends without a signature."""
        self._client = client
        self._url = url
        self._secret = secret

    async def deliver(self, notice: Notice, now: float) -> str:
        """POST a notice; the answer's body is not read. Returns why it is not confirmed."""
        body, sent_at = notice.body.encode(), int(now)
        headers = {
            "Content-Type": "application/json",
            ID_HEADER: notice.id,
            TIME_HEADER: str(sent_at),
        }
        try:
            if self._secret:
                key = await asyncio.to_thread(PasswordRef(file=self._secret).resolve)
                headers[SIGNATURE_HEADER] = signature(key, notice.id, sent_at, body)
            async with asyncio.timeout(TIMEOUT_S):
                request = self._client.stream("POST", self._url, content=body, headers=headers)
                async with request as answer:
                    if answer.is_success:
                        return ""
                    return f"its receiver answered {answer.status_code}"
        except (TimeoutError, httpx.TimeoutException):
            return f"its receiver did not answer in {TIMEOUT_S:g} s"
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError) as error:
            return f"its receiver cannot be reached ({type(error).__name__})"
        except (OSError, ValueError) as error:
            return f"the file of its secret cannot be used ({type(error).__name__})"
