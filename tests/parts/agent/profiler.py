"""A worker that answers its profiler's method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc


@contextmanager
def worker(
    answer: Callable[[bytes, grpc.ServicerContext], bytes], method: str = "Profile"
) -> Iterator[str]:
    """Serve the profiler's method on a port of this machine; yield its address."""
    server = grpc.server(
        ThreadPoolExecutor(2), options=[("grpc.max_send_message_length", 64 * 2**20)]
    )
    handler = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("tensorflow.ProfilerService", {method: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait(10)
