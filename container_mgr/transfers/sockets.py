"""Makes sockets in ranks' network namespaces, and the TLS of the management network.

A socket belongs to the namespace of the thread that makes it, and never changes it. So one thread
enters the namespace, makes the socket and ends; its owner then uses the socket anywhere.
"""

from __future__ import annotations

import fcntl
import socket
import ssl
import struct
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import TypeVar

from container_mgr.hardware.nic import NETNS_DIR, entered
from container_mgr.values import NIC_IN_CONTAINER
from pki import Credentials
from pki.authority import CA_FILE, CERT_FILE, KEY_FILE

BACKLOG = 16
LEAST_BUFFER = 32 << 10
MOST_BUFFER = 512 << 10
"""Bytes of a send buffer on e0: what is in it when a job freezes must be acknowledged first."""
_BUFFER_S = 0.05
_SIOCGIFADDR = 0x8915
_SO_MAX_PACING_RATE = 47
_MAKE_S = 10.0
_T = TypeVar("_T")


def inode(namespace: str) -> int | None:
    """Return the identity of the namespace with this name, None without one."""
    try:
        return (NETNS_DIR / namespace).stat().st_ino
    except OSError:
        return None


def listener_in(namespace: str, port: int) -> socket.socket:
    """Return a socket that listens at the address of e0 in a namespace. Raises OSError."""
    return _made_in(NETNS_DIR / namespace, lambda: _listen(port))


def client_in(namespace: str) -> socket.socket:
    """Return a TCP socket in a namespace, with a small send buffer. Raises OSError."""
    return _made_in(NETNS_DIR / namespace, _client)


def listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens on the management network. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(address)
        one.listen(BACKLOG * 8)
    except OSError:
        one.close()
        raise
    return one


def slow_down(one: socket.socket, bytes_per_s: int) -> None:
    """Have the kernel space the packets of a paced transfer, and keep little unacknowledged."""
    if bytes_per_s:
        one.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, min(bytes_per_s, 2**32 - 2))
        wanted = int(bytes_per_s * _BUFFER_S)
        size = min(max(wanted, LEAST_BUFFER), MOST_BUFFER)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size // 2)  # the kernel doubles it


def server_context(credentials: Credentials) -> ssl.SSLContext:
    """Return the TLS of who gives parts: a client's certificate is required."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    return _filled(context, credentials)


def client_context(credentials: Credentials) -> ssl.SSLContext:
    """Return the TLS context of an agent that reads parts; the server's name is checked."""
    return _filled(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), credentials)


def _filled(context: ssl.SSLContext, credentials: Credentials) -> ssl.SSLContext:
    directory = credentials.directory
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(directory / CA_FILE)
    context.load_cert_chain(directory / CERT_FILE, directory / KEY_FILE)
    return context


def _listen(port: int) -> socket.socket:
    one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        asked = struct.pack("256s", NIC_IN_CONTAINER.encode())
        address = socket.inet_ntoa(fcntl.ioctl(one.fileno(), _SIOCGIFADDR, asked)[20:24])
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it: what is not acknowledged when a job freezes stays little.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_BUFFER // 2)
        one.bind((address, port))
        one.listen(BACKLOG)
        one.setblocking(False)
    except OSError:
        one.close()
        raise
    return one


def _client() -> socket.socket:
    one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LEAST_BUFFER // 2)
    return one


def _made_in(namespace: Path, make: Callable[[], _T]) -> _T:
    future: Future[_T] = Future()

    def body() -> None:
        try:
            with entered(namespace):
                made = make()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(made)

    Thread(target=body, name="transfer-socket", daemon=True).start()
    return future.result(_MAKE_S)
