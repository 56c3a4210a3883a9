"""Implements the emulator's command line: serves one emulated switch until interrupted."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import structlog

from base.addresses import join_address, split_address
from ocs_driver.errors import OcsError
from ocs_driver.grid import Grid
from testbed.ocs_emulator.control import Control
from testbed.ocs_emulator.dataplane import DataPlane
from testbed.ocs_emulator.emulator import Address, Emulator
from testbed.ocs_emulator.personality import load_personality, personalities
from testbed.ocs_emulator.veth import VethDataPlane


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the emulator; return the exit status (0 interrupted, 1 failed, 2 usage)."""
    options = parse_arguments(arguments)
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )
    try:
        emulator = build(options)
    except (ValueError, KeyError, OSError, OcsError) as error:
        print(f"ocs emulate: {error}", file=sys.stderr)
        return 2
    try:
        asyncio.run(serve(emulator, options.control))
    except OSError as error:
        print(f"ocs emulate: {error}", file=sys.stderr)
        return 1
    return 0


async def serve(emulator: Emulator, control: Path | None = None) -> None:
    """Serve until SIGTERM or SIGINT; prints one JSON line on stdout when it listens.

    Faults are read from the UNIX socket ``control``, if given.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with emulator:
        orders = Control(emulator)
        if control is not None:
            await orders.listen(control)
        ready = {
            "event": "listening",
            "personality": emulator.personality.name,
            "listen": {
                name: join_address(host, port)
                for name, (host, port) in zip(emulator.front_ends, emulator.addresses, strict=True)
            },
        }
        print(json.dumps(ready), flush=True)
        await stop.wait()
        await orders.close()


def parse_addresses(text: str) -> list[Address]:
    """Parse ``host:port[,host:port...]``. Raises ValueError when malformed."""
    return [split_address(part.strip()) for part in text.split(",")]


def parse_names(text: str) -> tuple[str, dict[int, str]]:
    """Split ``polatis-scpi=host:port,...`` into the addresses and the named front ends."""
    addresses, names = [], {}
    for number, part in enumerate(text.split(",")):
        name, equals, address = part.strip().rpartition("=")
        addresses.append(address)
        if equals:
            names[number] = name
    return ",".join(addresses), names


def build(options: argparse.Namespace) -> Emulator:
    """Return the emulator of a command line. Raises ValueError, KeyError, OSError, OcsError."""
    personality = load_personality(options.personality).with_timing(
        mirror_s=options.mirror_time,
        bulk_s=options.bulk_time,
        link_up_s=options.link_up_time,
        read_s=options.read_time,
    )
    if options.serial is not None:
        personality = dataclasses.replace(personality, serial=options.serial)
    if (options.netns is None) != (options.links is None):
        raise ValueError("--netns and --links require each other")
    dataplane: DataPlane | None = None
    if options.netns is not None:
        links = json.loads(Path(options.links).read_text("utf-8"))
        if options.port_grid is not None:
            grid = Grid.parse(options.port_grid)
            links = {grid.number(port): link for port, link in links.items()}
        strangers = sorted(set(links) - set(personality.fibers))
        if strangers:
            raise ValueError(f"{options.links}: {personality.name} has no port {strangers[0]}")
        dataplane = VethDataPlane(options.netns, links)
    password = None if options.password_env is None else os.environ[options.password_env]
    listen, named = parse_names(options.listen)
    return Emulator(
        personality, parse_addresses(listen), dataplane=dataplane, password=password, named=named
    )


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; None means the process's own arguments."""
    parser = argparse.ArgumentParser(prog="ocs emulate", description=__doc__)
    parser.add_argument(
        "--personality",
        required=True,
        metavar="NAME|FILE",
        help=f"one of {', '.join(personalities())}, or a file that ocs probe has written",
    )
    parser.add_argument("--listen", required=True, metavar="[FRONT-END=]HOST:PORT[,...]")
    parser.add_argument("--netns", help="network namespace that holds the ports' links")
    parser.add_argument("--links", help="JSON file: switch port to link name")
    parser.add_argument(
        "--port-grid",
        metavar="BxRxC[@FIRST]",
        help="the links file names ports bank.row.column; the switch numbers them (see ?ports=)",
    )
    parser.add_argument(
        "--control", type=Path, metavar="SOCKET", help="UNIX socket for fault injection"
    )
    parser.add_argument("--serial", help="serial number instead of the personality's")
    parser.add_argument("--mirror-time", type=float, metavar="S", help="time of one circuit")
    parser.add_argument("--bulk-time", type=float, metavar="S", help="longest time of one bulk")
    parser.add_argument(
        "--link-up-time", type=float, metavar="S", help="time from light to carrier"
    )
    parser.add_argument(
        "--read-time", type=float, metavar="S", help="time of one command that changes nothing"
    )
    parser.add_argument(
        "--password-env",
        metavar="NAME",
        help="variable with the password; default: accept any user",
    )
    return parser.parse_args(arguments)
