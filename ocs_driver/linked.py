"""Opens, closes and watches a matrix switch that is reached over one session."""

from __future__ import annotations

from typing import ClassVar, Protocol

from base.addresses import join_address
from ocs_driver.address import OcsAddress
from ocs_driver.matrix import MatrixDriver
from ocs_driver.watch import SwitchWatch


class LinkedSession(Protocol):
    """The dialect-independent part of a session."""

    async def open(self) -> None:
        """Connect and log in. Raises OcsUnreachable or OcsLogin on failure."""

    async def close(self) -> None:
        """Log out and close."""


class LinkedDriver(MatrixDriver):
    """Owns the watch and the session, which a vendor's constructor creates."""

    default_port: ClassVar[int]
    pushes: ClassVar[bool] = False
    """Whether the switch sends change notifications, so that polling is unnecessary."""
    _session: LinkedSession

    def __init__(self, address: OcsAddress, group: str) -> None:
        self._port = address.port or self.default_port
        super().__init__(
            join_address(address.host, self._port),
            group,
            profile=address.profile(),
            state_dir=address.state_dir,
            older_state_dir=address.older_state_dir,
        )
        self._watch = None if self.pushes else SwitchWatch(self, self._feed)

    async def connect(self) -> None:
        """Open the session. Raises OcsUnreachable or OcsLogin on failure."""
        await self._session.open()
        try:
            await self.identity()
        except BaseException:
            await self._session.close()
            raise
        if self._watch is not None:
            self._watch.start()

    async def close(self) -> None:
        """Log out and close; circuits stay as they are."""
        if self._watch is not None:
            await self._watch.stop()
        await self._session.close()
        self._feed.close()

    def _on_link(self, up: bool) -> None:
        self._feed.link(self.name, up=up)
