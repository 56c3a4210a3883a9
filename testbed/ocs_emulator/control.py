"""Injects faults into an emulated switch: one JSON document per line on a UNIX socket.

The response to ``{"fault": "deny", "code": "SROF", "match": "ENT-CRS", "count": 2}`` is
``{"ok": true}`` or ``{"ok": false, "error": "..."}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from testbed.ocs_emulator.alarms import AlarmKind, Happening
from testbed.ocs_emulator.emulator import Emulator
from testbed.ocs_emulator.faults import FaultRule, Firmware, Trick
from testbed.ocs_emulator.model import ModelError

Order = Mapping[str, Any]
_FOREIGN_USER = "foreign"
_LINE_LIMIT = 65536


class Control:
    """Executes fault orders; ``KINDS`` lists them."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self._model = emulator.model
        self._faults = emulator.switch.faults
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._path: Path | None = None

    async def listen(self, path: Path) -> None:
        """Accept orders on a UNIX socket that only this user can open."""
        await asyncio.to_thread(path.unlink, missing_ok=True)
        before = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._serve, path, limit=_LINE_LIMIT)
        finally:
            os.umask(before)
        self._path = path

    async def close(self) -> None:
        """Stop accepting orders."""
        if self._server is not None:
            self._server.close()
        if self._path is not None:
            await asyncio.to_thread(self._path.unlink, missing_ok=True)
        for task in self._tasks:
            task.cancel()

    async def order(self, order: Order) -> dict[str, Any]:
        """Execute one order; the response shows whether it was valid."""
        kind = str(order.get("fault", ""))
        try:
            if kind in {trick.value for trick in Trick}:
                self._trick(Trick(kind), order)
                return {"ok": True}
            action = KINDS.get(kind)
            if action is None:
                known = sorted([*(t.value for t in Trick), *KINDS])
                return {
                    "ok": False,
                    "error": f"no fault {kind!r}; known faults: {', '.join(known)}",
                }
            await action(self, order)
        except KeyError as error:
            return {"ok": False, "error": f"{kind} needs {error}"}
        except (ValueError, TypeError, ModelError) as error:
            return {"ok": False, "error": f"{kind}: {error}"}
        return {"ok": True}

    def _trick(self, trick: Trick, order: Order) -> None:
        rule = FaultRule(
            trick,
            str(order.get("match", "")).upper(),
            int(order.get("count", 1)),
            str(order.get("code", "SROF")),
        )
        self._faults.rules.append(rule)

    def _port(self, order: Order, key: str = "port") -> str:
        port = str(order[key])
        if port not in self._model.ports:
            raise ValueError(f"{self._emulator.personality.name} has no port {port}")
        return port

    # -- the optics ------------------------------------------------------------------

    async def _slow(self, order: Order) -> None:
        self._model.tuning.extra_s = float(order["seconds"])
        self._model.tuning.slow = int(order.get("count", 1))

    async def _stuck(self, order: Order) -> None:
        self._model.tuning.stuck = int(order.get("count", 1))

    async def _stray(self, order: Order) -> None:
        self._model.tuning.stray_to = self._port(order)
        self._model.tuning.stray = int(order.get("count", 1))

    async def _creep(self, order: Order) -> None:
        self._model.light.creep_db[self._port(order)] = float(order["db"])
        await self._emulator.switch.refresh()

    async def _dark(self, order: Order) -> None:
        self._model.light.dark.add(self._port(order))
        await self._emulator.switch.refresh()

    async def _fail(self, order: Order) -> None:
        self._model.light.broken.add(self._port(order))
        await self._emulator.switch.refresh()

    async def _repair(self, order: Order) -> None:
        port = self._port(order)
        self._model.light.dark.discard(port)
        self._model.light.broken.discard(port)
        self._model.light.creep_db.pop(port, None)
        await self._emulator.switch.refresh()

    # -- the device ------------------------------------------------------------------

    async def _reboot(self, order: Order) -> None:
        default = self._emulator.personality.behaviour.preserve_map
        keep = order.get("map", "preserve" if default else "empty")
        if keep not in ("preserve", "empty"):
            raise ValueError("map must be preserve or empty")
        reboot = self._emulator.reboot(preserve=keep == "preserve")
        task = asyncio.create_task(reboot, name="ocs-reboot")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _foreign(self, order: Order) -> None:
        """Make a circuit as another client, or with ``remove`` remove one."""
        a, b = self._port(order, "a"), self._port(order, "b")
        switch = self._emulator.switch
        if order.get("remove"):
            doomed = [c for c in self._model.circuits.values() if {c.a, c.b} == {a, b}]
            if not doomed:
                raise ValueError(f"no circuit between {a} and {b}")
            for circuit in doomed:
                self._model.drop(circuit.name)
                switch.changed(circuit.name, _FOREIGN_USER)
        else:
            duplex = not self._emulator.personality.partner
            separator = "-" if self._emulator.personality.vendor == "Calient" else ","
            name = f"{a}{separator}{b}"
            self._model.enter(name, a, b, duplex=duplex, group=_FOREIGN_USER.upper())
            self._model.activate(name, switch.now())
            switch.changed(name, _FOREIGN_USER)
        await switch.refresh()

    async def _storm(self, order: Order) -> None:
        ports = self._emulator.personality.ports
        for number in range(int(order.get("count", 100))):
            port = ports[number % len(ports)]
            self._emulator.switch.emit(Happening(AlarmKind.RAISED, port, "MN", "STORM"))
        self._faults.interleave = int(order.get("interleave", 0))

    # -- the conversation ------------------------------------------------------------

    async def _sessions(self, order: Order) -> None:
        self._faults.max_sessions = int(order["limit"])

    async def _idle(self, order: Order) -> None:
        self._faults.idle_logout_s = float(order["seconds"])

    async def _race(self, order: Order) -> None:
        self._faults.login_race_s = float(order["seconds"])

    async def _delay(self, order: Order) -> None:
        self._faults.delay_s = float(order["seconds"])

    async def _segments(self, order: Order) -> None:
        self._faults.segment = int(order["bytes"])

    async def _shuffle(self, order: Order) -> None:
        self._faults.shuffle_rows = bool(int(order.get("on", 1)))

    async def _firmware(self, order: Order) -> None:
        self._faults.firmware = Firmware(order["release"])

    async def _clear(self, order: Order) -> None:
        """End all faults; stuck or stray circuits remain so until they are made again."""
        del order
        self._faults.clear()
        light = self._model.light
        light.dark.clear()
        light.broken.clear()
        light.creep_db.clear()
        tuning = self._model.tuning
        tuning.slow = tuning.stuck = tuning.stray = 0
        await self._emulator.switch.refresh()

    # -- the socket ------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := await reader.readline():
                try:
                    order = json.loads(line)
                    if not isinstance(order, dict):
                        raise ValueError("not an object")
                except ValueError as error:
                    answer: dict[str, Any] = {"ok": False, "error": f"not JSON: {error}"}
                else:
                    answer = await self.order(order)
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        writer.close()


KINDS: Mapping[str, Callable[[Control, Order], Awaitable[None]]] = {
    "slow": Control._slow,
    "stuck": Control._stuck,
    "stray": Control._stray,
    "creep": Control._creep,
    "dark": Control._dark,
    "fail": Control._fail,
    "repair": Control._repair,
    "reboot": Control._reboot,
    "foreign": Control._foreign,
    "storm": Control._storm,
    "sessions": Control._sessions,
    "idle-logout": Control._idle,
    "login-race": Control._race,
    "delay": Control._delay,
    "segments": Control._segments,
    "shuffle-rows": Control._shuffle,
    "firmware": Control._firmware,
    "clear": Control._clear,
}
"""Faults by name, in addition to the tricks on single commands."""
