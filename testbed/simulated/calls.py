"""gRPC in memory: channels, calls and servers as ``grpc.aio`` has them, on the loop alone.

Messages are bytes on the way, as over a socket, so that what a message loses there is lost here.
Certificates decide by what they name and by equal authorities; nothing is encrypted, and dates are
not checked: a test about TLS itself needs the real library.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, cast
from unittest.mock import patch
from weakref import WeakKeyDictionary

import grpc
from cryptography import x509
from grpc import StatusCode

from base.addresses import join_address, split_address

TRIP_S = 0.001
"""From a caller to the server."""
WINDOW = 64 * 1024
"""Bytes of a stream that may wait for their reader."""
MAX_MESSAGE = 4 * 1024 * 1024
"""gRPC's own limit on a message that arrives."""
_LIMIT = "grpc.max_receive_message_length"
_NAME = "grpc.ssl_target_name_override"

Metadata = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class _Shown:
    """What one end of a connection shows and trusts."""

    names: tuple[bytes, ...]
    authority: bytes


@dataclass(frozen=True)
class _Details:
    """The details of a call that interceptors and handlers see."""

    method: str
    invocation_metadata: Metadata


class _Pipe:
    """The messages of one direction, with room for a window's bytes."""

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self._bytes = 0
        self._over = False
        self._waiting: list[asyncio.Future[None]] = []

    async def put(self, message: bytes) -> None:
        """Add a message as soon as there is room; after the end it is dropped."""
        while self._bytes >= WINDOW and not self._over:
            await self._change()
        if not self._over:
            self._messages.append(message)
            self._bytes += len(message)
            self._wake()

    async def get(self) -> bytes | None:
        """Receive the next message; None after the last."""
        while not self._messages:
            if self._over:
                return None
            await self._change()
        message = self._messages.popleft()
        self._bytes -= len(message)
        self._wake()
        return message

    def end(self, *, drop: bool = False) -> None:
        """End the messages; with ``drop``, messages that wait do not arrive either."""
        self._over = True
        if drop:
            self._messages.clear()
        self._wake()

    async def _change(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


class _Exchange:
    """What both ends of a call share: two pipes and the status that ends it."""

    def __init__(self, details: _Details, shown: _Shown | None) -> None:
        self.details = details
        self.shown = shown
        self.requests = _Pipe()
        self.replies = _Pipe()
        self.status: asyncio.Future[tuple[StatusCode, str]] = (
            asyncio.get_running_loop().create_future()
        )

    def finish(self, code: StatusCode, text: str, *, drop: bool = False) -> None:
        """End the call, unless it has ended."""
        if not self.status.done():
            self.status.set_result((code, text))
            self.requests.end(drop=True)
            self.replies.end(drop=drop)


class _Call:
    """A call as its caller has it."""

    def __init__(
        self,
        channel: _Channel,
        details: _Details,
        timeout_s: float | None,
        given: Callable[[Any], bytes] | None,
        taken: Callable[[bytes], Any] | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._exchange = _Exchange(details, channel.shown)
        self._given = given or bytes
        self._taken = taken or bytes
        self._limit = channel.limit
        self._cancelled = False
        self._feed: asyncio.Task[None] | None = None
        self._served = loop.create_task(_serve(channel, self._exchange))
        expiry = None if timeout_s is None else loop.call_later(max(0.0, timeout_s), self._expire)

        def over(_: object) -> None:
            if expiry is not None:
                expiry.cancel()
            if self._feed is not None:
                self._feed.cancel()

        self._exchange.status.add_done_callback(over)

    def feed(self, requests: Any) -> None:
        """Send what an iterator gives, and then no more."""

        async def send() -> None:
            if hasattr(requests, "__aiter__"):
                async for request in requests:
                    await self.write(request)
            else:
                for request in requests:
                    await self.write(request)
            await self.done_writing()

        self._feed = asyncio.get_running_loop().create_task(send())

    def send_only(self, request: Any) -> None:
        """Send the one request of a call."""
        pipe = self._exchange.requests
        pipe._messages.append(self._given(request))
        pipe.end()

    async def write(self, request: Any) -> None:
        """Send one message of a stream."""
        if self.done():
            raise asyncio.InvalidStateError("RPC already finished.")
        await self._exchange.requests.put(self._given(request))

    async def done_writing(self) -> None:
        """Send no more."""
        self._exchange.requests.end()

    async def read(self) -> Any:
        """Return the next message, or ``grpc.aio.EOF``."""
        try:
            message = await self._exchange.replies.get()
            if message is not None and len(message) > self._limit:
                text = f"Received message larger than max ({len(message)} vs. {self._limit})"
                self._end(StatusCode.RESOURCE_EXHAUSTED, text)
                message = None
            if message is None:
                await asyncio.shield(self._exchange.status)
        except asyncio.CancelledError:
            self.cancel()
            raise
        if message is None:
            self._raise_for_status()
            return grpc.aio.EOF
        try:
            return self._taken(message)
        except Exception:  # gRPC hands on None in the place of what it cannot read
            return None

    def __await__(self) -> Generator[Any, None, Any]:
        return self._only().__await__()

    async def _only(self) -> Any:
        reply = await self.read()
        try:
            await asyncio.shield(self._exchange.status)
        except asyncio.CancelledError:
            self.cancel()
            raise
        self._raise_for_status()
        return reply

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    def cancel(self) -> bool:
        """End the call; return whether it went on."""
        if self.done():
            return False
        self._cancelled = True
        self._end(StatusCode.CANCELLED, "Locally cancelled by application!")
        return True

    def cancelled(self) -> bool:
        """Return whether the call was cancelled."""
        return self.done() and self._exchange.status.result()[0] is StatusCode.CANCELLED

    def done(self) -> bool:
        """Return whether the call has ended."""
        return self._exchange.status.done()

    async def code(self) -> StatusCode:
        """Return how the call ended."""
        return (await asyncio.shield(self._exchange.status))[0]

    async def details(self) -> str:
        """Return the details at the end of the call."""
        return (await asyncio.shield(self._exchange.status))[1]

    def _expire(self) -> None:
        self._end(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _end(self, code: StatusCode, text: str) -> None:
        self._exchange.finish(code, text, drop=True)
        self._served.cancel()

    def _raise_for_status(self) -> None:
        if self._cancelled:
            raise asyncio.CancelledError
        code, text = self._exchange.status.result()
        if code is not StatusCode.OK:
            none = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(code, none, none, details=text)


class _Channel:
    """Stands in for ``grpc.aio.Channel``."""

    def __init__(self, address: str, shown: _Shown | None, options: Metadata) -> None:
        self.address = address
        self.shown = shown
        chosen = dict(options)
        self.expects = str(chosen.get(_NAME, split_address(address)[0])).encode()
        self.limit = int(chosen.get(_LIMIT, MAX_MESSAGE))
        self._calls: set[_Call] = set()

    def unary_unary(self, method: str, *coders: Any, **options: Any) -> Callable[..., _Call]:
        """Return what makes calls of one request."""
        return partial(self._call, method, False, *_coders(coders, options))

    unary_stream = unary_unary

    def stream_unary(self, method: str, *coders: Any, **options: Any) -> Callable[..., _Call]:
        """Return what makes calls of many requests."""
        return partial(self._call, method, True, *_coders(coders, options))

    stream_stream = stream_unary

    def _call(  # the callers of gRPC give what comes after the request by name
        self,
        method: str,
        streams: bool,
        given: Any,
        taken: Any,
        request: Any = None,
        *,
        timeout: float | None = None,  # gRPC's name
        metadata: Metadata | None = None,
        **_options: Any,
    ) -> _Call:
        call = _Call(self, _Details(method, tuple(metadata or ())), timeout, given, taken)
        self._calls.add(call)
        call._exchange.status.add_done_callback(lambda _: self._calls.discard(call))
        if not streams:
            call.send_only(request)
        elif request is not None:
            call.feed(request)
        return call

    async def close(self, _grace_s: float | None = None) -> None:
        """End the calls that go on."""
        for call in list(self._calls):
            call.cancel()
        await asyncio.sleep(0)

    async def __aenter__(self) -> _Channel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _coders(coders: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any]:
    """Return what writes a request and reads a reply, by position or by name."""
    names = ("request_serializer", "response_deserializer")
    given = dict(zip(names, coders, strict=False)) | options
    return given.get(names[0]), given.get(names[1])


class _Context:
    """The context of a call for a method of a service."""

    def __init__(self, exchange: _Exchange, writes: Callable[[Any], bytes]) -> None:
        self._exchange = exchange
        self._writes = writes
        self.code = StatusCode.UNKNOWN

    async def abort(
        self, code: StatusCode, details: str = "", trailing_metadata: object = ()
    ) -> None:
        """End the call with an error; never returns."""
        del trailing_metadata
        self._exchange.finish(code, details)
        raise grpc.aio.AbortError("Locally aborted.")

    def set_code(self, code: StatusCode) -> None:
        """Choose the status of a call that ends by an error."""
        self.code = code

    def set_details(self, details: str) -> None:
        """Ignore the text, which is never read: an error that follows has its own."""

    async def write(self, message: Any) -> None:
        """Send one message of a stream."""
        await self._exchange.replies.put(self._writes(message))

    def invocation_metadata(self) -> Metadata:
        """Return what the caller sent beside its request."""
        return self._exchange.details.invocation_metadata

    def auth_context(self) -> dict[str, tuple[bytes, ...]]:
        """Return the names of the caller's certificate."""
        shown = self._exchange.shown
        return {"x509_subject_alternative_name": shown.names} if shown is not None else {}

    def peer(self) -> str:
        """Return where the caller is."""
        return "memory:"


class _Server:
    """Stands in for ``grpc.aio.Server``."""

    def __init__(
        self,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        options: Metadata = (),
        maximum_concurrent_rpcs: int | None = None,
    ) -> None:
        self._interceptors = tuple(interceptors)
        self._handlers: list[grpc.GenericRpcHandler] = []
        self.limit = int(dict(options).get(_LIMIT, MAX_MESSAGE))
        self._most = maximum_concurrent_rpcs
        self._addresses: dict[str, _Shown | None] = {}
        self._calls: dict[asyncio.Task[None], _Exchange] = {}

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Serve these methods too."""
        self._handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """Add the generic handlers' methods as well."""

    def add_insecure_port(self, address: str) -> int:
        """Listen without certificates; return the port."""
        return self._bind(address, None)

    def add_secure_port(self, address: str, credentials: _Shown) -> int:
        """Listen with a certificate; return the port."""
        return self._bind(address, credentials)

    def _bind(self, address: str, shown: _Shown | None) -> int:
        net = _net()
        host, port = split_address(address)
        number = port or next(net.ports)
        where = join_address(host, number)
        if where in net.servers:
            raise RuntimeError(f"Failed to bind to address {address}")
        net.servers[where] = self
        self._addresses[where] = shown
        return number

    async def start(self) -> None:
        """Return at once: it has served since it was bound."""

    async def stop(self, grace_s: float | None = None) -> None:
        """Refuse further calls, and end running ones after a while."""
        for address in self._addresses:
            _net().servers.pop(address, None)
        if self._calls and grace_s:
            await asyncio.wait(self._calls, timeout=grace_s)
        left = dict(self._calls)
        for task, exchange in left.items():
            exchange.finish(StatusCode.UNAVAILABLE, "Cancelling all calls")
            task.cancel()
        if left:
            await asyncio.wait(left)

    async def wait_for_termination(self, timeout_s: float | None = None) -> bool:
        """Wait as long as the server serves; the task is cancelled at its end."""
        del timeout_s
        await asyncio.get_running_loop().create_future()
        return True

    def trusts(self, address: str, caller: _Channel) -> bool:
        """Return whether the two ends trust each other."""
        mine, theirs = self._addresses[address], caller.shown
        if mine is None or theirs is None:
            return mine is theirs
        return mine.authority == theirs.authority and caller.expects in mine.names

    async def serve(self, exchange: _Exchange) -> None:
        """Serve one call."""
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        if self._most is not None and len(self._calls) >= self._most:
            text = "Concurrent RPC limit exceeded!"
            exchange.finish(StatusCode.RESOURCE_EXHAUSTED, text)
            return
        self._calls[task] = exchange
        try:
            await self._answer(exchange)
            exchange.finish(StatusCode.OK, "")
        except asyncio.CancelledError:
            exchange.finish(StatusCode.CANCELLED, "Cancelled on the server side")
            raise
        finally:
            del self._calls[task]

    async def _answer(self, exchange: _Exchange) -> None:
        handler = await self._found(exchange.details, self._interceptors)
        if handler is None:
            exchange.finish(StatusCode.UNIMPLEMENTED, "Method not found!")
            return
        writes = handler.response_serializer or bytes
        context = _Context(exchange, writes)
        try:
            await self._run(handler, exchange, context)
        except Exception as error:  # every error is passed to the caller
            exchange.finish(context.code, f"Unexpected {type(error)}: {error}")

    async def _run(self, handler: Any, exchange: _Exchange, context: _Context) -> None:
        reads = handler.request_deserializer or bytes
        given = self._requests(exchange, reads)
        kind = "stream" if handler.request_streaming else "unary"
        if not handler.request_streaming:
            given = await anext(given)
        if not handler.response_streaming:
            reply = await getattr(handler, f"{kind}_unary")(given, context)
            await context.write(reply)
            return
        stream = getattr(handler, f"{kind}_stream")(given, context)
        if not hasattr(stream, "__aiter__"):
            await stream
            return
        async with aclosing(stream):
            async for reply in stream:
                await context.write(reply)

    async def _requests(self, exchange: _Exchange, reads: Callable[[bytes], Any]) -> Any:
        while (message := await exchange.requests.get()) is not None:
            if len(message) > self.limit:
                text = f"Received message larger than max ({len(message)} vs. {self.limit})"
                exchange.finish(StatusCode.RESOURCE_EXHAUSTED, text)
                raise grpc.aio.AbortError(text)
            yield reads(message)

    async def _found(
        self, details: _Details, interceptors: Sequence[grpc.aio.ServerInterceptor]
    ) -> Any:
        """Return the handler of a method; each interceptor may wrap it."""
        if interceptors:
            rest: Callable[[_Details], Awaitable[Any]] = partial(
                self._found, interceptors=interceptors[1:]
            )
            return await interceptors[0].intercept_service(rest, details)
        found = (handler.service(details) for handler in self._handlers)
        return next((handler for handler in found if handler is not None), None)


async def _serve(caller: _Channel, exchange: _Exchange) -> None:
    """Bring a call to its server."""
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(TRIP_S)
        server = _net().servers.get(caller.address)
        if server is None or not server.trusts(caller.address, caller):
            text = f"failed to connect to all addresses; last error: {caller.address}"
            exchange.finish(StatusCode.UNAVAILABLE, text)
            return
        await server.serve(exchange)


class _Net:
    """The servers of one loop."""

    def __init__(self) -> None:
        self.servers: dict[str, _Server] = {}
        self.ports = count(50_000)


_nets: WeakKeyDictionary[asyncio.AbstractEventLoop, _Net] = WeakKeyDictionary()


def _net() -> _Net:
    return _nets.setdefault(asyncio.get_running_loop(), _Net())


def _server(**options: Any) -> _Server:
    return _Server(
        options.get("interceptors") or (),
        options.get("options") or (),
        options.get("maximum_concurrent_rpcs"),
    )


def _insecure(address: str, options: Metadata = (), **_: Any) -> _Channel:
    return _Channel(address, None, options)


def _secure(address: str, credentials: _Shown, options: Metadata = (), **_: Any) -> _Channel:
    return _Channel(address, credentials, options)


def _shown(authority: bytes, certificate: bytes) -> _Shown:
    found = x509.load_pem_x509_certificate(certificate)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return _Shown(tuple(str(name.value).encode() for name in names), authority)


def _callers(root_certificates: bytes, private_key: bytes, certificate_chain: bytes) -> _Shown:
    del private_key
    return _shown(root_certificates, certificate_chain)


def _servers(
    pairs: Sequence[tuple[bytes, bytes]],
    root_certificates: bytes,
    require_client_auth: bool = True,
) -> _Shown:
    del require_client_auth
    return _shown(root_certificates, pairs[0][1])


@contextmanager
def without_sockets() -> Iterator[None]:
    """Make ``grpc.aio`` connect in memory for a while."""
    with ExitStack() as stack:
        for owner, name, stand_in in (
            (grpc.aio, "server", _server),
            (grpc.aio, "insecure_channel", _insecure),
            (grpc.aio, "secure_channel", _secure),
            (grpc, "ssl_channel_credentials", _callers),
            (grpc, "ssl_server_credentials", _servers),
        ):
            stack.enter_context(patch.object(owner, name, stand_in))
        yield
