"""Passes connections from a namespace on to the machine's loopback, where the controller listens.

``python -m testbed.rack.slurm.relay NETNS PORT TO_PORT``: Slurm's hook runs in slurmctld's
namespace, which has no way out.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from pyroute2 import netns


def main(arguments: list[str]) -> int:
    """Relay until ended."""
    name, port, target = arguments[0], int(arguments[1]), int(arguments[2])
    asyncio.run(_serve(name, port, target))
    return 0


async def _serve(name: str, port: int, target: int) -> None:
    listener = netns.create_socket(name)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    listener.setblocking(False)

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pipe(reader, far_writer), _pipe(far_reader, writer))

    server = await asyncio.start_server(one, sock=listener)
    print("listening", flush=True)
    async with server:
        await server.serve_forever()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
