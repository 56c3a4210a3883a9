"""Builds command lines and parses output of perftest's ``ib_write_bw``. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from testbed.guests.errors import GuestError

PORT = 18515
MESSAGE_BYTES = 65536
GID_INDEX = 1
"""GID index of soft-RoCE: entry 0 is the link-local IPv6 address, entry 1 the IPv4 address."""
MARGIN_S = 1
"""Time excluded from the measurement at both ends."""
DEPTH = 1
"""Writes in flight: one has 64 packets, and a link's queue on the rack holds 100."""


@dataclass(slots=True, frozen=True)
class Transfer:
    """Writes of 64 KiB over one reliable connection, for ``seconds``."""

    seconds: int
    qp_timeout: int
    """The exponent of the queue pair's local ACK timeout."""

    def options(self) -> str:
        """Return the options that server and client share."""
        return (
            f"-d rxe0 -x {GID_INDEX} -F -s {MESSAGE_BYTES} -D {self.seconds} -f {MARGIN_S} "
            f"-t {DEPTH} -u {self.qp_timeout} -p {PORT}"
        )


def server(transfer: Transfer) -> str:
    """Return the command that starts the receiver and ends when it listens."""
    listening = f"grep -qi ':{PORT:04X} 00000000' /proc/net/tcp"
    start = f"ib_write_bw {transfer.options()} >/tmp/server.log 2>&1 </dev/null &"
    return f"{start} for i in $(seq 400); do {listening} && exit 0; usleep 100000; done; exit 1"


def client(transfer: Transfer, address: str) -> str:
    """Return the command of the sender, which prints the result."""
    return f"ib_write_bw {transfer.options()} {address} 2>&1"


def parse(output: str, transfer: Transfer) -> float:
    """Return the mean rate in bit/s. perftest prints MiB/s: bytes, count, peak, mean, messages."""
    found = re.search(rf"^\s*{MESSAGE_BYTES}\s+(\d+)\s+\S+\s+([\d.]+)\s+\S+\s*$", output, re.M)
    if found is None:
        raise GuestError(f"ib_write_bw printed no figure: {output[-800:]}", "see the output")
    return float(found[2]) * 2**20 * 8
