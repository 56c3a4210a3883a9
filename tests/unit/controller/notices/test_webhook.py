"""One delivery to a URL: what is sent, and which answers confirm it."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from controller.notices.webhook import Webhook, make_client
from controller.state.records import Notice
from tests.unit.controller.notices.receivers import HttpReceiver

NOTICE = Notice("0123abcd", "receiver", "red", json.dumps({"job": "red"}), 1.0)
NOW = 1_700_000_000.9


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[HttpReceiver]:
    async with HttpReceiver().listening() as one:
        yield one


async def deliver(receiver: HttpReceiver, secret: str = "") -> str:
    async with make_client() as client:
        return await Webhook(client, receiver.url, secret).deliver(NOTICE, NOW)


async def test_a_notice_is_posted_with_its_id_and_a_signature(
    receiver: HttpReceiver, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("s3cret\n")
    key.chmod(0o600)
    assert await deliver(receiver, str(key)) == ""
    (post,) = receiver.posts
    assert post.path == "/hook?key=in-the-url"
    assert json.loads(post.body) == {"job": "red"}
    assert post.headers["content-type"] == "application/json"
    assert post.headers["lightloom-notice-id"] == NOTICE.id
    assert post.headers["lightloom-notice-time"] == "1700000000"
    signed = b"0123abcd.1700000000." + post.body
    expected = hmac.new(b"s3cret", signed, hashlib.sha256).hexdigest()
    assert post.headers["lightloom-notice-signature"] == f"sha256={expected}"


async def test_without_a_secret_there_is_no_signature(receiver: HttpReceiver) -> None:
    assert await deliver(receiver) == ""
    assert "lightloom-notice-signature" not in receiver.posts[0].headers


@pytest.mark.parametrize("status", [301, 307, 400, 404, 500])
async def test_only_a_2xx_confirms_and_redirects_are_not_followed(
    receiver: HttpReceiver, status: int
) -> None:
    head = f"HTTP/1.1 {status} X\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"
    receiver.answer = lambda post: head.encode()
    assert await deliver(receiver) == f"its receiver answered {status}"
    assert len(receiver.posts) == 1


async def test_an_endless_answer_is_not_read(receiver: HttpReceiver) -> None:
    receiver.answer = lambda post: b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\nxx"
    assert await deliver(receiver) == ""


async def test_a_silent_receiver_costs_a_bounded_time(receiver: HttpReceiver) -> None:
    receiver.answer = lambda post: b""
    assert await deliver(receiver) == "its receiver did not answer in 10 s"


async def test_what_is_no_http_is_no_confirmation(receiver: HttpReceiver) -> None:
    receiver.answer = lambda post: b"hello\r\n\r\n"
    assert "cannot be reached" in await deliver(receiver)


async def test_an_absent_receiver_is_told_without_its_address(receiver: HttpReceiver) -> None:
    async with make_client() as client:
        told = await Webhook(client, "http://127.0.0.1:1/in-the-url", "").deliver(NOTICE, NOW)
    assert told == "its receiver cannot be reached (ConnectError)"


@pytest.mark.parametrize("mode", [0o644, None])
async def test_a_secret_that_is_open_or_absent_sends_nothing(
    receiver: HttpReceiver, tmp_path: Path, mode: int | None
) -> None:
    key = tmp_path / "key"
    if mode is not None:
        key.write_text("s3cret")
        key.chmod(mode)
    told = await deliver(receiver, str(key))
    assert "the file of its secret cannot be used" in told
    assert str(tmp_path) not in told
    assert receiver.posts == []
